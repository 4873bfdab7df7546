"""A save under strace, in a forked process: every system call it makes, and one of them tampered with.

The child stops itself before it saves and continues when strace is attached, so that strace sees and counts
the calls of the save alone. It counts them by name: the third fsync is ``fsync``, 3.
"""

import collections
import ctypes
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from faults import saved_run
from faults.zygote import Zygote

_CALL = re.compile(r"(\w+)\((.*)")
_PATIENCE = 20.0
_SET_TRACER = 0x59616D61  # of prctl(2); fails where no such permission is needed


@dataclass(frozen=True)
class Call:
    """The nth system call of its name."""

    name: str
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.name} #{self.number}"


@dataclass(frozen=True)
class Traced:
    """What became of an act."""

    folder: Path
    code: int
    """The exit code, or the negative number of a signal."""
    calls: list[Call]


def why_not() -> str | None:
    """Why nothing can be traced here, or None where it can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    probe = ["strace", "-qq", "-o", os.devnull, "-e", "inject=close:error=EIO:when=99", "true"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"strace does not work here: {done.stderr.strip()}"
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    if os.getuid() != 0 and scope.exists() and int(scope.read_text()) > 1:
        return "this system lets only root trace other processes"
    return None


def warm_up() -> None:
    """Import and cache all that a save needs, before any child is forked."""
    with tempfile.TemporaryDirectory() as folder:
        saved_run.prepare(Path(folder))
        saved_run.save(folder)


def stop_and_save(folder: str) -> None:
    """In the child: save once; the exit code is how it ended."""
    wait_for_strace()
    raise SystemExit(saved_run.save(folder))


def wait_for_strace() -> None:
    """Allow any process to trace this one, and stop until the tracer lets it continue."""
    ctypes.CDLL(None).prctl(_SET_TRACER, ctypes.c_ulong(-1), 0, 0, 0)
    os.kill(os.getpid(), signal.SIGSTOP)


@dataclass(frozen=True)
class Act:
    """Something that a child does in a folder."""

    prepare: Callable[[Path], object]
    function: str
    """As `Zygote.start` takes it; stops itself first."""


SAVE = Act(saved_run.prepare, "faults.traced_save:stop_and_save")


class Tracer:
    """Runs acts one after the other under strace, each in a fresh process and a fresh folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._made = folder, 0
        self.zygote = Zygote(["faults.traced_save:warm_up"], cwd=Path(__file__).parent.parent)

    def new_folder(self, act: Act) -> Path:
        """A folder as the act finds it."""
        template = self._folder / act.function.partition(":")[2]
        if not template.exists():
            template.mkdir()
            act.prepare(template)
        self._made += 1
        return shutil.copytree(template, self._folder / f"run-{self._made}")

    def run(self, act: Act, tampering: str | None = None) -> Traced:
        """Run an act; `tampering` as strace takes it, e.g. ``fsync:error=EIO:when=3``."""
        folder, log = self.new_folder(act), self._folder / "strace.log"
        child = self.zygote.start(act.function, folder=str(folder))
        _wait_until(lambda: _state(child.pid, "State").startswith("T"))
        words = ["strace", "-qq", "-p", str(child.pid), "-o", str(log), "-e", "trace=%file,%desc"]
        inject = [] if tampering is None else ["-e", f"inject={tampering}"]
        with subprocess.Popen([*words, *inject]) as strace:
            _wait_until(lambda: _state(child.pid, "TracerPid") == str(strace.pid))
            child.kill(signal.SIGCONT)
            code = child.wait(_PATIENCE)
        return Traced(folder, code, _read_calls(log))

    def __enter__(self) -> "Tracer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.zygote.close()


def _state(pid: int, field: str) -> str:
    status = Path(f"/proc/{pid}/status").read_text()
    return (
        next(line for line in status.splitlines() if line.startswith(field)).split(":")[1].strip()
    )


def _wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not is_true():
        assert time.monotonic() < deadline, "strace or the child does not get ready"
        time.sleep(0.001)


def _read_calls(log: Path) -> list[Call]:
    seen: collections.Counter[str] = collections.Counter()
    calls = []
    for line in log.read_text().splitlines():
        match = _CALL.match(line)
        if match:
            seen[match[1]] += 1
            calls.append(Call(match[1], seen[match[1]], match[2]))
    return calls
