"""`Zygote`: a process that has imported everything, and forks one child per trial.

Importing torch takes seconds, a fork takes milliseconds: this is what makes thousands of kills possible.
"""

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from metta.processes import python_command

__all__ = ["Child", "Zygote"]

_READY = "ready"


@dataclass
class Child:
    """A forked process that runs one function."""

    pid: int
    zygote: "Zygote"
    _status: int | None = None

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to it; nothing happens where it has ended."""
        if self._status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait(self, timeout_seconds: float = 60.0) -> int:
        """Its exit code, negative for a signal, as `subprocess` has it; `TimeoutError` if it continues."""
        deadline, pause = time.monotonic() + timeout_seconds, 0.002
        while self._status is None:
            self._status = self.zygote.status_of(self.pid)
            if self._status is None:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"process {self.pid} continues after {timeout_seconds:g} s")
                time.sleep(pause)
                pause = min(2 * pause, 0.02)
        return os.waitstatus_to_exitcode(self._status)


class Zygote:
    """Starts functions in new processes, quickly.

        with Zygote(["metta.rl.clean_trainer"]) as zygote:
            child = zygote.start("my_module:train", folder="runs/a")
            time.sleep(0.3)
            child.kill()
            child.wait()

    A function is named by module and name, takes plain data, and its exceptions end its process with
    code 1 and a traceback on stderr. `SystemExit` gives its code, Ctrl-C its signal. `preload` names
    modules to import, and functions to call once (which must leave no thread behind: a process with
    threads must not fork).
    """

    def __init__(
        self, preload: Sequence[str] = (), *, cwd: str | os.PathLike[str] | None = None
    ) -> None:
        # one thread: a process with more of them must not fork
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            python_command(__name__, *preload),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=variables,
            cwd=cwd,
        )
        try:
            self._expect(_READY)
        except BaseException:
            self.close()
            raise

    def start(self, function: str, **arguments: Any) -> Child:
        """Fork a child that calls ``module:function`` with these arguments."""
        return Child(int(self._ask({"start": function, "arguments": arguments})), self)

    def status_of(self, pid: int) -> int | None:
        """What `os.wait` returns for a child, or None while it runs."""
        status = self._ask({"status": pid})
        return None if status is None else int(status)

    def close(self) -> None:
        """End the zygote; children that still run are killed."""
        with self._process as process:  # waits for it, and closes both pipes
            assert process.stdin is not None
            process.stdin.close()

    def _ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._expect()

    def _expect(self, wanted: Any = None) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the zygote ended with code {self._process.wait()}")
        answer = json.loads(line)
        assert wanted is None or answer == wanted, answer
        return answer

    def __enter__(self) -> "Zygote":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _serve(preload: Sequence[str]) -> None:
    """Answer requests until the other side is gone."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what children print must not look like an answer
    for name in preload:
        _load(name)
    running: set[int] = set()
    ended: dict[int, int] = {}
    _answer(answers, _READY)
    for line in sys.stdin:
        request = json.loads(line)
        if "start" in request:
            pid = os.fork()
            if pid == 0:
                answers.close()
                _run(request["start"], request["arguments"])
            running.add(pid)
            _answer(answers, pid)
        else:
            pid = request["status"]
            if pid in running:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    running.remove(pid)
                    ended[pid] = status
            _answer(answers, ended.get(pid))
    for pid in running:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _load(target: str, /, **arguments: Any) -> None:
    """Import ``module``, or call ``module:function``."""
    module, _, function = target.partition(":")
    loaded = importlib.import_module(module)
    if function:
        getattr(loaded, function)(**arguments)


def _answer(answers: Any, value: Any) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()


def _run(function: str, arguments: dict[str, Any]) -> NoReturn:
    code = 0
    try:
        # requests are the zygote's, not the child's
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        _load(function, **arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except KeyboardInterrupt:  # as Python ends if nothing handles it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # noqa: BLE001  # the end of a process: it can only report why
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _serve(sys.argv[1:])
