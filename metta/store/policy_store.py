"""`PolicyStore`: saved policies, found by path, by URI or by run."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
from torch import nn

from metta.agent.policy import Policy
from metta.agent.policy_record import PolicyRecord
from metta.errors import CheckpointError, PolicyError, UnsafeFileError, did_you_mean
from metta.store.checkpoints.files import (
    MANIFEST_FILE,
    POLICY_FILE,
    CheckpointEntry,
    checkpoint_folders,
    plain_metadata,
    score_of,
    survey_checkpoints,
)
from metta.store.checkpoints.late_scores import with_late_scores
from metta.store.checkpoints.listing import listing_anew, reading
from metta.store.checkpoints.manifest import check_content, entry_of, read_manifest
from metta.store.checkpoints.retention import best_first, best_of
from metta.store.policies.file import FrozenPolicy, open_policy, read_policy_manifest, save_policy
from metta.store.policies.rebuilding import HeldPolicy, spaces_of
from metta.store.run_directory import RunDirectory
from metta.store.wandb_artifacts import download_policy
from metta.untrusted.paths import NAME, check_name, path_of, plain_path, safe_join

__all__ = ["PolicyStore", "path_of", "record_of_checkpoint", "spaces_of", "store_in"]

_SUFFIX = ".safetensors"
_SELECTOR = re.compile(r"(?P<run>.+):(?P<which>latest|best|v?[0-9]{1,15})", re.DOTALL)
_RUN = re.compile(rf"{NAME.pattern}(?:/{NAME.pattern})?")
"""A run below `root`, or one of a sweep: ``first/t003-s1``."""
_ANY = "any"
"""What a name without a choice means: the best policy, or the latest if none has a score."""


class PolicyStore:
    """Policies in a folder: separate files, and those inside checkpoints.

        store = PolicyStore("runs/cartpole/checkpoints")
        record = store.save(policy, "cartpole", epoch=120, agent_step=61_440, metadata={"score": 1.0})
        record = store.load(record.uri, env="CartPole-v1")       # record.policy acts

    A policy is named by its path or ``file://...`` (a policy file or a checkpoint), by
    ``wandb://entity/project/artifact:version``, or by its run: ``RUN:latest``, ``RUN:best``, ``RUN:v120``
    (its epoch), or ``RUN``, which is its best policy, or the latest if none has a score. RUN is the
    name of a run below `root`, that of a sweep's run (``first/t003-s1``), or the path of any folder of a
    run, of checkpoints or of policies.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = plain_path(root)

    def save(
        self,
        policy: Policy | FrozenPolicy,
        name: str,
        epoch: int,
        agent_step: int = 0,
        metadata: Mapping[str, Any] | None = None,
    ) -> PolicyRecord:
        """Write a policy as ``<name>_000120.safetensors``; one of the same name and epoch is replaced.

        `metadata` is plain data. With the agent's settings under ``agent`` and a ``score`` the policy can
        be rebuilt from the file alone and take part in `best`.
        """
        check_name(name, "the policy's name")
        about = plain_metadata(metadata or {})
        about |= {"name": name, "epoch": int(epoch), "agent_step": int(agent_step)}
        target = self.root / f"{name}_{epoch:06d}{_SUFFIX}"
        try:
            save_policy(target, policy, about)
        except (OSError, safetensors.SafetensorError) as error:
            raise CheckpointError(
                f"the policy {str(target)!r} could not be written: {error}"
            ) from error
        return _record_of_file(target, read_policy_manifest(target))

    def list(self) -> Sequence[PolicyRecord]:
        """Records of every readable policy here, by epoch; policies are not loaded.

        A checkpoint that was scored after it was written has that score in its metadata.
        """
        return self.survey()[0]

    def survey(self) -> tuple[Sequence[PolicyRecord], Sequence[Path]]:
        """What `list` returns, and the folders of checkpoints that cannot be read."""
        found, unreadable = survey_checkpoints(self.root)
        records = [record_of_checkpoint(one) for one in with_late_scores(self.root, found)]
        for path in sorted(self.root.glob(f"*{_SUFFIX}")):
            try:
                records.append(_record_of_file(path, read_policy_manifest(path)))
            except PolicyError:  # another kind of file: a rollout, for example
                continue
        records.sort(key=lambda record: (record.epoch, record.agent_step))
        return records, unreadable

    def latest(self) -> PolicyRecord | None:
        """The record of the last epoch, or None if there is none."""
        return next(reversed(self.list()), None)

    def best(self) -> PolicyRecord | None:
        """The record with the highest `score` in its metadata; None if nothing was scored."""
        return best_of(self.list())

    def top(self, count: int) -> Sequence[PolicyRecord]:
        """The `count` best records, as `best_first` orders them."""
        return list(islice(best_first(self.list()), max(count, 0)))

    def find(self, uri: str | os.PathLike[str], *, sha256: str | None = None) -> PolicyRecord:
        """The record that a URI, path or selector names; the policy is not loaded.

        `sha256` pins the policy's file: one with another digest is refused.
        """
        with self.hold(uri, sha256=sha256) as held:
            return held.record

    @contextmanager
    def hold(
        self, uri: str | os.PathLike[str], *, sha256: str | None = None
    ) -> Iterator[HeldPolicy]:
        """Find a policy, and hold its file open: it can be read to the end even if a trainer removes it.

        If it vanishes between listing and opening, the folder is listed again.
        """
        place = self._place(str(uri))
        stack = ExitStack()  # closed without the error of the body, which is not about the file
        try:
            yield listing_anew(lambda: _opened(place.find(), sha256, stack))
        finally:
            stack.close()

    def load(
        self,
        uri: str | os.PathLike[str],
        env: Any = None,
        policy: nn.Module | None = None,
        *,
        sha256: str | None = None,
    ) -> PolicyRecord:
        """The record with its policy, rebuilt or put into `policy`.

        `env` is anything that has or makes spaces: an id, an environment, a `VecEnv`; without it, those in
        the file are taken. Built-in agents are rebuilt from the settings in the file; pass your own
        module as `policy`. `sha256` pins the policy's file, as for `find`.
        """
        with self.hold(uri, sha256=sha256) as held:
            return held.load(env, policy)

    def _place(self, uri: str) -> "_Place":
        scheme, separator, _ = uri.partition("://")
        if scheme == "wandb" and separator:
            return _Place(uri, download_policy(uri))
        if separator and scheme != "file":
            raise PolicyError(
                f"{uri[:200]!r} has the scheme {scheme[:40]!r}; policies are read from file://..., from a "
                "path, from wandb://..., or by run:latest, run:best and run:v120"
            )
        selector = _SELECTOR.fullmatch(uri)
        if selector is not None and ".." in Path(selector["run"]).parts:
            raise PolicyError(
                f"{uri[:200]!r} leads out of a folder by '..'; give the path of the policy itself, or "
                "that of the run without '..'"
            )
        try:
            path = self._existing(uri)
            if path is not None:
                return _Place(uri, path)
            folder = None if selector is None else self._existing(selector["run"])
            if selector is not None and folder is not None and folder.is_dir():
                return _Place(uri, folder, selector["which"])
        except OSError as error:  # a name that is too long, for example
            raise PolicyError(f"{uri[:200]!r} names no policy: {error.strerror}") from error
        raise self._unknown(uri if selector is None else selector["run"], uri)

    def _existing(self, name: str) -> Path | None:
        """The path, or the run below `root`, of a name; a run comes before a folder without policies."""
        path = path_of(name)
        run = self.root / name if _RUN.fullmatch(name) else None
        if run is not None and run.is_dir() and not (path.is_dir() and _has_policies(path)):
            path = path if path.is_file() else run
        if not path.exists():
            return None
        # a link that the user names is followed, those inside of folders are not
        return path.resolve() if path.is_symlink() else path

    def _unknown(self, name: str, uri: str) -> PolicyError:
        """The one error of names that mean nothing."""
        sweep = Path(name).parent.name if _RUN.fullmatch(name) and "/" in name else ""
        files = sorted((self.root / sweep).glob("*/config.yaml"))
        known = [file.parent.relative_to(self.root).as_posix() for file in files]
        return PolicyError(
            f"there is no policy {uri!r}: neither {name!r} nor {str(self.root / name)!r} exists"
            f"{did_you_mean(name, known)}; give the path of a policy, a checkpoint or a run, or RUN, "
            "RUN:best, RUN:latest or RUN:v120"
        )

    def choice_for(self, uri: str, record: PolicyRecord) -> str:
        """A line that says which policy a name without a choice means; empty if it leaves none."""
        named = self._place(uri)
        if named.which != _ANY or not named.path.is_dir() or named.path == path_of(record.uri):
            return ""
        score = score_of(record.metadata)
        if score is None:
            return f"{uri}: taking its latest policy, epoch {record.epoch}; none has a score"
        return f"{uri}: taking its best policy, epoch {record.epoch} (score {score:.4g})"


class _Place(NamedTuple):
    """Where a policy is searched, possibly several times."""

    uri: str
    """As the caller gave it."""
    path: Path
    """A policy's file, a checkpoint, or a folder of either."""
    which: str = _ANY
    """``latest``, ``best``, ``v120`` or `_ANY`, of a folder."""

    def find(self) -> Path:
        """A policy's file or a checkpoint."""
        if not self.path.is_dir() or _is_checkpoint(self.path):
            return self.path
        try:  # an untrusted run may hold links
            found = path_of(_selected(store_in(self.path), self.uri, self.which).uri)
            safe_join(self.path, os.path.relpath(_file_in(found), self.path))
        except UnsafeFileError as error:
            raise PolicyError(f"{self.uri!r} names no policy: {error}") from error
        return found


def _opened(path: Path, sha256: str | None, stack: ExitStack) -> HeldPolicy:
    """What a path holds, verified and held open by `stack`."""
    with reading(path):
        if _is_checkpoint(path) or (path.name == POLICY_FILE and _is_checkpoint(path.parent)):
            folder = path.parent if path.name == POLICY_FILE else path
            manifest = read_manifest(folder)
            opened = stack.enter_context(open_policy(folder / POLICY_FILE, sha256=sha256))
            check_content(opened.path, opened.tensors.stream, opened.tensors.size, manifest)
            (entry,) = with_late_scores(folder.parent, [entry_of(folder, manifest)])
            return HeldPolicy(record_of_checkpoint(entry), opened)
        opened = stack.enter_context(open_policy(path, sha256=sha256))
        return HeldPolicy(_record_of_file(path, opened.manifest), opened)


def record_of_checkpoint(entry: CheckpointEntry) -> PolicyRecord:
    """The policy inside a checkpoint, as a record."""
    name = entry.metadata.get("name") or entry.path.name
    uri = plain_path(entry.path).as_uri()
    return PolicyRecord(uri, str(name), entry.epoch, entry.agent_step, dict(entry.metadata))


def _record_of_file(path: Path, manifest: Mapping[str, Any]) -> PolicyRecord:
    metadata = manifest["metadata"]
    name = str(metadata.get("name") or path.stem)
    counts = [
        metadata.get(key) for key in ("epoch", "agent_step")
    ]  # a file written by `save_policy` may have none
    epoch, agent_step = (count if isinstance(count, int) else 0 for count in counts)
    return PolicyRecord(plain_path(path).as_uri(), name, epoch, agent_step, metadata)


def store_in(folder: Path) -> PolicyStore:
    """The store of a run's folder, or of a folder of policies."""
    run = RunDirectory(folder)
    if not os.path.lexists(folder / "config.yaml"):
        return PolicyStore(run.checkpoint_dir if run.checkpoint_dir.is_dir() else folder)
    how = "give that folder instead of the run, {!r}".format
    return PolicyStore(run.place("checkpoint_dir", how))


def _selected(store: PolicyStore, uri: str, which: str) -> PolicyRecord:
    if which == _ANY:
        return _require(store.best() or store.latest(), uri, "no policy is saved there")
    if which == "latest":
        return _require(store.latest(), uri, "no policy is saved there")
    if which == "best":
        return _require(store.best(), uri, "no policy there has a score; use run:latest")
    records = store.list()
    found = [record for record in records if record.epoch == int(which.removeprefix("v"))]
    epochs = sorted({record.epoch for record in records})
    return _require(next(reversed(found), None), uri, f"saved epochs are {epochs}")


def _is_checkpoint(path: Path) -> bool:
    """Whether a folder is a checkpoint, by its manifest or, without one, by its name."""
    return os.path.lexists(path / MANIFEST_FILE) or path in checkpoint_folders(path.parent)


def _has_policies(folder: Path) -> bool:
    """Whether a folder is a run, a checkpoint, or has some of either or of policies in it."""
    inside = ("config.yaml", "checkpoints", MANIFEST_FILE)
    is_run = any(os.path.lexists(folder / name) for name in inside)
    return is_run or bool(checkpoint_folders(folder)) or any(folder.glob(f"*{_SUFFIX}"))


def _file_in(path: Path) -> Path:
    return path / POLICY_FILE if _is_checkpoint(path) else path


def _require(record: PolicyRecord | None, uri: str, why: str) -> PolicyRecord:
    if record is None:
        raise PolicyError(f"{uri!r} names no policy: {why}")
    return record
