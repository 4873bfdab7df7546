"""Compiled graphs, kept on disk: the second run of a set-up does not wait for the compiler.

A package is machine code that was compiled here, from a graph that is part of its name. The folder
belongs to one user alone; what is damaged is compiled again. Of several runs that want the same package
at once, one compiles and the others wait for it.
"""

import contextlib
import functools
import hashlib
import os
import pickle
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metta.errors import DriverError
from metta.files import atomic_write, atomic_write_text, remove_file, sha256_of
from metta.rl.graph_trace import TracedGraph
from metta.versions import library_versions

__all__ = ["CompiledGraph", "cache_folder", "compile_graph", "compiler_name"]

_KEPT_PACKAGES = 64
_LONGEST_COMPILE_SECONDS = 3600.0
_FORMAT = "1"


class CompiledGraph:
    """A graph as machine code: takes the tensors that it was traced with, and what the graph holds."""

    def __init__(self, package: Path, held: Sequence[Tensor]) -> None:
        # the loader itself: torch's function around it loads its compiler, which is not needed here
        self._loader = torch._C._aoti.AOTIModelPackageLoader(str(package), "model", True, 1, -1)
        self._run = self._loader.boxed_run
        self.held = list(held)

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The graph's outputs; inputs that it changes are changed in place."""
        outputs: list[Tensor] = self._run([*tensors, *self.held])
        return outputs


def compiler_name() -> str | None:
    """The C++ compiler that graphs are compiled with, and its version; None where there is none."""
    return _find_compiler()[1]


@functools.cache
def _find_compiler() -> tuple[str, str | None]:
    """Path and name."""
    for command in filter(None, (os.environ.get("CXX"), "g++", "clang++")):
        found = shutil.which(command)
        if found is None:
            continue
        # the first is gcc's, whose -dumpversion leaves all but the first number out
        for question in ("-dumpfullversion", "-dumpversion"):
            asked = subprocess.run([found, question], capture_output=True, text=True, check=False)
            if asked.returncode == 0 and asked.stdout.strip():
                return found, f"{Path(command).name} {asked.stdout.strip()}"
    return "", None


def cache_folder() -> Path:
    """Where packages are kept: ``$METTA_CACHE_DIR``, or ``metta`` in the user's cache folder."""
    chosen = os.environ.get("METTA_CACHE_DIR")
    if chosen:
        return Path(chosen) / "graphs"
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "metta" / "graphs"


def compile_graph(
    graph: TracedGraph, examples: Sequence[Tensor], announce: Callable[[str], None]
) -> CompiledGraph:
    """Machine code for tensors laid out as the examples are, from the cache where it is there.

    `announce` is told before the compiler runs, here or in another process that is waited for.
    `DriverError` where it cannot.
    """
    layouts = [_layout(tensor) for tensor in [*examples, *graph.held]]
    folder = _own_folder()
    try:
        package = folder / f"{_key_of(graph, layouts)}.pt2"
        if not _is_intact(package):
            _compile_once(graph, layouts, package, announce)
        with contextlib.suppress(OSError):  # whose clock or file system this is does not matter
            os.utime(package)
            _forget_oldest(folder)
        return CompiledGraph(package, graph.held)
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        said = str(error).strip().splitlines()
        raise DriverError(
            f"compiled updates are kept in {folder}, which failed: {type(error).__name__}: "
            f"{said[0] if said else ''}"
        ) from error


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, str(tensor.device)


def _key_of(graph: TracedGraph, layouts: Sequence[tuple[Any, ...]]) -> str:
    parts = [
        _FORMAT,
        graph.module.code,
        repr(layouts),
        library_versions()["torch"],
        str(compiler_name()),
        str(torch.get_num_threads()),
        _processor(),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


@functools.cache
def _processor() -> str:
    """What the compiler's choice of instructions depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    wanted = ("model name", "flags", "Features")
    found = [next((line for line in lines if line.startswith(name)), "") for name in wanted]
    return "\n".join([torch.backends.cpu.get_cpu_capability(), *found])


def _own_folder() -> Path:
    """The cache folder, made where it is missing; nobody else may write code into it."""
    try:
        folder = cache_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except (OSError, RuntimeError) as error:  # there may be no home at all
        raise DriverError(
            f"compiled updates are kept in a folder that cannot be made ({error}); set METTA_CACHE_DIR "
            "to one of yours"
        ) from error
    if not stat.S_ISDIR(found.st_mode):
        raise DriverError(f"compiled updates are kept in {folder}, which must be a folder, no link")
    others_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if others_write or (hasattr(os, "getuid") and found.st_uid != os.getuid()):
        raise DriverError(
            f"compiled updates are kept in {folder}, but others can write code into it; make it yours "
            "(chmod 700), or set METTA_CACHE_DIR to another folder"
        )
    return folder


def _digest_file(package: Path) -> Path:
    return package.with_suffix(".sha256")


def _lock_file(package: Path) -> Path:
    return package.with_suffix(".lock")


def _is_intact(package: Path) -> bool:
    try:
        return _digest_file(package).read_text().strip() == sha256_of(package)
    except (OSError, ValueError):  # what is damaged may be no text
        return False


def _compile_once(
    graph: TracedGraph,
    layouts: Sequence[tuple[Any, ...]],
    package: Path,
    announce: Callable[[str], None],
) -> None:
    """Compile, unless another process has done so by the time that the package is this one's to write."""

    def say_that_it_waits() -> None:
        announce("another process is compiling this update; waiting for it")

    with _locked(_lock_file(package), before_waiting=say_that_it_waits):
        if _is_intact(package):
            return
        operations = len(graph.module.graph.nodes)
        announce(
            f"compiling the update ({operations} operations): half a minute to some minutes, once; "
            f"it is kept in {package.parent}"
        )
        _compile(graph, layouts, package)


def _compile(graph: TracedGraph, layouts: Sequence[tuple[Any, ...]], package: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="metta-compile-") as name:
        made = Path(name) / "made.pt2"
        content = pickle.dumps((graph.module, list(layouts), torch.get_num_threads()))
        _run_worker(content, made)
        atomic_write_text(_digest_file(package), sha256_of(made))
        atomic_write(package, functools.partial(_copy, made))


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)


def _run_worker(content: bytes, made: Path) -> None:
    """The compiler in a process of its own, with everything it starts."""
    # its own cache would outlive it, and its pool of helpers is not worth their start
    own = {"TORCHINDUCTOR_CACHE_DIR": str(made.parent), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    own["CXX"] = _find_compiler()[0]
    # as this process finds metta; never in the folder that it happens to be in (-P)
    places = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    own["PYTHONPATH"] = os.pathsep.join(filter(None, places))
    worker = subprocess.Popen(
        [sys.executable, "-P", "-W", "ignore", "-m", "metta.rl.graph_worker", str(made)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, **own},
        start_new_session=True,
    )
    try:
        _, said = worker.communicate(content, timeout=_LONGEST_COMPILE_SECONDS)
    except BaseException:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.communicate()
        raise
    if worker.returncode:
        lines = [line for line in said.decode(errors="replace").splitlines() if line.strip()]
        why = next((line for line in reversed(lines) if "Error" in line), "".join(lines[-1:]))
        raise DriverError(f"the compiler failed ({worker.returncode}): {why.strip()[:500]}")


def _forget_oldest(folder: Path) -> None:
    """Packages beyond those that are kept, and locks of packages that are gone; what is held stays."""
    packages = sorted(folder.glob("*.pt2"), key=lambda path: path.stat().st_mtime, reverse=True)
    for package in packages[_KEPT_PACKAGES:]:
        with _locked(_lock_file(package)) as is_ours:
            if is_ours:
                remove_file(package)
                remove_file(_digest_file(package))
    for lock in folder.glob("*.lock"):
        if not lock.with_suffix(".pt2").exists():
            with _locked(lock) as is_ours:
                if is_ours:
                    remove_file(lock)


@contextlib.contextmanager
def _locked(path: Path, before_waiting: Callable[[], None] | None = None) -> Iterator[bool]:
    """Hold a lock file, whose lock goes with the process that holds it; False where another has it.

    With `before_waiting`, which is called first, another is waited for. True where the system or the
    folder has no locks.
    """
    try:
        descriptor = _acquire(path, before_waiting)
    except BlockingIOError:
        yield False
        return
    except (ImportError, OSError):
        yield True
        return
    try:
        yield True
    finally:
        os.close(descriptor)


def _acquire(path: Path, before_waiting: Callable[[], None] | None) -> int:
    import fcntl  # not on every system

    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if before_waiting is None:
                    raise
                before_waiting()
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_named(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_named(descriptor: int, path: Path) -> bool:
    """Whether a file still has its name: one that lost it before it was locked keeps nobody out."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
