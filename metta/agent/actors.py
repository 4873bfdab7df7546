"""Actors: ways to draw actions from a policy, each derived from `Policy.forward` and held to it."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from metta.agent.action_spec import draw_noise
from metta.agent.normalizers import RunningNormalizer
from metta.agent.numpy_program import NumpyProgram
from metta.agent.output import State
from metta.agent.policy import Policy
from metta.errors import ActorError

__all__ = ["Actor", "EagerActor", "NumpyActor", "check_actor", "make_actor"]

_TOLERANCE = 1e-4
_CHECKED_BATCHES = 16


class Actor(Protocol):
    """Draws actions for a group of rows; a pure function of its inputs and the last `refresh`."""

    produces: frozenset[str]
    """Columns that `act` returns: always "action"; also "value" and "dist_params" where free."""

    def refresh(self, policy: Policy) -> None:
        """Take over the policy's present parameters; called before every rollout."""
        ...

    def act(
        self,
        obs: Mapping[str, np.ndarray],
        state: State,
        starts: np.ndarray,
        mask: np.ndarray | None,
        noise: np.ndarray,
    ) -> tuple[dict[str, Tensor], State]:
        """Columns ``[n, ...]`` for observations ``[n, ...]``, and the next recurrent state."""
        ...


class EagerActor:
    """Calls `Policy.forward` for each step; takes any policy."""

    produces = frozenset({"action", "value", "dist_params"})

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def refresh(self, policy: Policy) -> None:
        """Hold the live policy itself."""
        self.policy = policy

    def act(
        self,
        obs: Mapping[str, np.ndarray],
        state: State,
        starts: np.ndarray,
        mask: np.ndarray | None,
        noise: np.ndarray,
    ) -> tuple[dict[str, Tensor], State]:
        """One forward of ``[1, n]``."""
        policy, device = self.policy, self.policy.device
        with torch.inference_mode():
            leaves = {key: torch.from_numpy(leaf).to(device)[None] for key, leaf in obs.items()}
            output = policy(leaves, state, torch.from_numpy(starts).to(device)[None])
            params = output.dist_params[0]
            legal = None if mask is None else torch.from_numpy(mask).to(device)
            action = policy.action_spec.sample(params, torch.from_numpy(noise).to(device), legal)
        return {"action": action, "value": output.value[0], "dist_params": params}, output.state


class NumpyActor:
    """Runs the action branch in NumPy; for small feed-forward networks on the CPU.

    Values and log-probabilities are left to one batched forward after the rollout.
    """

    produces = frozenset({"action"})

    def __init__(self, policy: Policy, num_rows: int) -> None:
        if policy.is_recurrent or policy.device.type != "cpu" or policy.dtype != torch.float32:
            raise ActorError("only feed-forward float32 policies on the CPU have a NumPy actor")
        if policy.precision != torch.float32:
            raise ActorError("reduced precision has no NumPy actor")
        if any(leaf.kind == "discrete" for leaf in policy.obs_spec.leaves):
            raise ActorError("discrete observations have no NumPy actor")
        self.policy = policy
        example = self._inputs(policy.obs_spec.zeros(num_rows))
        self.program = NumpyProgram(policy.module, example)
        self.refresh(policy)

    def refresh(self, policy: Policy) -> None:
        """Copy weights and normaliser moments."""
        self.policy = policy
        self.program.refresh()
        log_std = policy.log_std
        self.log_std = None if log_std is None else log_std.detach().numpy().copy()
        self.moments: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        if policy.obs_normalizer is not None:
            for key, leaf in policy.obs_normalizer.leaves.items():
                assert isinstance(leaf, RunningNormalizer)
                self.moments[key] = (leaf.shift.numpy().copy(), leaf.scale.numpy().copy())

    def act(
        self,
        obs: Mapping[str, np.ndarray],
        state: State,
        starts: np.ndarray,  # noqa: ARG002 (protocol: recurrent actors need it)
        mask: np.ndarray | None,
        noise: np.ndarray,
    ) -> tuple[dict[str, Tensor], State]:
        """NumPy for the network, the action specification for the sample."""
        params = self.program.run(self._inputs(obs))
        if self.log_std is not None:
            log_std = np.broadcast_to(self.log_std, params.shape)
            params = np.concatenate([params, log_std], -1)
        legal = None if mask is None else torch.from_numpy(mask)
        with torch.inference_mode():
            action = self.policy.action_spec.sample(
                torch.from_numpy(params), torch.from_numpy(noise), legal
            )
        return {"action": action}, state

    def _inputs(self, obs: Mapping[str, np.ndarray]) -> object:
        policy = self.policy
        leaves = {}
        for key, leaf in obs.items():
            values = leaf if leaf.dtype == np.float32 else leaf.astype(np.float32)
            if policy.obs_normalizer is not None and key in self.__dict__.get("moments", {}):
                shift, scale = self.moments[key]
                clip = policy.obs_normalizer.clip
                values = np.clip((values - shift) / scale, -clip, clip)
            leaves[key] = values
        return leaves if policy.takes_leaves else policy.obs_spec.nest(leaves)


def check_actor(actor: Actor, policy: Policy, num_rows: int) -> None:
    """Compare an actor with `Policy.forward` on random observations; disagreement is `ActorError`.

    Discrete actions must be equal under the same noise, continuous ones to 1e-4.
    """
    generator = np.random.Generator(np.random.PCG64(0))
    eager = EagerActor(policy)
    starts, state = np.ones(num_rows, bool), policy.initial_state(num_rows)
    noise = draw_noise(policy.action_spec, generator, _CHECKED_BATCHES, num_rows)
    for step in range(_CHECKED_BATCHES):
        obs = {
            key: generator.standard_normal(leaf.shape).astype(leaf.dtype)
            for key, leaf in policy.obs_spec.zeros(num_rows).items()
        }
        found = actor.act(obs, state, starts, None, noise[step])[0]["action"]
        wanted = eager.act(obs, state, starts, None, noise[step])[0]["action"]
        if not torch.allclose(found, wanted, rtol=_TOLERANCE, atol=_TOLERANCE):
            raise ActorError(f"the actor disagrees with the policy: {found} instead of {wanted}")


def make_actor(kind: str, policy: Policy, num_rows: int) -> Actor:
    """An actor of one `kind` for groups of `num_rows`; ``auto`` takes the fastest that agrees.

    Asking for ``numpy`` where it cannot be had is an `ActorError` that says why.
    """
    if kind == "eager":
        return EagerActor(policy)
    try:
        actor = NumpyActor(policy, num_rows)
        was_training = policy.training
        policy.eval()
        check_actor(actor, policy, num_rows)
        policy.train(was_training)
    except ActorError as error:
        if kind == "numpy":
            raise ActorError(
                f"actor='numpy' was asked for, but {error}; use actor='auto' or 'eager'"
            ) from error
        return EagerActor(policy)
    return actor
