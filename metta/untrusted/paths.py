"""Untrusted names and paths: a name is a single file or folder, and a path stays below its root."""

import os
import re
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

from metta.errors import ConfigError, PolicyError, UnsafeFileError

__all__ = ["NAME", "check_name", "path_of", "plain_path", "safe_join"]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""A name of a run or a policy: never a path, a hidden file or an option."""
_HIDDEN = re.compile(r"%(?:2e|2f|00)", re.IGNORECASE)
"""Dots, slashes and nulls that are written as codes, which only an attack needs."""


def check_name(name: str, what: str) -> str:
    """`name`, or a `ConfigError` that begins with `what` and says what names look like."""
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{what} {name[:200]!r} is not a name of a file or folder; use up to 128 letters, digits and . "
            "_ - that begin with a letter or digit"
        )
    return name


def safe_join(root: str | os.PathLike[str], *parts: str) -> Path:
    """The path of `parts` below `root`; `UnsafeFileError` if it is elsewhere, also by a link.

    The root itself may be reached by links: the caller chose it.
    """
    base = Path(root)
    place = base.joinpath(*parts)
    if any(not _names_something(part) or ".." in Path(part).parts for part in parts):
        raise UnsafeFileError(f"{'/'.join(parts)[:200]!r} is not a path below {str(base)!r}")
    try:
        inside = place.resolve().is_relative_to(base.resolve())
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise UnsafeFileError(f"{str(place)[:400]!r} cannot be followed: {error}") from error
    if not inside:
        raise UnsafeFileError(
            f"{str(place)[:400]!r} leads out of {str(base)!r} to {str(place.resolve())[:400]!r}; it is "
            "not read"
        )
    return place


def _names_something(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:  # half a character
        return False


def plain_path(path: str | os.PathLike[str]) -> Path:
    """An absolute path without ``..``; links are followed only if it has one."""
    absolute = Path(path).absolute()
    return absolute.resolve() if ".." in absolute.parts else absolute


def path_of(uri: str) -> Path:
    """The path of ``file://...``, or a bare path, made absolute."""
    if not _names_something(uri):
        raise PolicyError(f"{uri[:200]!r} has a character in it that no file's name has")
    if not uri.startswith("file://"):
        return plain_path(uri)
    try:
        parts = urlsplit(uri)
    except ValueError as error:
        raise PolicyError(f"{uri[:200]!r} is not a file:// URI: {error}") from error
    if parts.netloc not in ("", "localhost"):
        raise PolicyError(
            f"{uri[:200]!r} names the host {parts.netloc[:200]!r}; files are read from this machine only: "
            "file:///folder/..."
        )
    path = Path(os.fsdecode(unquote_to_bytes(parts.path)))
    if parts.query or parts.fragment or _HIDDEN.search(parts.path) or ".." in path.parts:
        raise PolicyError(
            f"{uri[:200]!r} is not a plain file:// URI; write the path as it is, without .. or a query, "
            "and with codes for special characters only"
        )
    return path.absolute()
