"""The networks that metta builds itself: encoder, optional recurrent core, two heads."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from metta.agent.actions.action_spec import ActionSpec
from metta.agent.actions.gaussian import BoxSpec
from metta.agent.networks.encoders import ObsEncoder, orthogonal
from metta.agent.networks.grouped import choose_group, split_group_leaf
from metta.agent.networks.recurrent import CORES, RecurrentCore
from metta.agent.output import PolicyOutput, State
from metta.spaces import ObsSpec
from metta.train.agent_groups import GROUP_KEY

if TYPE_CHECKING:
    from metta.train.train_config import AgentConfig

__all__ = ["ActorCritic", "RecurrentActorCritic"]

_ACTOR_GAIN = 0.01


def _encoder(spec: ObsSpec, config: "AgentConfig") -> ObsEncoder:
    kind = "auto" if config.name in CORES else config.name
    return ObsEncoder(spec, kind, config)


class Heads(nn.Module):
    """Features -> distribution parameters and value, in float32 whatever the trunk runs in."""

    def __init__(self, size: int, action_spec: ActionSpec, config: "AgentConfig") -> None:
        super().__init__()
        free_std = isinstance(action_spec, BoxSpec) and config.std == "parameter"
        width = action_spec.num_params // 2 if free_std else action_spec.num_params
        self.actor = orthogonal(nn.Linear(size, width), _ACTOR_GAIN)
        self.critic = orthogonal(nn.Linear(size, 1), 1.0)
        self.log_std = nn.Parameter(torch.full((width,), config.log_std_init)) if free_std else None
        if isinstance(action_spec, BoxSpec) and not free_std:
            nn.init.constant_(self.actor.bias[width // 2 :], config.log_std_init)

    def forward(self, actor_features: Tensor, critic_features: Tensor) -> tuple[Tensor, Tensor]:
        """Parameters ``[..., P]`` and value ``[...]``."""
        device = actor_features.device.type
        if not torch.is_autocast_enabled(device):
            return self._outputs(actor_features, critic_features)
        with torch.autocast(device, enabled=False):
            kind = self.actor.weight.dtype
            return self._outputs(actor_features.to(kind), critic_features.to(kind))

    def _outputs(self, actor_features: Tensor, critic_features: Tensor) -> tuple[Tensor, Tensor]:
        params = self.actor(actor_features)
        if self.log_std is not None:
            params = torch.cat([params, self.log_std.expand_as(params)], -1)
        return params, self.critic(critic_features).squeeze(-1)


class ActorCritic(nn.Module):
    """Feed-forward: rows ``[B, ...]`` in, (parameters, value) out.

    Where observations name the group of their agent, `members` holds a whole network for each group.
    """

    def __init__(self, spec: ObsSpec, action_spec: ActionSpec, config: "AgentConfig") -> None:
        super().__init__()
        self.spec = spec
        self.members: nn.ModuleList | None = None
        own, num_groups = split_group_leaf(spec)
        if num_groups:
            self.members = nn.ModuleList(
                ActorCritic(own, action_spec, config) for _ in range(num_groups)
            )
            return
        self.encoder = _encoder(spec, config)
        share = config.share_encoder or self.encoder.uses_grid
        self.critic_encoder = None if share else _encoder(spec, config)
        self.heads = Heads(self.encoder.output_size, action_spec, config)

    def forward(self, obs: Any) -> tuple[Tensor, Tensor]:
        """Distribution parameters and value of observations in the nesting of their space."""
        if self.members is not None:
            params, values = zip(*(member(obs) for member in self.members), strict=True)
            group = obs[GROUP_KEY]
            chosen = choose_group(params, group, is_vector=True)
            return chosen, choose_group(values, group, is_vector=False)
        leaves = self.spec.split(obs)
        features = self.encoder(leaves)
        critic = features if self.critic_encoder is None else self.critic_encoder(leaves)
        heads: tuple[Tensor, Tensor] = self.heads(features, critic)
        return heads


class RecurrentActorCritic(nn.Module):
    """Recurrent: sequences ``[T, N, ...]`` in, `PolicyOutput` out; actor and critic share the core.

    Where observations name the group of their agent, `members` holds a whole network for each group; a
    row's state is that of its own group's network.
    """

    def __init__(self, spec: ObsSpec, action_spec: ActionSpec, config: "AgentConfig") -> None:
        super().__init__()
        self.spec = spec
        self.members: nn.ModuleList | None = None
        own, num_groups = split_group_leaf(spec)
        if num_groups:
            self.members = nn.ModuleList(
                RecurrentActorCritic(own, action_spec, config) for _ in range(num_groups)
            )
            return
        self.encoder = _encoder(spec, config)
        kind = config.name if config.name in CORES else config.core
        self.core: RecurrentCore = CORES[kind](self.encoder.output_size, config.hidden_size)
        self.heads = Heads(config.hidden_size, action_spec, config)

    def initial_state(self, num_rows: int) -> State:
        """Zeros ``[N, H]`` per part of the state."""
        if self.members is not None:
            first: RecurrentActorCritic = self.members[0]  # type: ignore[assignment]  # reason: a list of modules
            return first.initial_state(num_rows)
        return self.core.initial_state(num_rows)

    def forward(self, obs: Any, state: State, starts: Tensor) -> PolicyOutput:
        """Encode all steps at once, then run the core along T."""
        if self.members is not None:
            found = [member(obs, state, starts) for member in self.members]
            return _chosen(found, obs[GROUP_KEY])
        flat = {key: leaf.flatten(0, 1) for key, leaf in self.spec.split(obs).items()}
        features = self.encoder(flat).unflatten(0, starts.shape)
        hidden, state = self.core(features, state, starts)
        params, value = self.heads(hidden, hidden)
        return PolicyOutput(params, value, state, {})


def _chosen(found: list[PolicyOutput], group: Tensor) -> PolicyOutput:
    """Each row's output and state; `group` ``[T, N]`` is the same at all steps of a row."""
    params = choose_group([output.dist_params for output in found], group, is_vector=True)
    value = choose_group([output.value for output in found], group, is_vector=False)
    state = {
        name: choose_group([output.state[name] for output in found], group[-1], is_vector=True)
        for name in found[0].state
    }
    return PolicyOutput(params, value, state, {})
