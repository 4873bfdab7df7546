"""Policies that are artifacts of Weights & Biases: downloaded into a cache, as untrusted files."""

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from metta.errors import MissingExtraError, PolicyError, UnsafeFileError
from metta.files import make_durable, make_folders, rename
from metta.private_folders import cache_root
from metta.store.checkpoints.manifest import POLICY_FILE
from metta.store.policies.file import read_policy_manifest
from metta.untrusted.files import open_regular
from metta.untrusted.json_files import brief
from metta.untrusted.paths import NAME

__all__ = ["MAX_BYTES", "ArtifactApi", "download_policy", "open_api"]

MAX_BYTES = 4 * 2**30
"""Largest policy file that is downloaded."""
_SECONDS = 30
"""How long the server may take for an answer."""
_SCHEME = "wandb://"
_VERSION = re.compile(r"v[0-9]{1,15}")
"""A version has fixed content; an alias may move."""
_WHAT_TO_DO = (
    "check the network and the name, run `wandb login` or set WANDB_API_KEY, or download "
    "the file yourself and give its path"
)


class ArtifactApi(Protocol):
    """The part of ``wandb.Api`` that metta uses."""

    def artifact(self, name: str) -> Any:
        """An artifact with `version`, `manifest.entries` and `get_entry(name).download(folder)`."""
        ...


class _Address(NamedTuple):
    path: tuple[str, ...]
    """Entity, which may be left out, and project."""
    artifact: str
    version: str

    @property
    def name(self) -> str:
        return "/".join([*self.path, f"{self.artifact}:{self.version}"])


def download_policy(
    uri: str, *, cache: str | os.PathLike[str] | None = None, api: ArtifactApi | None = None
) -> Path:
    """The policy file of ``wandb://entity/project/artifact:version``, in a folder of this machine.

    A version such as ``v3`` is downloaded once, an alias such as ``latest`` is looked up each time. One
    file is downloaded; it must be a policy file of metta, of up to `MAX_BYTES`, as `CheckpointHook` uploads
    it. Needs the extra `wandb`; without network or login it is a `PolicyError`.
    """
    address = _parse(uri)
    root = cache_root() / "wandb" if cache is None else Path(cache)
    known = _place(root, address, address.version)
    if _VERSION.fullmatch(address.version) and known.is_file():
        return known
    with _service_errors(uri):
        found = (api or open_api()).artifact(address.name)
        version, entries = str(found.version), dict(found.manifest.entries)
    if not _VERSION.fullmatch(version):
        raise PolicyError(f"{uri!r} names an artifact without a version: {brief(version)}")
    target = _place(root, address, version)
    if not target.is_file():
        name = _file_in(uri, entries)
        try:
            make_folders(target.parent)
            _fetch(uri, found, name, target)
        except OSError as error:
            raise PolicyError(
                f"{uri!r} cannot be kept in {str(root)!r}: {error}; METTA_CACHE_DIR names another folder"
            ) from error
    return target


def open_api() -> ArtifactApi:
    """The real ``wandb.Api``; extra `wandb`."""
    try:
        import wandb  # an extra, and slow to import
    except ImportError as error:
        raise MissingExtraError("wandb", "wandb", "a policy of Weights & Biases") from error
    api: ArtifactApi = wandb.Api(timeout=_SECONDS)
    return api


def _parse(uri: str) -> _Address:
    path, _, version = uri.removeprefix(_SCHEME).rpartition(":")
    parts = path.split("/")
    if len(parts) not in (2, 3) or not all(map(NAME.fullmatch, [*parts, version])):
        raise PolicyError(
            f"{uri[:200]!r} is not an artifact; write wandb://entity/project/artifact:version, e.g. "
            "wandb://me/metta/policy-1a2b:latest"
        )
    return _Address(tuple(parts[:-1]), parts[-1], version)


def _place(root: Path, address: _Address, version: str) -> Path:
    return root.joinpath(*address.path, address.artifact, version, POLICY_FILE)


def _file_in(uri: str, entries: Mapping[str, Any]) -> str:
    """The name of the one policy file of an artifact; it never decides where the file is stored."""
    named = [name for name in entries if name.endswith(".safetensors")]
    name = POLICY_FILE if POLICY_FILE in entries else named[0] if len(named) == 1 else None
    if name is None:
        raise PolicyError(
            f"{uri!r} has the files {brief(sorted(entries))}; it needs {POLICY_FILE!r}, or one other "
            "safetensors file: metta reads no pickles"
        )
    if not NAME.fullmatch(name):
        raise PolicyError(f"{uri!r} has the file {brief(name)}, which is not a plain name")
    size, reference = getattr(entries[name], "size", None), getattr(entries[name], "ref", None)
    if reference is not None:
        raise PolicyError(
            f"{uri!r} only refers to {brief(reference)}; files elsewhere are not read"
        )
    if isinstance(size, int) and size > MAX_BYTES:
        raise PolicyError(f"{uri!r} has a file of {size} bytes; up to {MAX_BYTES} are downloaded")
    return name


def _fetch(uri: str, artifact: Any, name: str, target: Path) -> None:
    """Download a file under a temporary name, check that it is a policy, and only then rename it."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".tmp-") as folder:
        with _service_errors(uri):
            artifact.get_entry(name).download(folder)
        file = Path(folder) / name
        try:
            with open_regular(file, follow_symlink=False) as (_, size):
                if size > MAX_BYTES:
                    raise UnsafeFileError(f"it has {size} bytes; up to {MAX_BYTES} are taken")
        except UnsafeFileError as error:
            raise PolicyError(f"{uri!r} is not used: {error}") from error
        read_policy_manifest(file)  # refuses pickles, and files that are not policies of metta
        make_durable(file)
        rename(file, target)


@contextmanager
def _service_errors(uri: str) -> Iterator[None]:
    """Raise the service's failures as metta's errors, with advice."""
    try:
        yield
    except Exception as error:
        is_theirs = type(error).__module__.startswith(("wandb", "requests"))
        if is_theirs or isinstance(error, OSError | ValueError | KeyError):
            raise PolicyError(f"{uri!r} cannot be downloaded: {error}; {_WHAT_TO_DO}") from error
        raise
