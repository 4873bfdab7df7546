"""Commands of metta in forked children, watched: what they print, how they end, and what they take."""

import dataclasses
import importlib
import io
import os
import resource
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path

from metta.cli.main import COMMANDS, main

PATIENCE_SECONDS = 120.0
MAX_GROWN_BYTES = 500 * 2**20
_SPARE_BYTES = 3 * 2**30
HUNG = -1000


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a command ended; `code` is as `subprocess` has it, or `HUNG`."""

    code: int
    said: str
    grown_bytes: int = 0

    def problem(self) -> str | None:
        """What must not happen to a command, whatever it reads."""
        if self.code == HUNG:
            return "hung"
        if self.code < 0 or "Traceback (most recent call last)" in self.said:
            return f"a traceback, or killed ({self.code}): {self.said[-300:]!r}"
        if self.grown_bytes > MAX_GROWN_BYTES:
            return f"took {self.grown_bytes >> 20} MB"
        strange = {sign for sign in self.said if not sign.isprintable() and sign != "\n"}
        return f"printed {sorted(strange)!r}" if strange else None


_MODULES = (
    "matplotlib.pyplot", "metta.runs.comparison", "metta.runs.inspection", "metta.runs.details",
    "metta.runs.summary", "metta.cli.training", "metta.database.ingest", "metta.profiling.profile_run",
    "metta.replays.video", "metta.store.exports.policy_export", "metta.store.loaded_policy",
    "sqlalchemy.dialects.sqlite", "torch._dynamo", "torch.export",
)  # fmt: skip


def load_commands() -> None:
    """Import what commands import when they run, once and not in every child."""
    for name in (*(f"metta.cli.commands.{name}" for name in COMMANDS), *_MODULES):
        importlib.import_module(name)


def run_command(words: Sequence[str], *, uid: int | None = None, cwd: Path | None = None) -> Ended:
    """Run ``metta WORDS`` in a child of this process, perhaps as another user; its stdin never ends."""
    out_reading, out_writing = os.pipe()
    silent_reading, silent_writing = (
        os.pipe()
    )  # never closed while the child runs: reading it hangs
    before = _memory()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that forks and threads do not mix
        child = os.fork()
    if child == 0:
        os.dup2(silent_reading, 0)
        os.dup2(out_writing, 1)
        os.dup2(out_writing, 2)
        _become(words, uid, cwd)
    os.close(out_writing)
    os.close(silent_reading)
    said, is_over = _listen(out_reading)
    if not is_over:
        os.kill(child, signal.SIGKILL)
    _, status, used = os.wait4(child, 0)
    os.close(silent_writing)
    os.close(out_reading)
    code = os.waitstatus_to_exitcode(status) if is_over else HUNG
    return Ended(code, said.decode(errors="replace"), used.ru_maxrss * 1024 - before)


def _listen(reading: int) -> tuple[bytes, bool]:
    """The output until the end, and whether the end came in time."""
    said, deadline = b"", time.monotonic() + PATIENCE_SECONDS
    while (left := deadline - time.monotonic()) > 0:
        if select.select([reading], [], [], left)[0]:
            block = os.read(reading, 65536)
            if not block:
                return said, True
            said += block
    return said, False


def _become(words: Sequence[str], uid: int | None, cwd: Path | None) -> None:
    code = 1
    try:
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), write_through=True)
        sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), write_through=True)
        in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (in_use + _SPARE_BYTES, resource.RLIM_INFINITY))
        if cwd is not None:
            os.chdir(cwd)
        if uid is not None:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
        code = main(list(words))
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001  # the end of a process: it can only report why
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _memory() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ValueError("there is no VmRSS")
