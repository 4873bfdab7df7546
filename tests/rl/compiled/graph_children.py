"""What forked processes of `test_graph_cache` do."""

import os
import time
from pathlib import Path

import torch

from metta.rl.compiled import cache as graph_cache
from metta.rl.compiled.cache import compile_graph
from metta.rl.compiled.trace import TracedGraph, trace


def _graph() -> TracedGraph:
    return trace(lambda x: (x * 2.0,), [torch.ones(3)])


def compile_one(compiler: str, cache: str) -> None:
    """Compile a graph with this compiler."""
    os.environ.update({"CXX": compiler, "METTA_CACHE_DIR": cache})
    compile_graph(_graph(), [torch.ones(3)], print)


def compile_in_turn(said: str, cache: str, go: str) -> None:
    """Compile a graph by waiting for a file; all that is told of it is written down."""
    os.environ["METTA_CACHE_DIR"] = cache

    def say(text: object) -> None:
        with Path(said).open("a") as file:
            file.write(f"{text}\n")

    def compile_slowly(_: bytes, made: Path) -> None:
        made.write_bytes(b"code")
        while not Path(go).exists():
            time.sleep(0.01)

    graph_cache._run_worker = compile_slowly
    graph_cache.CompiledGraph = lambda package, _: package.read_bytes()  # type: ignore[assignment,misc]  # no real code
    say(compile_graph(_graph(), [torch.ones(3)], say))
