"""The courier: ``python -m metta.jobs.courier`` posts the evaluations of a run, and brings their results.

A trainer starts it and never opens a database itself. It reads lines of JSON and answers with such lines;
`metta.rl.evaluate.queued` is the other side. It ends when its standard input does. While the
database is away it tries again, for ever.
"""

import contextlib
import json
import os
import queue
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from metta.database.patience import pauses
from metta.errors import (
    DatabaseError,
    DatabaseUnavailableError,
    MettaError,
    MissingExtraError,
)
from metta.jobs.job import OPEN_STATES, JobRecord, JobSpec
from metta.jobs.ledger import JobLedger
from metta.jobs.posting import post_again
from metta.jobs.worker_settings import WorkerSettings
from metta.secrets import scrub

if TYPE_CHECKING:
    from metta.jobs.ray_workers import RayWorkers

__all__ = ["KIND", "Courier", "main"]

KIND = "evaluate"
"""Of the jobs that it posts."""
_WAIT_SECONDS = 5.0
"""For other writers of a SQLite file."""
_FIRST_LOOK, _LAST_LOOK = 0.05, 1.0
"""Pauses between looks for results."""
_LONGEST_AWAY = 3.0
"""Pause between tries while the database is away."""
_IGNORED_SECONDS = 3.0
"""After which jobs that nobody takes are worth telling."""

Message = dict[str, Any]


class Courier:
    """Posts jobs to a ledger, and finds out what came of them.

        courier = Courier(ledger, "evaluation/1234", send=print)
        courier.order({"number": 1, "key": "...", "payload": {...}})
        seconds = courier.look()          # posts and sends what is new; returns when to look again

    `send` receives ``{"answer": number, "result": ..., "error": ...}`` for each job, once, and ``state``
    whenever something else is worth knowing.
    """

    def __init__(self, ledger: JobLedger, group: str, send: Callable[[Message], None]) -> None:
        self.ledger, self.group, self.send = ledger, group, send
        self._orders: dict[int, Message] = {}
        self._keys: dict[int, str] = {}
        """Of jobs that are posted."""
        self._looks, self._tries = pauses(_FIRST_LOOK, _LAST_LOOK), pauses(longest=_LONGEST_AWAY)
        self._last_sign = time.monotonic()
        """When somebody was last seen to do a job."""
        self._state: Message = {}

    @property
    def is_idle(self) -> bool:
        """Whether everything is answered."""
        return not self._orders

    def order(self, message: Message) -> None:
        """Take a job that is to be posted."""
        if self.is_idle:
            self._last_sign = time.monotonic()
        self._orders[message["number"]] = message
        self._looks = pauses(_FIRST_LOOK, _LAST_LOOK)

    def look(self) -> float:
        """Post what is new, send what ended; returns the seconds until the next look."""
        try:
            for number, order in self._orders.items():
                if number not in self._keys:
                    spec = JobSpec(KIND, order["key"], self.group, order["payload"])
                    self._keys[number] = post_again(self.ledger, spec)
            records = {record.key: record for record in self._records(self._keys.values())}
        except DatabaseError as error:
            self._tell(away=str(error))
            return next(self._tries)
        self._tries = pauses(longest=_LONGEST_AWAY)
        for number, key in list(self._keys.items()):
            self._take(number, records.get(key))
        is_ignored = time.monotonic() - self._last_sign > _IGNORED_SECONDS
        self._tell(is_ignored=is_ignored and not self.is_idle)
        return next(self._looks)

    def _records(self, keys: Iterable[str]) -> list[JobRecord]:
        """How jobs stand; one whose content is damaged counts as failed, and does not stop the others."""
        wanted = list(keys)
        if not wanted:
            return []
        try:
            return self.ledger.records(keys=wanted)
        except DatabaseUnavailableError:
            raise
        except DatabaseError as error:
            if len(wanted) == 1:
                return [_damaged(wanted[0], self.group, str(error))]
            return [record for key in wanted for record in self._records([key])]

    def _take(self, number: int, record: JobRecord | None) -> None:
        if record is None:  # the database was begun anew
            del self._keys[number]
            return
        if record.state == "held":
            self._last_sign = time.monotonic()
        if record.state in OPEN_STATES:
            return
        error = None if record.state == "done" else record.error or f"its job is {record.state}"
        self.send({"answer": number, "result": record.result, "error": error})
        del self._orders[number], self._keys[number]
        self._last_sign = time.monotonic()
        self._looks = pauses(_FIRST_LOOK, _LAST_LOOK)

    def _tell(self, *, away: str = "", is_ignored: bool = False) -> None:
        state = {"away": scrub(away), "is_ignored": is_ignored}
        if state != self._state:
            self._state = state
            self.send({"state": state})


def _damaged(key: str, group: str, error: str) -> JobRecord:
    return JobRecord(
        id=0,
        kind=KIND,
        key=key,
        group=group,
        payload={},
        state="failed",
        attempt=0,
        worker=None,
        result=None,
        error=error,
        posted=0.0,
        started=None,
        ended=None,
    )


def main() -> int:
    """Serve the process that started this one."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # its end is that of the trainer
    warnings.simplefilter("ignore")  # what counts is told
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # other texts must not be taken for answers

    def send(message: Message) -> None:
        answers.write(json.dumps(message).encode() + b"\n")

    lines: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    try:
        with contextlib.suppress(BrokenPipeError), contextlib.ExitStack() as held:
            _serve(lines, send, held)
    except Exception as error:  # noqa: BLE001  # the trainer reports it
        with contextlib.suppress(BrokenPipeError):
            send(_described(error))
        return 1
    return 0


def _read(lines: "queue.SimpleQueue[Message | None]") -> None:
    # not `sys.stdin`: Python could not close it while this thread reads
    with contextlib.suppress(ValueError, OSError), os.fdopen(0, "rb", closefd=False) as messages:
        for line in messages:
            lines.put(json.loads(line))
    lines.put(None)


def _serve(
    lines: "queue.SimpleQueue[Message | None]",
    send: Callable[[Message], None],
    held: contextlib.ExitStack,
) -> None:
    message, parent = lines.get(), os.getppid()
    if message is None:
        return
    opened = message["open"]
    ledger = held.enter_context(JobLedger(opened["database"], wait_seconds=_WAIT_SECONDS))
    ledger.require_usable()
    workers = None if opened["ray"] is None else held.enter_context(_ray_workers(opened))
    courier = Courier(ledger, opened["group"], send)
    send({"ready": ledger.url})
    pause: float | None = None
    while os.getppid() == parent:
        with contextlib.suppress(queue.Empty):
            while (message := lines.get(timeout=pause)) is not None:
                courier.order(message["post"])
                pause = 0.0
            return
        pause = courier.look()
        if workers is not None:
            workers.check(ledger)
        elif courier.is_idle:
            pause = None


def _ray_workers(opened: Mapping[str, Any]) -> "RayWorkers":
    from metta.jobs.ray_workers import RayWorkers  # slow, and seldom needed

    ray = opened["ray"]
    settings = WorkerSettings(
        opened["database"],
        kinds=(KIND,),
        groups=(opened["group"],),
        modules=tuple(ray["modules"]),
    )
    return RayWorkers(
        settings, ray["num_workers"], address=ray["address"], setting="evaluation.ray_address"
    )


def _described(error: Exception) -> Message:
    """An error for the trainer, which raises it with the same type."""
    is_own = isinstance(error, MettaError)
    text = str(error) if is_own else f"{type(error).__name__}: {error}"
    made_of = error.__reduce__()[1] if isinstance(error, MissingExtraError) else None
    return {"error": scrub(text), "kind": type(error).__name__, "made_of": made_of}


if __name__ == "__main__":
    sys.exit(main())
