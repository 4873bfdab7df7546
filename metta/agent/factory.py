"""Agents by registry key."""

from collections.abc import Callable
from typing import Any

import torch
from gymnasium import spaces
from torch import nn

from metta.agent.actions.action_spec import ActionSpec, action_spec_of
from metta.agent.networks.actor_critic import ActorCritic, RecurrentActorCritic
from metta.agent.networks.recurrent import CORES
from metta.agent.policy import Policy
from metta.errors import PolicyError
from metta.ops.threads import threads_set
from metta.seeding import derive_seed
from metta.spaces import ObsSpec, obs_spec_of
from metta.train.machine import require_memory
from metta.train.train_config import AgentConfig

__all__ = ["as_policy", "build_network", "make_policy"]

_FLOAT_BYTES = 4

Builder = Callable[[ObsSpec, ActionSpec, AgentConfig], nn.Module]


def make_policy(
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    config: AgentConfig | None = None,
    *,
    seed: int = 0,
) -> Policy:
    """The agent that `config` names, with weights that depend on `seed` alone.

    policy = make_policy(env.observation_space, env.action_space, AgentConfig(core="lstm"))
    """
    config = config or AgentConfig()
    module = build_network(observation_space, action_space, config, seed=seed)
    return Policy(module, observation_space, action_space, config)


def build_network(
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    config: AgentConfig,
    *,
    seed: int,
) -> nn.Module:
    """The network of the agent that `config` names, with weights that depend on `seed` alone."""
    recurrent = config.core != "none" or config.name in CORES
    _require_room(config, is_recurrent=recurrent)
    builder: Builder = RecurrentActorCritic if recurrent else ActorCritic
    spec, action_spec = (
        obs_spec_of(observation_space),
        action_spec_of(action_space, squash=config.squash),
    )
    with threads_set(1), torch.random.fork_rng(devices=[]):  # orthogonal weights depend on threads
        # the CPU's generator alone: torch.manual_seed would also reseed GPUs, which are not forked
        torch.default_generator.manual_seed(derive_seed(seed, "weights"))
        return builder(spec, action_spec, config)


def _require_room(config: AgentConfig, *, is_recurrent: bool) -> None:
    """Refuse a network that no memory holds: hidden layers, their gradients and Adam's two moments."""
    size, layers = config.hidden_size, config.num_layers
    weights = size * (layers + size * (layers - 1 + 8 * is_recurrent))
    require_memory(
        4 * _FLOAT_BYTES * weights,
        f"a network of hidden_size={size:,} and num_layers={layers:,}",
        "lower one of them (64 and 2 are usual)",
    )


def as_policy(
    policy: nn.Module | None,
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    config: AgentConfig,
    *,
    seed: int,
) -> Policy:
    """A `Policy` unchanged if it fits the spaces, any other module wrapped, the default agent for None."""
    if policy is None:
        return make_policy(observation_space, action_space, config, seed=seed)
    if not isinstance(policy, nn.Module):
        raise PolicyError(
            f"policy must be an nn.Module, a Policy, or None for the default agent, got {policy!r}; "
            "pass an instance of your class, not the class, and choose built-in agents by settings "
            "(core='lstm', hidden_size=128, ...)"
        )
    if isinstance(policy, Policy):
        _require_same_spaces(policy, observation_space, action_space)
        return policy
    return Policy(policy, observation_space, action_space, config)


def _require_same_spaces(
    policy: Policy, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]
) -> None:
    """Bounds of observations may differ; what the network reads, and all of its actions, may not."""
    same_leaves = policy.obs_spec.leaves == obs_spec_of(observation_space).leaves
    if not same_leaves or policy.action_space != action_space:
        raise PolicyError(
            f"the policy was made for observations {policy.observation_space} and actions "
            f"{policy.action_space}, but the environment has {observation_space} and {action_space}; "
            "make the policy with the environment's spaces"
        )
