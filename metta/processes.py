"""Starting Python processes: they find the modules that this process finds, and no others.

``python -c`` and ``python -m``, which `multiprocessing` uses as well, look for modules in the current
folder first: a file in a run's folder would run. Every Python process of metta is started here.
"""

import atexit
import contextlib
import os
import shutil
import socket
import sys
import threading
import time
import types
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import util
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess, current_process
from pathlib import Path
from typing import Any

from metta.errors import EnvError, UnsafeFileError
from metta.private_folders import ScratchFolder

__all__ = ["PipedProcess", "WorkerContext", "find_program", "python_command", "start_process"]

WorkerContext = ForkServerContext | SpawnContext

_SERVER_DIED = (EOFError, ConnectionError, FileNotFoundError)
"""What `multiprocessing` raises if its fork server ended while it started a process."""
_SECONDS_BEFORE_TRIES = (0.0, 0.1, 1.0)
"""Pauses: `multiprocessing` does not notice at once that a killed server is dead."""

_starting = threading.RLock()
_server_folder: ScratchFolder | None = None


@dataclass(frozen=True)
class PipedProcess:
    """A process that was started, and the ends of its pipes that stay here."""

    process: BaseProcess
    commands: Connection
    """To write to."""
    answers: Connection
    """To read from."""


def start_process(
    context: WorkerContext, target: Callable[..., None], arguments: Sequence[Any], name: str
) -> PipedProcess:
    """Start ``target(*arguments, commands, answers)`` in a new process.

    If the fork server dies meanwhile, another one is started; `EnvError` if that does not help. The new
    process does not import the user's script, since everything is sent by value: a script needs no
    ``if __name__ == "__main__"`` guard.
    """
    for seconds in _SECONDS_BEFORE_TRIES:
        time.sleep(seconds)
        try:
            return _start(context, target, arguments, name)
        except _SERVER_DIED as error:
            # a process that it may have started in its last moment finds its pipes closed, and ends
            last: Exception = error
        except OSError as error:
            raise EnvError(
                f"{name} could not be started: {error}; use fewer workers, or free memory"
            ) from error
    raise EnvError(
        f"{name} could not be started: the fork server of multiprocessing died "
        f"{len(_SECONDS_BEFORE_TRIES)} times ({type(last).__name__}); free memory, or use num_workers=0 "
        "and evaluation.where=here"
    ) from last


def _start(
    context: WorkerContext, target: Callable[..., None], arguments: Sequence[Any], name: str
) -> PipedProcess:
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        reader, commands = context.Pipe(duplex=False)
        theirs.enter_context(reader)
        ours.enter_context(commands)
        answers, writer = context.Pipe(duplex=False)
        theirs.enter_context(writer)
        ours.enter_context(answers)
        # not daemonic: environments may start processes
        process = context.Process(target=target, args=(*arguments, reader, writer), name=name)
        with _starting, _without_current_folder(), _without_main_module(), _private_socket():
            process.start()
        ours.pop_all()
        return PipedProcess(process, commands, answers)


@contextlib.contextmanager
def _without_current_folder() -> Iterator[None]:
    """Start the interpreters of `multiprocessing` (fork server, tracker, spawn) with ``-P``.

    Not by ``PYTHONSAFEPATH``, which environments would pass on to the programs that they start.
    """
    private: Any = util  # what it takes flags from has no public name
    flags: Callable[[], list[str]] = private._args_from_interpreter_flags
    private._args_from_interpreter_flags = lambda: [*flags(), "-P"]
    try:
        yield
    finally:
        private._args_from_interpreter_flags = flags


@contextlib.contextmanager
def _without_main_module() -> Iterator[None]:
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextlib.contextmanager
def _private_socket() -> Iterator[None]:
    """Put the socket of a fork server into a scratch folder.

    If no socket can be made there, because of the file system or a long path, it is in the private folder
    that `multiprocessing` makes in the system's temporary one; `EnvError` if that fails too.
    """
    private: Any = current_process()  # its settings have no public name
    settings: dict[str, Any] = private._config
    folder = None if "tempdir" in settings else _folder_of_server()  # someone may have chosen
    if folder is None:
        _require_sockets_of_system()
        yield
        return
    settings["tempdir"] = str(folder)
    try:
        yield
    finally:
        # shared memory, which may be on a disk, does not belong in this folder
        del settings["tempdir"]


def _folder_of_server() -> Path | None:
    """A scratch folder in which sockets can be made; None if that is not possible."""
    global _server_folder
    if _server_folder is None or not _server_folder.path.is_dir():
        _server_folder = None
        with contextlib.suppress(UnsafeFileError, OSError), contextlib.ExitStack() as undo:
            made = undo.enter_context(ScratchFolder("server"))
            _try_a_socket(made.path)
            undo.pop_all()
            _server_folder = made
            atexit.register(made.close)
    return None if _server_folder is None else _server_folder.path


def _require_sockets_of_system() -> None:
    folder = "the system's temporary folder"
    try:
        folder = util.get_temp_dir()
        _try_a_socket(Path(folder))
    except OSError as error:
        raise EnvError(
            f"worker processes need a Unix socket, which cannot be made in {folder!r} ({error}); set "
            "METTA_CACHE_DIR or TMPDIR to a folder of yours on a local disk, with a short path, or use "
            "num_workers=0 and evaluation.where=here"
        ) from error


def _try_a_socket(folder: Path) -> None:
    """`OSError` if a socket cannot be made there under a name as long as `multiprocessing` gives it."""
    place = folder / f"listener-{uuid.uuid4().hex[:8]}"
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(place))
    place.unlink()


def python_command(module: str, *arguments: str) -> list[str]:
    """``python -m module`` that finds what this process finds, wherever it is started."""
    own = str(Path(__file__).parents[1])  # where metta is, however it was found
    places = [*(place or str(Path.cwd()) for place in sys.path), own]
    code = (
        f"import sys; sys.path[:] = {places!r}; import runpy; "
        f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    )
    return [sys.executable, "-P", "-c", code, *arguments]


def find_program(name: str) -> str | None:
    """The path of a program; folders of ``PATH`` that depend on the current folder are left out."""
    places = os.environ.get("PATH", os.defpath).split(os.pathsep)
    found = shutil.which(name, path=os.pathsep.join(filter(os.path.isabs, places)))
    return None if found is None else str(Path(found).absolute())
