"""Where everything of a run lies, and who is at work there."""

import contextlib
import datetime
import errno
import fcntl
import json
import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

from metta.errors import ConfigError, RunLockedError, UnsafeFileError
from metta.untrusted.json_files import read_json
from metta.untrusted.paths import safe_join

__all__ = ["RunDirectory"]

_MOST_LOCK_BYTES = 4096
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
"""How file systems without locks answer."""
_ADVICE = {
    errno.ENOSPC: "the disk is full: free some space, or choose a run directory on another disk",
    errno.EDQUOT: "your quota is used up: free some space, or choose a run directory elsewhere",
    errno.EFBIG: "files may not be that large here: raise the limit (ulimit -f)",
    errno.EROFS: "the file system can only be read: choose another run directory",
    errno.EIO: "the disk does not answer as it should: choose a run directory on another disk",
}


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
        return self.path / "config.yaml"

    @property
    def provenance_file(self) -> Path:
        """Versions, machine and command."""
        return self.path / "provenance.json"

    @property
    def about_file(self) -> Path:
        """What the settings do not say: where checkpoints are, and which parts are the user's own."""
        return self.path / "run.json"

    @property
    def events_file(self) -> Path:
        """What happened, one JSON object per line."""
        return self.path / "events.jsonl"

    @property
    def metrics_file(self) -> Path:
        """One row of numbers per report."""
        return self.path / "metrics.csv"

    @property
    def curve_file(self) -> Path:
        """A picture of the returns."""
        return self.path / "learning_curve.png"

    @property
    def checkpoint_dir(self) -> Path:
        """One folder per checkpoint."""
        return self.path / "checkpoints"

    @property
    def replay_dir(self) -> Path:
        """Recorded episodes."""
        return self.path / "replays"

    @property
    def stats_dir(self) -> Path:
        """Statistics of evaluations."""
        return self.path / "stats"

    @property
    def tensorboard_dir(self) -> Path:
        """TensorBoard's files."""
        return self.path / "tensorboard"

    @property
    def wandb_dir(self) -> Path:
        """Weights & Biases' files."""
        return self.path / "wandb"

    @property
    def lock_file(self) -> Path:
        """Held open by the trainer at work; it stays behind, and means nothing unless it is locked."""
        return self.path / "run.lock"

    @contextlib.contextmanager
    def lock(self) -> Iterator["RunDirectory"]:
        """Hold the run for a while; see `acquire`."""
        self.acquire()
        try:
            yield self
        finally:
            self.release()

    def acquire(self) -> None:
        """Create the folder, for its owner's eyes only, and take its lock.

        A folder that exists keeps its permissions. Raises `RunLockedError` where another trainer holds
        it, `ConfigError` where it cannot be written, and `UnsafeFileError` where a part of it is a link
        that leads out of it.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._refuse_links()
            self._try_to_write()
            # not inherited by the programs that this process starts: a worker must not outlive the lock
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(self.lock_file, flags, 0o644)
        except OSError as error:
            raise self._not_writable(error) from error
        try:
            self._take(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Turn an `OSError` of what is written here into a `ConfigError` that says what to do."""
        try:
            yield
        except OSError as error:
            raise self._not_writable(error) from error

    def release(self) -> None:
        """Let others have the run; may be called more than once."""
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # also where a forked child holds it open
            os.close(self._descriptor)
            self._descriptor = None

    def _refuse_links(self) -> None:
        """A run from others must not make us write, cut or remove files that lie elsewhere."""
        for path in self.path.iterdir():
            if path.is_symlink():
                safe_join(self.path, path.name)

    def _take(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunLockedError(
                f"{str(self.path)!r} is in use by another trainer: {self._holder()}; wait until it ends, "
                "or choose another run directory"
            ) from error
        except OSError as error:
            raise self._not_locked(error) from error
        started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        about = {"pid": os.getpid(), "started": started, "host": socket.gethostname()}
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(about).encode(), 0)
        except OSError as error:
            raise self._not_writable(error) from error

    def _holder(self) -> str:
        try:
            about = read_json(self.lock_file, max_bytes=_MOST_LOCK_BYTES)
            return f"process {about['pid']} on {about['host']}, since {about['started']}"
        except (UnsafeFileError, KeyError, TypeError):
            return "it has only just begun and did not say yet who it is"

    def _try_to_write(self) -> None:
        probe = self.path / f".tmp-{uuid.uuid4().hex}-probe"
        try:
            probe.write_text("x")
        finally:
            probe.unlink(missing_ok=True)

    def _not_writable(self, error: OSError) -> ConfigError:
        advice = _ADVICE.get(error.errno or 0, "choose another one, or mend its permissions")
        return ConfigError(
            f"the run directory {str(self.path)!r} cannot be written: {error}; {advice}"
        )

    def _not_locked(self, error: OSError) -> ConfigError:
        if error.errno not in _NO_LOCKS:
            return self._not_writable(error)
        return ConfigError(
            f"the file system of {str(self.path)!r} has no locks (flock: {error.strerror}), so a second "
            "trainer could not be kept out of this run; choose a run directory on a local disk, or mount "
            "the file system with locks (NFS: with a lock service, without 'nolock')"
        )
