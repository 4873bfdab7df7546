"""The separate process of `metta convert` that turns a pickle of tensors into safetensors.

It reads the pickle from its standard input and writes safetensors to its standard output. This is the
only place of metta that unpickles a file, and it does so with torch's restricted unpickler, with bounded
memory, time and output, and without network access if the kernel allows that.
"""

import ctypes
import os
import pickle
import re
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metta.errors import UnsafeFileError
from metta.nested import leaves

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["flatten", "main"]

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_CPU_SECONDS = 120
_SPARE_BYTES = 2**30
_MAX_DEPTH = 32
_MAX_TENSORS = 20_000


def main(part: str = "") -> int:
    """Convert standard input to standard output; returns the exit code, and prints errors to stderr."""
    _leave_network()  # before torch starts threads: the kernel requires a single one
    import safetensors.torch
    import torch

    _limit(os.fstat(0).st_size)
    try:
        loaded = torch.load(sys.stdin.buffer, map_location="cpu", weights_only=True)
        tensors = flatten(_part_of(loaded, part))
        if not tensors:
            raise UnsafeFileError("it holds 0 tensors")
        sys.stdout.buffer.write(safetensors.torch.save(tensors))
        sys.stdout.buffer.flush()
    except Exception as error:  # noqa: BLE001  # a hostile file may raise anything
        sys.stderr.write(f"{_explain(error)}\n")
        return 1
    return 0


def flatten(tree: Any) -> dict[str, "Tensor"]:
    """Copies of all tensors of nested mappings and sequences, with dotted names."""
    import torch

    found: dict[str, Tensor] = {}
    for path, leaf in leaves(tree, max_depth=_MAX_DEPTH):
        name = ".".join(map(str, path)) or "tensor"
        if not isinstance(leaf, torch.Tensor):
            raise UnsafeFileError(
                f"{name if path else 'its content'!r} is not a tensor, but of the type "
                f"{type(leaf).__name__}; if only a part of the file is tensors, name it: --part NAME"
            )
        if name in found:
            raise UnsafeFileError(f"two of its tensors would be called {name!r}")
        if len(found) == _MAX_TENSORS:
            raise UnsafeFileError(f"it holds more than {_MAX_TENSORS} tensors")
        found[name] = _plain(leaf, name)
    return found


def _plain(tensor: "Tensor", name: str) -> "Tensor":
    import torch

    from metta.store.safe_read import DTYPES

    if tensor.layout is not torch.strided or tensor.dtype not in DTYPES.values():
        raise UnsafeFileError(f"{name!r} is a {tensor.layout} tensor of {tensor.dtype}")
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _part_of(loaded: Any, part: str) -> Any:
    for key in part.split(".") if part else ():
        if not isinstance(loaded, dict) or key not in loaded:
            raise UnsafeFileError(f"it has no part {part!r}")
        loaded = loaded[key]
    return loaded


def _explain(error: Exception) -> str:
    """One line; torch's own advice, to read the file without restrictions, is not passed on."""
    if isinstance(error, UnsafeFileError):
        return str(error)
    named = re.search(r"GLOBAL ([\w.]{1,100})", str(error))
    if named:
        return f"it asks to run {named[1]}, which tensors do not need"
    if isinstance(error, pickle.UnpicklingError):
        return "its pickle does more than build tensors, and such files are refused"
    if isinstance(error, MemoryError) or "allocate memory" in str(error):
        return "it needs more memory than its size allows"
    return f"it is damaged, or not a file of torch.save ({type(error).__name__})"


def _limit(size: int) -> None:
    """Bound memory, time, output, new processes and dumps; nothing can raise the bounds again."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    used = pages * resource.getpagesize()
    limits = {
        resource.RLIMIT_AS: used + _SPARE_BYTES + 6 * size,
        resource.RLIMIT_FSIZE: 2 * size + _SPARE_BYTES,
        resource.RLIMIT_CPU: _CPU_SECONDS,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_CORE: 0,
    }
    for limit, value in limits.items():
        _, hard = resource.getrlimit(limit)
        bounded = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (bounded, bounded))


def _leave_network() -> bool:
    """Move this process into an empty network namespace; False if the kernel forbids it."""
    return bool(ctypes.CDLL(None).unshare(_CLONE_NEWUSER | _CLONE_NEWNET) == 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
