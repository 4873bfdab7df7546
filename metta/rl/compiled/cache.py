"""Compiled graphs, kept on disk: the second run of a set-up does not wait for the compiler.

A package is machine code that was compiled here, from a graph that is part of its name. The folder
belongs to one user alone, and so do those in which the compiler works and from which code is loaded; what
is damaged is compiled again. Of several runs that need the same package at once, one compiles and the
others wait for it.
"""

import contextlib
import functools
import hashlib
import os
import pickle
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metta.errors import DriverError, UnsafeFileError
from metta.file_locks import hold_lock
from metta.files import atomic_write, atomic_write_text, remove_file, sha256_of
from metta.private_folders import ScratchFolder, cache_root, private_folder
from metta.processes import find_program, python_command
from metta.rl.compiled.trace import TracedGraph
from metta.versions import library_versions

__all__ = ["CompiledGraph", "cache_folder", "compile_graph", "compiler_name"]

_FOLDER = "graphs"
_KEPT_PACKAGES = 64
_MAX_COMPILE_SECONDS = 3600.0
_FORMAT = "2"


class CompiledGraph:
    """A graph as machine code: takes the tensors that it was traced with, and what the graph holds."""

    def __init__(self, package: Path, held: Sequence[Tensor]) -> None:
        # the loader itself: torch's function around it loads its compiler, which is not needed here
        with _unpacking_in_private():
            self._loader = torch._C._aoti.AOTIModelPackageLoader(str(package), "model", True, 1, -1)
        self._run = self._loader.boxed_run
        self.held = list(held)

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The graph's outputs; inputs that it changes are changed in place."""
        outputs: list[Tensor] = self._run([*tensors, *self.held])
        return outputs


def compiler_name() -> str | None:
    """The C++ compiler that graphs are compiled with, and its version; None if none was found."""
    return _find_compiler()[1]


@functools.cache
def _find_compiler() -> tuple[str, str | None]:
    """Path and name."""
    for command in filter(None, (os.environ.get("CXX"), "g++", "clang++")):
        found = find_program(command)
        if found is None:
            continue
        # the first is gcc's, whose -dumpversion leaves all but the first number out
        for question in ("-dumpfullversion", "-dumpversion"):
            asked = subprocess.run([found, question], capture_output=True, text=True, check=False)
            if asked.returncode == 0 and asked.stdout.strip():
                return found, f"{Path(command).name} {asked.stdout.strip()}"
    return "", None


def cache_folder() -> Path:
    """Where packages are kept: below ``$METTA_CACHE_DIR``, or ``metta`` in the user's cache folder."""
    return cache_root() / _FOLDER


def compile_graph(
    graph: TracedGraph, examples: Sequence[Tensor], announce: Callable[[str], None]
) -> CompiledGraph:
    """Machine code for tensors laid out as the examples are, from the cache if it holds it.

    `announce` is called before the compiler runs, here or in another process that this one waits for.
    `DriverError` if compiling fails.
    """
    layouts = [_layout(tensor) for tensor in [*examples, *graph.held]]
    folder = _own_folder()
    try:
        package = folder / f"{_key_of(graph, layouts)}.pt2"
        if not _is_intact(package):
            _compile_once(graph, layouts, package, announce)
        with contextlib.suppress(OSError):  # another user's or a read-only file system
            os.utime(package)
            _forget_oldest(folder)
        return CompiledGraph(package, graph.held)
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        lines = str(error).strip().splitlines()
        raise DriverError(
            f"compiled updates are kept in {folder}, which failed: {type(error).__name__}: "
            f"{lines[0] if lines else ''}"
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
    try:
        return private_folder(_FOLDER)
    except UnsafeFileError as error:
        raise DriverError(f"compiled updates cannot be kept: {error}") from error


@contextlib.contextmanager
def _unpacking_in_private() -> Iterator[None]:
    """The loader unpacks code into a new temporary folder, and leaves it there until the process ends."""
    before = os.environ.get("TMPDIR")
    with ScratchFolder("load") as scratch:
        os.environ["TMPDIR"] = str(scratch.path)
        try:
            yield
        finally:
            os.environ.pop("TMPDIR")
            if before is not None:
                os.environ["TMPDIR"] = before


def _digest_file(package: Path) -> Path:
    return package.with_suffix(".sha256")


def _lock_file(package: Path) -> Path:
    return package.with_suffix(".lock")


def _is_intact(package: Path) -> bool:
    try:
        return _digest_file(package).read_text().strip() == sha256_of(package)
    except (OSError, ValueError):  # a damaged file may not be text
        return False


def _compile_once(
    graph: TracedGraph,
    layouts: Sequence[tuple[Any, ...]],
    package: Path,
    announce: Callable[[str], None],
) -> None:
    """Compile, unless another process has done so by the time this one holds the lock."""

    def say_that_it_waits() -> None:
        announce("another process is compiling this update; waiting for it")

    with hold_lock(_lock_file(package), before_waiting=say_that_it_waits):
        if _is_intact(package):
            return
        operations = len(graph.module.graph.nodes)
        announce(
            f"compiling the update ({operations} operations): half a minute to some minutes, once; "
            f"it is kept in {package.parent}"
        )
        _compile(graph, layouts, package)


def _compile(graph: TracedGraph, layouts: Sequence[tuple[Any, ...]], package: Path) -> None:
    with ScratchFolder("compile") as scratch:
        made = scratch.path / "made.pt2"
        content = pickle.dumps((graph.module, list(layouts), torch.get_num_threads()))
        _run_worker(content, made)
        atomic_write_text(_digest_file(package), sha256_of(made))
        atomic_write(package, functools.partial(_copy, made))


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)


def _run_worker(content: bytes, made: Path) -> None:
    """The compiler in a separate process, with everything it starts."""
    worker = subprocess.Popen(
        python_command("metta.rl.compiled.worker", str(made)),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=made.parent,
        env=_compiler_environment(made.parent),
        start_new_session=True,
    )
    try:
        _, stderr = worker.communicate(content, timeout=_MAX_COMPILE_SECONDS)
    except BaseException:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.communicate()
        raise
    if worker.returncode:
        lines = [line for line in stderr.decode(errors="replace").splitlines() if line.strip()]
        why = next((line for line in reversed(lines) if "Error" in line), "".join(lines[-1:]))
        raise DriverError(f"the compiler failed ({worker.returncode}): {why.strip()[:500]}")


def _compiler_environment(folder: Path) -> dict[str, str]:
    """Keep what the compiler writes and reads, besides its own files and torch's, in `folder`."""
    programs = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return {
        **os.environ,
        "CXX": _find_compiler()[0],
        "PATH": os.pathsep.join(filter(os.path.isabs, programs)),
        "PYTHONSAFEPATH": "1",  # torch asks Python about the processor
        "PYTHONWARNINGS": "ignore",
        "TMPDIR": str(folder),
        "TORCHINDUCTOR_CACHE_DIR": str(folder),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # a pool of processes costs more than it saves
    }


def _forget_oldest(folder: Path) -> None:
    """Remove packages beyond those that are kept, and locks of missing packages; held locks stay."""
    packages = sorted(folder.glob("*.pt2"), key=lambda path: path.stat().st_mtime, reverse=True)
    for package in packages[_KEPT_PACKAGES:]:
        with hold_lock(_lock_file(package)) as is_ours:
            if is_ours:
                remove_file(package)
                remove_file(_digest_file(package))
    for lock in folder.glob("*.lock"):
        if not lock.with_suffix(".pt2").exists():
            with hold_lock(lock) as is_ours:
                if is_ours:
                    remove_file(lock)
