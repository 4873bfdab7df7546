"""Posting jobs whose keys say what is done, and waiting for what comes of them."""

import dataclasses
import itertools
import time
from collections.abc import Callable, Collection

from metta.database.patience import patiently, pauses
from metta.errors import DatabaseError, DatabaseUnavailableError
from metta.jobs.job import OPEN_STATES, JobRecord, JobSpec
from metta.jobs.ledger import JobLedger

__all__ = ["await_jobs", "post_again"]

_FIRST_LOOK, _LAST_LOOK = 0.05, 0.5


def post_again(ledger: JobLedger, spec: JobSpec) -> str:
    """Post a job, under another key where one of its key failed, was cancelled or is damaged; the key.

    One that is done already is not done again.
    """
    for number in itertools.count(1):
        key = spec.key if number == 1 else f"{spec.key}#{number}"
        if ledger.post([dataclasses.replace(spec, key=key)]):
            return key
        try:
            if ledger.records(keys=[key], states=(*OPEN_STATES, "done")):
                return key
        except DatabaseUnavailableError:
            raise
        except DatabaseError:  # its content is damaged
            continue
    raise AssertionError("numbers end")


def await_jobs(
    ledger: JobLedger,
    keys: Collection[str],
    *,
    look: Callable[[list[JobRecord]], None],
    seconds: float | None = None,
) -> list[JobRecord]:
    """How jobs stand when all have ended, or after so many seconds.

    While the database is away it waits, for so many seconds too. `look` receives every now and then how
    jobs stand.
    """
    begin, wanted = time.monotonic(), set(keys)

    def is_late() -> bool:
        return seconds is not None and time.monotonic() - begin >= seconds

    for pause in pauses(_FIRST_LOOK, _LAST_LOOK):
        records = patiently(lambda: ledger.records(keys=wanted), is_late)
        if num_gone := len(wanted) - len(records):
            raise DatabaseError(
                f"{num_gone} of {len(wanted)} jobs are gone from {ledger.url}: was it begun anew? give the "
                "command again"
            )
        look(records)
        if is_late() or not any(record.state in OPEN_STATES for record in records):
            return records
        time.sleep(pause)
    raise AssertionError("pauses end")
