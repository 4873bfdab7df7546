"""Compiles one graph in a separate process: ``python -m metta.rl.compiled.worker PACKAGE < GRAPH``.

The compiler takes memory and starts helpers; both go away with the process.
"""

import ctypes
import os
import pickle
import signal
import sys
from typing import Any

import torch
import torch._higher_order_ops.triton_kernel_wrap  # unpickling graphs looks for it

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1


def main(package_path: str) -> None:
    """Read a pickled graph and the layout of its inputs from the parent, and write a package."""
    _end_with_the_parent()
    graph, layouts, threads = pickle.load(sys.stdin.buffer)
    # the number of threads becomes part of the code
    torch.set_num_threads(threads)
    exported = torch.export.export(graph, tuple(_empty(layout) for layout in layouts))
    # precompiled headers serve many compilations; this process has one
    settings = {"aot_inductor.precompile_headers": False}
    torch._inductor.aoti_compile_and_package(
        exported, package_path=package_path, inductor_configs=settings
    )


def _end_with_the_parent() -> None:
    """Where the system can: a trainer that is killed leaves no compiler behind."""
    if sys.platform == "linux":
        signal.signal(signal.SIGTERM, _end_all)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _end_all(*_: object) -> None:
    """This process leads a group: the compilers that it started end with it."""
    os.killpg(0, signal.SIGKILL)


def _empty(layout: tuple[Any, ...]) -> torch.Tensor:
    shape, stride, dtype, device = layout
    return torch.empty_strided(shape, stride, dtype=dtype, device=device).zero_()


if __name__ == "__main__":
    main(*sys.argv[1:])
