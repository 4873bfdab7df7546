"""`PolicyStore`: saved policies, found by path, by URI or by run."""

import os
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import safetensors
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from torch import nn

from metta.agent.factory import as_policy, make_policy
from metta.agent.policy import Policy
from metta.agent.policy_record import PolicyRecord
from metta.envs.factory import make_vec_env
from metta.errors import CheckpointError, PolicyError, UnsafeFileError
from metta.store.checkpoint_files import (
    MANIFEST_FILE,
    POLICY_FILE,
    CheckpointEntry,
    check_file,
    checkpoint_folders,
    list_checkpoints,
    plain_metadata,
    read_entry,
)
from metta.store.late_scores import with_late_scores
from metta.store.policy_file import (
    FrozenPolicy,
    check_pin,
    load_weights,
    read_policy_manifest,
    save_policy,
)
from metta.store.rebuilding import agent_settings, rebuild_policy, require_fit
from metta.store.retention import best_first, best_of
from metta.store.wandb_artifacts import download_policy
from metta.untrusted.paths import NAME, check_name, path_of, plain_path, safe_join

__all__ = ["PolicyStore", "path_of", "record_of_checkpoint", "spaces_of"]

_SUFFIX = ".safetensors"
_SELECTOR = re.compile(rf"(?P<run>{NAME.pattern}):(?P<which>latest|best|v[0-9]{{1,15}})")


class PolicyStore:
    """Policies in a folder: files of their own, and those inside checkpoints.

        store = PolicyStore("runs/cartpole/checkpoints")
        record = store.save(policy, "cartpole", epoch=120, agent_step=61_440, metadata={"score": 1.0})
        record = store.load(record.uri, env="CartPole-v1")       # record.policy acts

    A policy is named by ``file://...``, by a path (of a policy file, a checkpoint, a folder of
    checkpoints or a run), by ``wandb://entity/project/artifact:version``, or, where `root` is a folder of
    runs, by ``run:latest``, ``run:best`` or ``run:v120`` (its epoch).
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
        return _record_of_file(target)

    def list(self) -> list[PolicyRecord]:
        """Records of every readable policy here, by epoch; policies are not loaded.

        A checkpoint that was scored after it was written has that score in its metadata.
        """
        entries = with_late_scores(self.root, list_checkpoints(self.root))
        records = [record_of_checkpoint(entry) for entry in entries]
        for path in sorted(self.root.glob(f"*{_SUFFIX}")):
            try:
                records.append(_record_of_file(path))
            except PolicyError:  # another kind of file: a rollout, for example
                continue
        return sorted(records, key=lambda record: (record.epoch, record.agent_step))

    def latest(self) -> PolicyRecord | None:
        """The record of the last epoch, or None where there is none."""
        return next(reversed(self.list()), None)

    def best(self) -> PolicyRecord | None:
        """The record with the highest `score` in its metadata; None where nothing was scored."""
        return best_of(self.list())

    def top(self, count: int) -> Sequence[PolicyRecord]:
        """The `count` best records, as `best_first` orders them."""
        return list(islice(best_first(self.list()), max(count, 0)))

    def find(self, uri: str | os.PathLike[str], *, sha256: str | None = None) -> PolicyRecord:
        """The record that a URI, path or selector names; the policy is not loaded.

        `sha256` pins the policy's file: one with another digest is refused.
        """
        record = self._find(str(uri))
        check_pin(_file_of(record), sha256)
        return record

    def _find(self, uri: str) -> PolicyRecord:
        path = self._resolve(uri)
        if _is_checkpoint(path):
            (entry,) = with_late_scores(path.parent, [read_entry(path)])
            check_file(entry.policy_file)
            return record_of_checkpoint(entry)
        if path.is_dir():
            latest = _require(_store_in(path).latest(), uri, "no policy is saved there")
            return _inside(path, latest, uri)
        if path.name == POLICY_FILE and _is_checkpoint(path.parent):
            check_file(path)
        return _record_of_file(path)

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
        the file are taken. Built-in agents are rebuilt from the settings in the file; a module of your own
        is passed as `policy`. `sha256` pins the policy's file, as for `find`.
        """
        record = self.find(uri, sha256=sha256)
        file = _file_of(record)
        if env is None or isinstance(policy, Policy):
            record.policy = rebuild_policy(file, policy, sha256=sha256)
            return record
        record.policy = self._build(record, env, policy)
        try:
            load_weights(file, record.policy, sha256=sha256)
        except PolicyError as error:
            if policy is not None or record.metadata.get("agent"):
                raise
            raise PolicyError(
                f"{error}; the file does not say how its network is built, so the default agent was "
                "tried: pass yours as policy="
            ) from error
        return record

    def _build(self, record: PolicyRecord, env: Any, policy: nn.Module | None) -> Policy:
        file, settings = _file_of(record), record.metadata.get("agent") or {}
        # the defaults where the file has no settings, which the weights then have to fit
        config, needed = agent_settings(file, settings), spaces_of(env)
        if policy is not None:
            return as_policy(policy, *needed, config, seed=0)
        if settings:  # the default is small
            require_fit(file, config, needed)
        return make_policy(*needed, config)

    def _resolve(self, uri: str) -> Path:
        selector = _SELECTOR.fullmatch(uri)
        if selector:
            return path_of(self._select(uri, selector["run"], selector["which"]).uri)
        scheme, separator, _ = uri.partition("://")
        if scheme == "wandb" and separator:
            return download_policy(uri)
        if separator and scheme != "file":
            raise PolicyError(
                f"{uri[:200]!r} has the scheme {scheme[:40]!r}; policies are read from file://..., from a "
                "path, from wandb://..., or by run:latest, run:best and run:v120"
            )
        path = path_of(uri)
        try:
            if path.exists():
                return path
        except OSError as error:  # a name that is too long, for example
            raise PolicyError(f"{uri[:200]!r} names no policy: {error.strerror}") from error
        raise PolicyError(f"there is no policy {uri!r}: {str(path)!r} does not exist")

    def _select(self, uri: str, run: str, which: str) -> PolicyRecord:
        folder = self.root / run
        if not folder.is_dir():
            raise PolicyError(f"{uri!r} names the run {run!r}, but {str(folder)!r} does not exist")
        return _inside(folder, _selected(_store_in(folder), uri, which), uri)


def spaces_of(env: Any) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    """Observation and action space of one row of whatever names or is an environment."""
    if isinstance(env, VectorEnv):
        return env.single_observation_space, env.single_action_space
    if hasattr(env, "observation_space") and not isinstance(env, type):  # a class is a factory
        return env.observation_space, env.action_space
    made = make_vec_env(env)
    made.close()
    return made.observation_space, made.action_space


def record_of_checkpoint(entry: CheckpointEntry) -> PolicyRecord:
    """The policy inside a checkpoint, as a record."""
    name = entry.metadata.get("name") or entry.path.name
    uri = plain_path(entry.path).as_uri()
    return PolicyRecord(uri, str(name), entry.epoch, entry.agent_step, dict(entry.metadata))


def _record_of_file(path: Path) -> PolicyRecord:
    metadata = read_policy_manifest(path)["metadata"]
    name = str(metadata.get("name") or path.stem)
    counts = [metadata.get(key) for key in ("epoch", "agent_step")]  # a file of one's own has none
    epoch, agent_step = (count if isinstance(count, int) else 0 for count in counts)
    return PolicyRecord(plain_path(path).as_uri(), name, epoch, agent_step, metadata)


def _store_in(folder: Path) -> PolicyStore:
    """The store of a run's folder, or of a folder of policies."""
    inside = folder / "checkpoints"
    return PolicyStore(inside if inside.is_dir() else folder)


def _selected(store: PolicyStore, uri: str, which: str) -> PolicyRecord:
    if which == "latest":
        return _require(store.latest(), uri, "no policy is saved there")
    if which == "best":
        return _require(store.best(), uri, "no policy there has a score; use run:latest")
    records = store.list()
    found = [record for record in records if record.epoch == int(which[1:])]
    epochs = sorted({record.epoch for record in records})
    return _require(next(reversed(found), None), uri, f"saved epochs are {epochs}")


def _is_checkpoint(path: Path) -> bool:
    """By a manifest, or where it is gone by the name."""
    return os.path.lexists(path / MANIFEST_FILE) or path in checkpoint_folders(path.parent)


def _inside(folder: Path, record: PolicyRecord, uri: str) -> PolicyRecord:
    """Refuse what was found in a folder but lies elsewhere: a run from others may hold links."""
    try:
        safe_join(folder, os.path.relpath(_file_of(record), folder))
    except UnsafeFileError as error:
        raise PolicyError(f"{uri!r} names no policy: {error}") from error
    return record


def _file_of(record: PolicyRecord) -> Path:
    path = path_of(record.uri)
    return path / POLICY_FILE if path.is_dir() else path


def _require(record: PolicyRecord | None, uri: str, why: str) -> PolicyRecord:
    if record is None:
        raise PolicyError(f"{uri!r} names no policy: {why}")
    return record
