"""The lock of a sweep: one process at a time carries it on."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from metta.errors import RunLockedError
from metta.file_locks import hold_lock
from metta.sweeps.definition import SweepDefinition

__all__ = ["LOCK_FILE", "hold_sweep", "is_held"]

LOCK_FILE = "sweep.lock"


@contextlib.contextmanager
def hold_sweep(definition: SweepDefinition) -> Iterator[None]:
    """Hold a sweep, whose folder is there; `RunLockedError` if another process does."""
    file = _file_of(definition)
    with hold_lock(file) as is_ours:
        if not is_ours:
            raise RunLockedError(
                f"the sweep {definition.name!r} is being carried on by another process, which holds "
                f"{str(file)!r}; wait for it, or stop it with Ctrl-C"
            )
        yield


def is_held(definition: SweepDefinition) -> bool | None:
    """Whether a process carries a sweep on; None if its folder is not on this machine."""
    file = _file_of(definition)
    if not file.is_file():
        return None
    with hold_lock(file) as is_ours:
        return not is_ours


def _file_of(definition: SweepDefinition) -> Path:
    return Path(definition.runs) / definition.name / LOCK_FILE
