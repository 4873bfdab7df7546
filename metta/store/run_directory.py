"""The layout of a run's folder, and its lock."""

import contextlib
import datetime
import errno
import fcntl
import json
import os
import socket
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from metta.errors import ConfigError, RunLockedError, UnsafeFileError
from metta.file_locks import acquire_lock
from metta.untrusted.json_files import brief, read_json
from metta.untrusted.paths import safe_join

__all__ = ["RunDirectory", "run_around"]

_MAX_DEPTH = 5
"""Folders between a policy and its run, at most: one that waits for its score is in ``owed/<run id>``."""
_MAX_LOCK_BYTES = 4096
_WRITTEN_FOLDERS = ("checkpoints", "replays", "stats", "tensorboard", "wandb")
_WRITTEN_FILES = (
    "config.yaml", "provenance.json", "run.json", "events.jsonl", "metrics.csv", "evaluations.csv",
    "learning_curve.png", "run.lock",
)  # fmt: skip
_KINDS = {**dict.fromkeys(_WRITTEN_FOLDERS, True), **dict.fromkeys(_WRITTEN_FILES, False)}
"""metta's files and folders in a run, and whether each is a folder."""
_ABOUT_TEXTS = ("id", "name", "checkpoint_dir", "replay_dir", "own_environment", "own_policy")
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
"""Errors of file systems without locks."""
_NOT_ALLOWED = "you may not do that there: change its permissions, or choose another place"
_IN_THE_WAY = "move away what is in that place, or choose another one"
_TOO_MANY_FILES = "too many files are open: raise the limit (ulimit -n), or use fewer workers"
_ADVICE = {
    errno.ENOSPC: "the disk is full: free some space, or choose a place on another disk",
    errno.EDQUOT: "your quota is used up: free some space, or choose a place elsewhere",
    errno.EFBIG: "files may not be that large here: raise the limit (ulimit -f)",
    errno.EROFS: "the file system can only be read: choose another place",
    errno.EIO: "the disk does not answer as it should: choose a place on another disk",
    errno.EACCES: _NOT_ALLOWED,
    errno.EPERM: _NOT_ALLOWED,
    errno.ENOENT: "it is missing, or was removed meanwhile: put it back, or choose another place",
    errno.ENOTDIR: _IN_THE_WAY,
    errno.EISDIR: _IN_THE_WAY,
    errno.EEXIST: _IN_THE_WAY,
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EMFILE: _TOO_MANY_FILES,
    errno.ENFILE: _TOO_MANY_FILES,
    errno.ENOMEM: "free memory",
}
"""Advice for errors of the operating system, for any file."""


class RunDirectory:
    """The layout of a run's folder, and the lock that keeps a second trainer out.

        run = RunDirectory("runs/cartpole")
        with run.lock():
            run.metrics_file.write_text(...)

    Nothing is created before `acquire`. The lock belongs to the process: the system frees it when the
    process ends, however it ends, so there is nothing to clean up by hand.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        self._descriptor: int | None = None

    @property
    def name(self) -> str:
        """The folder's own name, which names the run."""
        return self.path.name

    @property
    def config_file(self) -> Path:
        """Settings of the run."""
        return self._inside("config.yaml")

    @property
    def provenance_file(self) -> Path:
        """Versions, machine and command."""
        return self._inside("provenance.json")

    @property
    def about_file(self) -> Path:
        """What the settings do not hold: where checkpoints are, and which parts are the user's own."""
        return self._inside("run.json")

    @property
    def events_file(self) -> Path:
        """What happened, one JSON object per line."""
        return self._inside("events.jsonl")

    @property
    def metrics_file(self) -> Path:
        """One line per record."""
        return self._inside("metrics.csv")

    @property
    def evaluations_file(self) -> Path:
        """One line of scores per evaluation in the background."""
        return self._inside("evaluations.csv")

    @property
    def curve_file(self) -> Path:
        """A picture of the returns."""
        return self._inside("learning_curve.png")

    @property
    def checkpoint_dir(self) -> Path:
        """One folder per checkpoint."""
        return self._inside("checkpoints")

    @property
    def replay_dir(self) -> Path:
        """Recorded episodes."""
        return self._inside("replays")

    @property
    def stats_dir(self) -> Path:
        """Statistics of evaluations."""
        return self._inside("stats")

    @property
    def tensorboard_dir(self) -> Path:
        """TensorBoard's files."""
        return self._inside("tensorboard")

    @property
    def lock_file(self) -> Path:
        """Held open by the running trainer; it remains afterwards, and means nothing unless locked."""
        return self._inside("run.lock")

    def about(self) -> dict[str, Any]:
        """The content of `about_file`; empty without a file, `ConfigError` if it cannot be used."""
        file = self.about_file
        if not os.path.lexists(file):
            return {}
        try:
            found = read_json(file)
        except UnsafeFileError as error:
            raise ConfigError(self._unusable(str(error))) from error
        kinds: dict[str, Any] = {
            **dict.fromkeys(_ABOUT_TEXTS, str | None),
            "environments": dict | None,
        }
        if not isinstance(found, dict):
            raise ConfigError(self._unusable(f"{str(file)!r} holds a {type(found).__name__}"))
        for name, kind in kinds.items():
            if not isinstance(found.get(name), kind):
                raise ConfigError(self._unusable(f"{name!r} is {brief(found[name])}"))
        return found

    def place(self, kind: str, advice: Callable[[str], str] | None = None) -> Path:
        """The run's ``checkpoint_dir`` or ``replay_dir``: the folder that it names, or the default.

        A folder outside of the run is a `ConfigError` with `advice` on how to name it: the files of a run
        are untrusted, and do not decide where metta reads, writes and removes.
        """
        usual = {"checkpoint_dir": self.checkpoint_dir, "replay_dir": self.replay_dir}[kind]
        named = self.about().get(kind)
        if named is None:
            return usual
        try:
            folder: Path = self.path / named  # or `named` alone, if it is absolute
            if folder.resolve().is_relative_to(self.path.resolve()):
                return folder
        except (OSError, RuntimeError, ValueError) as error:
            raise ConfigError(self._unusable(f"{kind!r} is {brief(named)}: {error}")) from error
        how = f"{kind}={str(folder)!r}" if advice is None else advice(str(folder))
        raise ConfigError(
            f"the run {str(self.path)!r} names the folder {str(folder)!r} as its {kind}, which is outside "
            f"of the run; metta uses such a folder only if you name it: {how}"
        )

    def _inside(self, name: str) -> Path:
        """A file or folder of the run; `UnsafeFileError` if a link leads out of it."""
        return safe_join(self.path, name)

    def _unusable(self, why: str) -> str:
        return (
            f"{str(self.about_file)!r} cannot be used: {why}; restore it from a copy, or remove it if "
            "the run has its checkpoints in the usual place"
        )

    @contextlib.contextmanager
    def lock(self) -> Iterator["RunDirectory"]:
        """Hold the run for a while; see `acquire`."""
        self.acquire()
        try:
            yield self
        finally:
            self.release()

    def acquire(self) -> None:
        """Create the folder, readable by its owner only, and take its lock.

        A folder that exists keeps its permissions. Raises `RunLockedError` if another trainer holds it,
        `ConfigError` if it cannot be written, and `UnsafeFileError` if a part of it is a link that leads
        out of it.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._refuse_links()
            self._try_to_write()
        except OSError as error:
            raise self._not_writable(error) from error
        try:
            # not inherited by the programs that this process starts: a worker must not outlive the lock
            self._descriptor = acquire_lock(self.lock_file)
        except BlockingIOError as error:
            raise RunLockedError(
                f"{str(self.path)!r} is in use by another trainer: {self._holder()}; wait until it ends, "
                "or choose another run directory"
            ) from error
        except OSError as error:
            raise self._not_locked(error) from error
        try:
            self._sign(self._descriptor)
        except BaseException:
            self.release()
            raise

    @contextlib.contextmanager
    def setting_up(self) -> Iterator[None]:
        """Turn an `OSError` while a run is set up into a `ConfigError` that says what to do."""
        try:
            yield
        except OSError as error:
            raise ConfigError(
                f"the run {str(self.path)!r} cannot be set up: {_described(error)}"
            ) from error

    def release(self) -> None:
        """Release the lock; may be called more than once."""
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # even if a forked child holds it open
            os.close(self._descriptor)
            self._descriptor = None

    def _refuse_links(self) -> None:
        """An untrusted run must not make metta write, cut or remove files elsewhere, or wait forever."""
        for path in self.path.iterdir():
            self._inside(path.name)
            # a link may be broken, e.g. that to an old checkpoint
            is_strange = not (path.is_symlink() or path.is_file() or path.is_dir())
            if (is_strange and os.path.lexists(path)) or (
                path.name in _KINDS and path.is_dir() is not _KINDS[path.name]
            ):
                kind = "folder" if _KINDS.get(path.name) else "file"
                raise UnsafeFileError(
                    f"{str(path)!r} is not a {kind}, which metta would write there; remove it from the run"
                )
        for folder in _WRITTEN_FOLDERS:
            for place, folders, files in os.walk(self.path / folder):
                for name in (*folders, *files):
                    if (found := Path(place) / name).is_symlink():
                        self._inside(str(found.relative_to(self.path)))

    def _sign(self, descriptor: int) -> None:
        """Write into the lock file who holds it."""
        started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        about = {"pid": os.getpid(), "started": started, "host": socket.gethostname()}
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(about).encode(), 0)
        except OSError as error:
            raise self._not_writable(error) from error

    def _holder(self) -> str:
        try:
            about = read_json(self.lock_file, max_bytes=_MAX_LOCK_BYTES)
            return f"process {about['pid']} on {about['host']}, since {about['started']}"
        except (UnsafeFileError, KeyError, TypeError):
            return "it has only just begun and has not written its process id yet"

    def _try_to_write(self) -> None:
        probe = self.path / f".tmp-{uuid.uuid4().hex}-probe"
        try:
            probe.write_text("x")
        finally:
            probe.unlink(missing_ok=True)

    def _not_writable(self, error: OSError) -> ConfigError:
        return ConfigError(
            f"the run directory {str(self.path)!r} cannot be written: {_described(error)}"
        )

    def _not_locked(self, error: OSError) -> ConfigError:
        if error.errno not in _NO_LOCKS:
            return self._not_writable(error)
        return ConfigError(
            f"the file system of {str(self.path)!r} has no locks (flock: {error.strerror}), so a second "
            "trainer could not be kept out of this run; choose a run directory on a local disk, or mount "
            "the file system with locks (NFS: with a lock service, without 'nolock')"
        )


def run_around(path: Path) -> Path | None:
    """The run that a policy is in; None if no folder around it has a ``config.yaml``."""
    around = [path, *path.parents][:_MAX_DEPTH]
    return next((folder for folder in around if (folder / "config.yaml").is_file()), None)


def _described(error: OSError) -> str:
    """The message of the operating system, which names the file, and advice."""
    advice = _ADVICE.get(error.errno or 0, "fix that, and start the run again")
    return f"{str(error) or type(error).__name__}; {advice}"
