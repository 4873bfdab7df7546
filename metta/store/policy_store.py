"""`PolicyStore`: saved policies, found by path, by URI or by run."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import safetensors
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from torch import nn

from metta.agent.factory import as_policy, make_policy
from metta.agent.policy import Policy
from metta.agent.policy_record import PolicyRecord
from metta.envs.factory import make_vec_env
from metta.errors import CheckpointError, ConfigError, PolicyError
from metta.store.checkpoint_files import (
    MANIFEST_FILE,
    POLICY_FILE,
    CheckpointEntry,
    check_file,
    list_checkpoints,
    plain_metadata,
    read_entry,
)
from metta.store.policy_file import FrozenPolicy, load_weights, read_policy_manifest, save_policy
from metta.store.retention import best_of
from metta.train.train_config import AgentConfig

__all__ = ["PolicyStore", "path_of", "record_of_checkpoint", "spaces_of"]

_SUFFIX = ".safetensors"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SELECTOR = re.compile(rf"(?P<run>{_NAME.pattern}):(?P<which>latest|best|v\d+)")


class PolicyStore:
    """Policies in a folder: files of their own, and those inside checkpoints.

        store = PolicyStore("runs/cartpole/checkpoints")
        record = store.save(policy, "cartpole", epoch=120, agent_step=61_440, metadata={"score": 1.0})
        record = store.load(record.uri, env="CartPole-v1")       # record.policy acts

    A policy is named by ``file://...``, by a path (of a policy file, a checkpoint, a folder of
    checkpoints or a run), or, where `root` is a folder of runs, by ``run:latest``, ``run:best`` or
    ``run:v120`` (its epoch).
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).absolute()

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
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{name!r} cannot name a policy; use letters, digits and . _ -")
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
        """Records of every readable policy here, by epoch; policies are not loaded."""
        records = [record_of_checkpoint(entry) for entry in list_checkpoints(self.root)]
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

    def find(self, uri: str | os.PathLike[str]) -> PolicyRecord:
        """The record that a URI, path or selector names; the policy is not loaded."""
        path = self._resolve(str(uri))
        if path.is_dir() and (path / MANIFEST_FILE).is_file():
            entry = read_entry(path)
            check_file(entry.policy_file)
            return record_of_checkpoint(entry)
        if path.is_dir():
            return _require(_store_in(path).latest(), str(uri), "no policy is saved there")
        if path.name == POLICY_FILE and (path.parent / MANIFEST_FILE).is_file():
            check_file(path)
        return _record_of_file(path)

    def load(
        self,
        uri: str | os.PathLike[str],
        env: Any = None,
        policy: nn.Module | None = None,
    ) -> PolicyRecord:
        """The record with its policy, rebuilt or put into `policy`.

        `env` is anything that has or makes spaces: an id, an environment, a `VecEnv`. Built-in agents are
        rebuilt from the settings in the file; a module of your own is passed as `policy`.
        """
        record = self.find(uri)
        record.policy = self._build(record, env, policy)
        source = path_of(record.uri)
        try:
            load_weights(source / POLICY_FILE if source.is_dir() else source, record.policy)
        except PolicyError as error:
            if policy is not None or record.metadata.get("agent"):
                raise
            raise PolicyError(
                f"{error}; the file does not say how its network is built, so the default agent was "
                "tried: pass yours as policy="
            ) from error
        return record

    def _build(self, record: PolicyRecord, env: Any, policy: nn.Module | None) -> Policy:
        if isinstance(policy, Policy):
            return policy
        if env is None:
            raise PolicyError(
                f"{record.uri!r} does not hold the spaces of its environment; load it with env= (an id or "
                "an environment) or with policy= (a Policy of the same architecture)"
            )
        config = _agent_config(record)
        if policy is not None:
            return as_policy(policy, *spaces_of(env), config, seed=0)
        return make_policy(*spaces_of(env), config)

    def _resolve(self, uri: str) -> Path:
        selector = _SELECTOR.fullmatch(uri)
        if selector:
            return path_of(self._select(uri, selector["run"], selector["which"]).uri)
        scheme, separator, _ = uri.partition("://")
        if separator and scheme != "file":
            raise PolicyError(
                f"{uri!r} has the scheme {scheme!r}; policies are read from file://..., from a path, or by "
                "run:latest, run:best and run:v120"
            )
        path = path_of(uri)
        if not path.exists():
            raise PolicyError(f"there is no policy {uri!r}: {str(path)!r} does not exist")
        return path

    def _select(self, uri: str, run: str, which: str) -> PolicyRecord:
        folder = self.root / run
        if not folder.is_dir():
            raise PolicyError(f"{uri!r} names the run {run!r}, but {str(folder)!r} does not exist")
        store = _store_in(folder)
        if which == "latest":
            return _require(store.latest(), uri, "no policy is saved there")
        if which == "best":
            return _require(store.best(), uri, "no policy there has a score; use run:latest")
        found = [record for record in store.list() if record.epoch == int(which[1:])]
        epochs = sorted({record.epoch for record in store.list()})
        return _require(next(reversed(found), None), uri, f"saved epochs are {epochs}")


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
    uri = entry.path.as_uri()
    return PolicyRecord(uri, str(name), entry.epoch, entry.agent_step, dict(entry.metadata))


def _record_of_file(path: Path) -> PolicyRecord:
    metadata = read_policy_manifest(path)["metadata"]
    name = str(metadata.get("name") or path.stem)
    counts = [metadata.get(key) for key in ("epoch", "agent_step")]  # a file of one's own has none
    epoch, agent_step = (count if isinstance(count, int) else 0 for count in counts)
    return PolicyRecord(path.absolute().as_uri(), name, epoch, agent_step, metadata)


def _agent_config(record: PolicyRecord) -> AgentConfig:
    """Settings kept in the file; the defaults where it has none, which the weights then have to fit."""
    try:
        return AgentConfig(**(record.metadata.get("agent") or {}))
    except (TypeError, ValueError, ConfigError) as error:
        raise PolicyError(
            f"{record.uri!r} holds settings of no agent known here: {error}"
        ) from error


def _store_in(folder: Path) -> PolicyStore:
    """The store of a run's folder, or of a folder of policies."""
    inside = folder / "checkpoints"
    return PolicyStore(inside if inside.is_dir() else folder)


def path_of(uri: str) -> Path:
    """The path behind ``file://...``, or a bare path, made absolute."""
    path = Path(unquote(urlsplit(uri).path)) if uri.startswith("file://") else Path(uri)
    return path.absolute()


def _require(record: PolicyRecord | None, uri: str, why: str) -> PolicyRecord:
    if record is None:
        raise PolicyError(f"{uri!r} names no policy: {why}")
    return record
