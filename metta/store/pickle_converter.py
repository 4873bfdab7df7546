"""Converts a trusted pickle to a safetensors file, in a separate process."""

import os
import shutil
import subprocess
import sys

from metta.errors import UnsafeFileError
from metta.files import atomic_write
from metta.private_folders import temporary_folder
from metta.store.safe_read import TensorFile, check_tensor_file
from metta.untrusted.files import open_regular

__all__ = ["convert_pickle"]

_SECONDS = 600


def convert_pickle(
    source: str | os.PathLike[str], target: str | os.PathLike[str], *, part: str | None = None
) -> TensorFile:
    """Write the tensors of a `torch.save` file as safetensors, named by their path, e.g. ``layer.0.bias``.

    `part` selects one entry of the file, e.g. ``model_state_dict``. Anything but tensors is an
    `UnsafeFileError`, and so is what torch's restricted unpickler refuses: nothing is read without it.
    """
    command = [sys.executable, "-I", "-m", "metta.store.unpickling", *([part] if part else [])]
    with (
        open_regular(source) as (stream, _),
        temporary_folder("convert") as folder,
    ):
        converted = folder / "tensors"
        with converted.open("wb") as output:
            try:
                ended = subprocess.run(
                    command,
                    stdin=stream, stdout=output, stderr=subprocess.PIPE,
                    cwd=folder, env={"OMP_NUM_THREADS": "1"}, timeout=_SECONDS, check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired as error:
                raise _refused(source, f"it took more than {_SECONDS} seconds") from error
        if ended.returncode:
            lines = ended.stderr.decode(errors="replace").strip().splitlines()
            by_signal = f"its process ended by signal {-ended.returncode}"
            raise _refused(source, by_signal if ended.returncode < 0 or not lines else lines[-1])
        found = check_tensor_file(converted)  # the output of such a process is not trusted either
        atomic_write(target, lambda place: shutil.copyfile(converted, place))
    return found


def _refused(source: str | os.PathLike[str], why: str) -> UnsafeFileError:
    return UnsafeFileError(f"{os.fspath(source)!r} was not converted: {why[:400]}")
