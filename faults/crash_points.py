"""SIGKILL at every system call of one save that also removes an old checkpoint.

The kill falls on entering the call, so that it is not carried out: killed before the first, before the
second, and so on, and not at all, which is killed after the last. Calls that change nothing on the disk
leave the state that the next one finds; where not all points are wanted, they are left out first.
"""

from collections.abc import Iterator
from pathlib import Path

from faults import saved_run
from faults.traced_save import SAVE, Call, Traced, Tracer
from faults.trial import OK, Trial

NAME = "crash_points"
_CHANGES = {"write", "pwrite64", "writev", "ftruncate", "fallocate", "fsync", "fdatasync", "mkdir",
            "mkdirat", "rename", "renameat", "renameat2", "unlink", "unlinkat", "rmdir", "link",
            "linkat", "symlink", "chmod", "fchmod"}  # fmt: skip


def trials(count: int, seed: int, folder: Path) -> Iterator[Trial]:
    """All points, or with a `count` all those at which the disk changes and some of the others."""
    with Tracer(folder) as tracer:
        whole = tracer.run(SAVE)
        yield verdict("after the last call", seed, whole, whole.code == saved_run.SAVED, saved=True)
        for call in chosen(whole.calls, count - 1):
            killed = tracer.run(SAVE, f"{call.name}:signal=KILL:when={call.number}")
            fell_there = killed.code == -9 and str(killed.calls[-1]) == str(call)
            yield verdict(f"before {call}", seed, killed, fell_there, saved=None)


def chosen(calls: list[Call], count: int) -> list[Call]:
    if count < 0:
        return calls
    others = [call for call in calls if not changes(call)]
    wanted = max(0, count - (len(calls) - len(others)))
    step = max(1, len(others) // max(1, wanted))
    some = set(others[::step][:wanted])
    return [call for call in calls if changes(call) or call in some]


def changes(call: Call) -> bool:
    """Whether a call can leave the disk in another state than it was in."""
    return call.name in _CHANGES or (call.name == "openat" and "O_CREAT" in call.text)


def verdict(
    point: str, seed: int, traced: Traced, fell_there: bool, *, saved: bool | None
) -> Trial:
    outcome, digest = saved_run.examine(traced.folder, saved=saved)
    if outcome == OK and not fell_there:
        outcome = f"the save ended with code {traced.code} after {len(traced.calls)} calls"
    return Trial(NAME, seed, point, outcome, digest, {"calls": len(traced.calls)})
