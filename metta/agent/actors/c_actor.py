"""`CActor`: the action branch in C, for small networks and any number of rows."""

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metta.agent.actions.categorical import DiscreteSpec
from metta.agent.actors.c_program import Chain, CNetwork, chain_of, native_available
from metta.agent.actors.check import difference
from metta.agent.actors.graph_actor import GraphActor
from metta.agent.output import State
from metta.agent.policy import Policy
from metta.errors import ActorError

__all__ = ["CActor"]

_EXAMPLE_ROWS = 16


class CActor(GraphActor):
    """Runs the action branch in C; discrete actions are drawn there too.

        actor = CActor(policy)
        produced, state = actor.act(obs, {}, starts, None, noise)

    For one observation array and a chain of linear layers and activations. A row's numbers do not depend
    on the rows beside it, so groups of any size act alike to the bit. After a rollout it values all
    observations at once, if the value branch is such a chain too.
    """

    kind = "c"
    produces = frozenset({"action", "dist_params"})

    def __init__(self, policy: Policy) -> None:
        if not native_available():
            raise ActorError(
                "the C kernels of actors were not built; install a C compiler and metta again"
            )
        if not policy.obs_spec.is_plain:
            raise ActorError("only observations of one array have a C actor")
        super().__init__(policy, _EXAMPLE_ROWS)

    @property
    def fused_actor(self) -> Any:
        """The network in C, if its actions are those of the environment: discrete, from 0 on."""
        spec = self.policy.action_spec
        counts_from_0 = isinstance(spec, DiscreteSpec) and spec.start == 0
        return self._network.capsule if self._is_discrete and counts_from_0 else None

    def act(
        self,
        obs: Mapping[str, np.ndarray],
        state: State,
        starts: np.ndarray,  # noqa: ARG002 (protocol: recurrent actors need it)
        mask: np.ndarray | None,
        noise: np.ndarray,
    ) -> tuple[dict[str, Tensor], State]:
        """C for the network and for discrete samples, the action specification for all others."""
        if self._is_discrete:
            actions = np.empty(len(noise), np.int64)
            logits = np.empty((len(noise), self._num_outputs), np.float32)
            self.act_into(np.ascontiguousarray(obs[self._key]), mask, noise, actions, logits)
            action, params = torch.from_numpy(actions), torch.from_numpy(logits)
            return {"action": action, "dist_params": params}, state
        params = torch.from_numpy(self._params(obs))
        allowed = None if mask is None else torch.from_numpy(mask)
        action = self.policy.action_spec.sample(params, torch.from_numpy(noise), allowed)
        return {"action": action, "dist_params": params}, state

    @property
    def buffer_writer(self) -> "CActor | None":
        """Itself if actions are discrete."""
        return self if self._is_discrete else None

    def act_into(
        self,
        leaf: np.ndarray,
        mask: np.ndarray | None,
        noise: np.ndarray,
        actions: np.ndarray,
        params: np.ndarray,
    ) -> None:
        """`act` without new memory: see `BufferWriter`."""
        legal = None if mask is None else np.ascontiguousarray(mask)
        self._network.sample(leaf, actions, params, np.ascontiguousarray(noise), legal)

    @property
    def value_source(self) -> "CActor | None":
        """Itself if the values are a chain of layers too."""
        return self if self._critic is not None else None

    def values_of(self, obs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Values ``[n]`` in raw reward units of any number of observations ``[n, ...]``."""
        assert self._critic is not None
        leaf = np.ascontiguousarray(obs[self._key])
        values = np.empty((len(leaf), 1), np.float32)
        self._critic.forward(leaf, values)
        normalizer = self.policy.return_normalizer
        if normalizer is not None:
            values = values * normalizer.scale.numpy() + normalizer.shift.numpy()
        return values[:, 0]

    def _trace(self, policy: Policy) -> None:
        super()._trace(policy)
        (self._leaf,), (params, value) = policy.obs_spec.leaves, self.recorded.outputs
        self._chain = chain_of(self.recorded, params, self._leaf)
        self._key, self._num_outputs = self._leaf.key, self._chain.num_outputs
        self._value_chain: Chain | None = None
        # otherwise the policy itself gives the values, after the rollout
        with contextlib.suppress(ActorError):
            chain = chain_of(self.recorded, value, self._leaf)
            if chain.num_outputs == 1 and chain.tail is None:
                self._value_chain = chain

    def _copy(self, policy: Policy) -> None:
        super()._copy(policy)
        self._network, values, tail = self._network_of(self._chain), self._value_chain, []
        if self._chain.tail is not None:
            tail.append(self._chain.tail.detach().expand(self._chain.tail_width).numpy())
        if self.log_std is not None:
            tail.append(self.log_std)
        self._tail = np.concatenate(tail).astype(np.float32) if tail else None
        self._is_discrete = type(policy.action_spec) is DiscreteSpec and self._tail is None
        self._critic = None if values is None else self._network_of(values)

    def _network_of(self, chain: Chain) -> CNetwork:
        normalizer = self.policy.obs_normalizer
        clip = np.inf if normalizer is None else normalizer.clip
        return CNetwork(chain, self._leaf, self.moments.get(self._key), clip)

    def _difference(self) -> float:
        wanted = self._wanted()
        found = difference(self._params(self._example), wanted.dist_params[0].numpy(force=True))
        if self._critic is None:
            return found
        values = self.values_of(self._example)[:, None]
        return max(found, difference(values, wanted.value[0].numpy(force=True)[:, None]))

    def _params(self, obs: Mapping[str, np.ndarray]) -> np.ndarray:
        leaf = np.ascontiguousarray(obs[self._key])
        params = np.empty((len(leaf), self._num_outputs), np.float32)
        self._network.forward(leaf, params)
        if self._tail is None:
            return params
        tail = np.broadcast_to(self._tail, (len(leaf), len(self._tail)))
        return np.concatenate([params, tail], -1)
