"""Opening untrusted files, and refusing those that hold code, by content and not by name."""

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from metta.errors import UnsafeFileError

__all__ = ["open_regular", "read_bounded", "refuse_code", "sha256_in"]

_HEAD, _TAIL = 16 * 2**10, 66 * 2**10
_MAGICS = {
    b"PK\x03\x04": "a zip archive, as torch.save writes",
    b"PK\x05\x06": "a zip archive",
    b"\x93NUMPY": "a NumPy file, which may hold pickled objects",
    b"\x1f\x8b": "a compressed file",
    b"BZh": "a compressed file",
    b"\xfd7zXZ": "a compressed file",
    b"\x28\xb5\x2f\xfd": "a compressed file",
}
_PICKLED = re.compile(rb"\x80[\x00-\x05](?!\x00\x00\x00)")
_GLOBAL = re.compile(rb"[ci][A-Za-z_][\w.]{0,99}+\n[A-Za-z_][\w.]{0,99}+\n")
"""How a pickle of protocol 0 or 1 names what it calls; bounded, so that the search is quick."""
_FIRST_OPCODES = b"(])}lcIJKLMNSVUXFG"
_CONTROL = re.compile(rb"[\x00-\x1f]")


def refuse_code(path: str | os.PathLike[str], stream: BufferedReader, size: int) -> None:
    """`UnsafeFileError` if an open file is a pickle, or an archive that may hold one.

    Nothing is ever unpickled here; this only distinguishes such files from damaged ones, by content. The
    stream is at its beginning again afterwards.
    """
    kind = _kind(*_ends(stream, size))
    if kind:
        raise UnsafeFileError(
            f"{os.fspath(path)!r} is {kind}. Such files can run any program when they are opened; metta "
            "reads safetensors and JSON only. If torch.save wrote it, and you trust who made it, convert "
            "it: metta convert --i-trust-this-file SOURCE.pt TARGET.safetensors"
        )


@contextmanager
def open_regular(
    path: str | os.PathLike[str], *, follow_symlink: bool = True
) -> Iterator[tuple[BufferedReader, int]]:
    """A file and its size; pipes and devices, which may never end, are refused."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        if not follow_symlink and Path(path).is_symlink():
            raise UnsafeFileError(f"{os.fspath(path)!r} is a symbolic link; use a regular file")
        descriptor = os.open(path, flags if follow_symlink else flags | os.O_NOFOLLOW)
    except (OSError, ValueError) as error:  # ValueError: a null in the path
        raise UnsafeFileError(f"{os.fspath(path)!r} cannot be read: {error}") from error
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode):
        os.close(descriptor)
        raise UnsafeFileError(f"{os.fspath(path)!r} is not a regular file")
    with open(descriptor, "rb") as stream:  # noqa: PTH123  # a descriptor has no path
        try:
            yield stream, about.st_size
        except OSError as error:
            raise UnsafeFileError(f"{os.fspath(path)!r} cannot be read: {error}") from error


def read_bounded(path: str | os.PathLike[str], max_bytes: int) -> bytes:
    """All of a regular file; `UnsafeFileError` if it has more than `max_bytes`."""
    with open_regular(path) as (stream, _):
        content = stream.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise UnsafeFileError(
            f"{os.fspath(path)!r} is larger than {max_bytes:,} bytes, and is not read"
        )
    return content


def sha256_in(stream: BufferedReader) -> str:
    """Hex digest of all bytes of an open file, read in blocks."""
    stream.seek(0)
    return hashlib.file_digest(stream, "sha256").hexdigest()


def _ends(stream: BufferedReader, size: int) -> tuple[bytes, bytes]:
    stream.seek(0)
    head = stream.read(_HEAD)
    stream.seek(max(size - _TAIL, 0))
    tail = stream.read(_TAIL)
    stream.seek(0)
    return head, tail


def _kind(head: bytes, tail: bytes) -> str | None:
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 2**32:
        return None  # safetensors: the length of its header may look like a pickle's first bytes
    for magic, kind in _MAGICS.items():
        if head.startswith(magic):
            return kind
    if head[257:262] == b"ustar":
        return "a tar archive"
    if _PICKLED.match(head):
        return f"a pickle of protocol {head[1]}"
    if _is_old_pickle(head, tail):
        return "a pickle of protocol 0 or 1"
    if b"PK\x05\x06" in tail and b"PK\x01\x02" in tail:
        return "a zip archive after other bytes"
    return None


def _is_old_pickle(head: bytes, tail: bytes) -> bool:
    """Protocols 0 and 1 have no magic number: they begin with an opcode, and end with a dot.

    JSON does neither, and has no line break within a text.
    """
    stops = tail.rstrip(b"\0 \r\n").endswith(b".")
    return bool(_GLOBAL.search(head)) or (
        stops and head[:1] in _FIRST_OPCODES and bool(_CONTROL.search(head))
    )
