"""Rebuilds a policy from its file: spaces and settings of the manifest or an environment, then weights."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from torch import nn

from metta.agent.factory import as_policy, build_network, make_policy
from metta.agent.policy import Policy
from metta.agent.policy_record import PolicyRecord
from metta.envs.factory import make_vec_env
from metta.errors import ConfigError, PolicyError, SpaceError
from metta.store.policies.file import OpenPolicy, put_weights
from metta.store.policies.spaces import space_from
from metta.store.safe_read import DTYPES
from metta.train.train_config import AgentConfig
from metta.untrusted.json_files import brief

__all__ = ["HeldPolicy", "spaces_of"]

_MAX_HIDDEN = 2**24
Spaces = tuple[spaces.Space[Any], spaces.Space[Any]]


@dataclass(frozen=True)
class HeldPolicy:
    """A record, and the open file that its policy is read from."""

    record: PolicyRecord
    file: OpenPolicy

    def load(self, env: Any = None, policy: nn.Module | None = None) -> PolicyRecord:
        """The record with its policy; see `PolicyStore.load`."""
        if env is None or isinstance(policy, Policy):
            built = policy if isinstance(policy, Policy) else _built(self.file, policy)
            put_weights(self.file, built)
            self.record.policy = built
            return self.record
        built = self._build(env, policy)
        put_weights(self.file, built)
        self.record.policy = built
        return self.record

    def _build(self, env: Any, policy: nn.Module | None) -> Policy:
        manifest = self.file.manifest
        settings = self.record.metadata.get("agent") or manifest.get("agent") or {}
        config, needed = _agent_settings(self.file.path, settings), spaces_of(env)
        if policy is not None:
            return as_policy(policy, *needed, config, seed=0)
        if not settings or not manifest.get("built_in"):
            raise _own_network(self.file.path)
        _require_fit(self.file, config, needed)
        return make_policy(*needed, config)


def spaces_of(env: Any) -> Spaces:
    """Observation and action space of one row of an environment, or of what names one."""
    if isinstance(env, VectorEnv):
        return env.single_observation_space, env.single_action_space
    if hasattr(env, "observation_space") and not isinstance(env, type):  # a class is a factory
        return env.observation_space, env.action_space
    made = make_vec_env(env)
    made.close()
    return made.observation_space, made.action_space


def _built(opened: OpenPolicy, module: nn.Module | None) -> Policy:
    """A policy as the file describes it; its size is checked before memory is allocated."""
    path, manifest = opened.path, opened.manifest
    if manifest.get("spaces") is None or manifest.get("agent") is None:
        raise PolicyError(
            f"{str(path)!r} does not hold the spaces of its environment as data (it is of an older "
            "version, or they are too large or of a rare kind); pass policy=Policy(module, "
            "observation_space, action_space), or use PolicyStore(...).load(uri, env)"
        )
    needed, config = _spaces(path, manifest["spaces"]), _agent_settings(path, manifest["agent"])
    try:
        if module is not None:
            built = Policy(module, *needed, config)
        elif manifest["built_in"]:
            _require_fit(opened, config, needed)
            built = make_policy(*needed, config)
        else:
            raise _own_network(path)
    except (ConfigError, SpaceError) as error:  # of settings that do not fit the spaces
        raise PolicyError(f"{str(path)!r} holds no policy that can be built: {error}") from error
    return built.to(_dtype_in(opened, built))


def _own_network(path: Path) -> PolicyError:
    return PolicyError(
        f"{str(path)!r} holds the weights of a network of your own, which metta cannot build: load it from "
        f"Python with metta.load_policy({str(path)!r}, MyNetwork(...)), or pass policy=MyNetwork(...)"
    )


def _spaces(path: Path, data: dict[str, Any]) -> Spaces:
    try:
        if data.keys() != {"observation", "action"}:
            raise SpaceError(
                f"{brief(sorted(data))} are not the spaces of observations and actions"
            )
        return space_from(data["observation"]), space_from(data["action"])
    except SpaceError as error:
        raise PolicyError(f"{str(path)!r} holds unusable spaces: {error}") from error


def _agent_settings(path: Path, settings: dict[str, Any]) -> AgentConfig:
    """Settings of an agent from a file; a `PolicyError` if they are not usable."""
    try:
        return AgentConfig(**settings)
    except (TypeError, ValueError, ConfigError) as error:
        raise PolicyError(
            f"{str(path)!r} holds settings that fit no agent of this version: {error}"
        ) from error


def _require_fit(opened: OpenPolicy, config: AgentConfig, needed: Spaces) -> None:
    """Refuse settings and spaces that need more memory than the file has weights."""
    shapes = opened.shapes
    numbers = sum(math.prod(shape) for shape in shapes)
    widths = _widths(needed)
    small = max(config.hidden_size, widths) <= min(numbers, _MAX_HIDDEN)
    if small and config.num_layers <= len(shapes):
        with torch.device("meta"):  # shapes without memory
            network = build_network(*needed, config, seed=0)
        if sum(parameter.numel() for parameter in network.parameters()) <= numbers:
            return
    raise PolicyError(
        f"{str(opened.path)!r} does not fit: it holds {numbers} numbers, fewer than its agent has: "
        f"{config.num_layers} layers of {config.hidden_size} for {widths} categories"
    )


def _widths(needed: Spaces) -> int:
    """Categories of all discrete parts: each is a row or a column of a layer."""
    total, waiting = 0, list(needed)
    while waiting:
        space = waiting.pop()
        if isinstance(space, spaces.Dict):
            waiting += [part for key, part in space.spaces.items()]
        elif isinstance(space, spaces.Tuple):
            waiting += space.spaces
        elif isinstance(space, spaces.Discrete):
            total += int(space.n)
        elif isinstance(space, spaces.MultiDiscrete):
            total += sum(space.nvec.ravel().tolist())
    return total


def _dtype_in(opened: OpenPolicy, policy: Policy) -> torch.dtype:
    """Float type of the network in the file: a policy may have been cast before it was saved."""
    floats = (n for n, p in policy.module.named_parameters() if p.dtype.is_floating_point)
    place = opened.tensors.announced.places.get(f"module.{next(floats, '')}")
    found = policy.dtype if place is None else DTYPES[place.dtype]
    return found if found.is_floating_point else policy.dtype
