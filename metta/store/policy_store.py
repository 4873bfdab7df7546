"""`PolicyStore`: saved policies, found by path, by URI or by run."""

import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors
import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from torch import nn

from metta.agent.factory import as_policy, build_network, make_policy
from metta.agent.policy import Policy
from metta.agent.policy_record import PolicyRecord
from metta.envs.factory import make_vec_env
from metta.errors import CheckpointError, ConfigError, PolicyError, UnsafeFileError
from metta.store.checkpoint_files import (
    MANIFEST_FILE,
    POLICY_FILE,
    CheckpointEntry,
    check_file,
    checkpoint_folders,
    list_checkpoints,
    plain_metadata,
    read_entry,
    score_of,
)
from metta.store.policy_file import (
    FrozenPolicy,
    check_pin,
    load_weights,
    policy_shapes,
    read_policy_manifest,
    save_policy,
)
from metta.store.retention import best_of
from metta.store.safe_paths import NAME, check_name, path_of, plain_path, safe_join
from metta.train.train_config import AgentConfig

__all__ = ["PolicyStore", "path_of", "record_of_checkpoint", "spaces_of"]

_SUFFIX = ".safetensors"
_SELECTOR = re.compile(rf"(?P<run>{NAME.pattern}):(?P<which>latest|best|v[0-9]{{1,15}})")


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

    def top(self, count: int) -> Sequence[PolicyRecord]:
        """The records with the `count` highest scores, best first, the newer of equals before the older."""
        newest_first = reversed(self.list())
        scores = ((score_of(record.metadata), record) for record in newest_first)
        scored = [(score, record) for score, record in scores if score is not None]
        scored.sort(key=lambda pair: -pair[0])
        return [record for _, record in scored[: max(count, 0)]]

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
            entry = read_entry(path)
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

        `env` is anything that has or makes spaces: an id, an environment, a `VecEnv`. Built-in agents are
        rebuilt from the settings in the file; a module of your own is passed as `policy`. `sha256` pins
        the policy's file, as for `find`.
        """
        record = self.find(uri, sha256=sha256)
        record.policy = self._build(record, env, policy)
        try:
            load_weights(_file_of(record), record.policy, sha256=sha256)
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
        config, needed = _agent_config(record), spaces_of(env)
        if policy is not None:
            return as_policy(policy, *needed, config, seed=0)
        if record.metadata.get("agent"):  # the default is small
            _require_fit(record, config, needed)
        return make_policy(*needed, config)

    def _resolve(self, uri: str) -> Path:
        selector = _SELECTOR.fullmatch(uri)
        if selector:
            return path_of(self._select(uri, selector["run"], selector["which"]).uri)
        scheme, separator, _ = uri.partition("://")
        if separator and scheme != "file":
            raise PolicyError(
                f"{uri[:200]!r} has the scheme {scheme[:40]!r}; policies are read from file://..., from a "
                "path, or by run:latest, run:best and run:v120"
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


def _require_fit(
    record: PolicyRecord,
    config: AgentConfig,
    needed: tuple[spaces.Space[Any], spaces.Space[Any]],
) -> None:
    """Refuse settings of a file that ask for more memory than the file has weights."""
    shapes = policy_shapes(_file_of(record))
    numbers = sum(math.prod(shape) for shape in shapes)
    if config.num_layers <= len(shapes) and config.hidden_size <= min(numbers, 2**24):
        with torch.device("meta"):  # shapes without memory
            network = build_network(*needed, config, seed=0)
        if sum(parameter.numel() for parameter in network.parameters()) <= numbers:
            return
    raise PolicyError(
        f"{record.uri!r} does not fit: it holds {numbers} numbers, fewer than its agent has in this "
        f"environment: "
        f"{config.num_layers} layers of {config.hidden_size}"
    )


def _require(record: PolicyRecord | None, uri: str, why: str) -> PolicyRecord:
    if record is None:
        raise PolicyError(f"{uri!r} names no policy: {why}")
    return record
