"""Actors: ways to draw actions from a policy, each derived from `Policy.forward` and held to it."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from metta.agent.action_spec import draw_noise
from metta.agent.actor_check import random_mask, random_obs, same_actions
from metta.agent.evaluation_mode import evaluating
from metta.agent.numpy_program import NumpyProgram
from metta.agent.output import State
from metta.agent.policy import Policy
from metta.errors import ActorError, ConfigError, did_you_mean

__all__ = ["Actor", "EagerActor", "NumpyActor", "check_actor", "make_actor"]

_KINDS = ("auto", "eager", "numpy")
_CHECKED_BATCHES = 16
_MOST_NUMPY_ROWS = 64
"""Beyond it torch is as fast: what NumPy saves is the overhead of each call."""
_STALE_DIFFERENCE = 1e-4
_WRONG_DIFFERENCE = 1e-2


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
        # not inference mode: autograd would refuse the results, and what modules cached meanwhile
        with torch.no_grad():
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
        _require_simple(policy)
        self.num_rows = num_rows
        self._example = random_obs(
            policy.obs_spec, np.random.Generator(np.random.PCG64(0)), num_rows
        )
        self.moments: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self._trace(policy)
        self.refresh(policy)

    def refresh(self, policy: Policy) -> None:
        """Copy weights and normaliser moments, and hold them once more to `Policy.forward`."""
        _require_simple(policy)
        if policy.module is not self.program.module:
            self._trace(policy)
        self._copy(policy)
        if self._difference() <= _STALE_DIFFERENCE:
            return
        # a Python attribute that was a constant of the trace has changed
        self._trace(policy)
        self._copy(policy)
        if not self._difference() <= _WRONG_DIFFERENCE:
            raise ActorError("the actor does not agree with the policy; use actor='eager'")

    def act(
        self,
        obs: Mapping[str, np.ndarray],
        state: State,
        starts: np.ndarray,  # noqa: ARG002 (protocol: recurrent actors need it)
        mask: np.ndarray | None,
        noise: np.ndarray,
    ) -> tuple[dict[str, Tensor], State]:
        """NumPy for the network, the action specification for the sample."""
        if len(noise) != self.num_rows:
            raise ActorError(f"this actor is for {self.num_rows} rows, but got {len(noise)}")
        legal = None if mask is None else torch.from_numpy(mask)
        params = torch.from_numpy(self._params(obs))
        return {
            "action": self.policy.action_spec.sample(params, torch.from_numpy(noise), legal)
        }, state

    def _trace(self, policy: Policy) -> None:
        self.policy = policy
        with np.errstate(all="ignore"):
            self.program = NumpyProgram(policy.module, self._inputs(self._example))

    def _copy(self, policy: Policy) -> None:
        self.policy = policy
        with np.errstate(all="ignore"):
            self.program.refresh()
        log_std = policy.log_std
        self.log_std = None if log_std is None else log_std.detach().numpy().copy()
        self.moments = {}
        if policy.obs_normalizer is not None:
            for key in policy.obs_normalizer.keys:
                leaf = policy.obs_normalizer.leaf(key)
                self.moments[key] = (leaf.shift.numpy().copy(), leaf.scale.numpy().copy())

    def _params(self, obs: Mapping[str, np.ndarray]) -> np.ndarray:
        # like torch, NumPy shall overflow to infinity without a word
        with np.errstate(all="ignore"):
            params = self.program.run(self._inputs(obs))
        if self.log_std is not None:
            log_std = np.broadcast_to(self.log_std, params.shape)
            params = np.concatenate([params, log_std], -1)
        # torch takes no read-only arrays, and a network may end in a broadcast
        return params if params.flags.writeable else params.copy()

    def _inputs(self, obs: Mapping[str, np.ndarray]) -> object:
        policy = self.policy
        leaves = {}
        for spec in policy.obs_spec.leaves:
            key, leaf = spec.key, obs[spec.key]
            if spec.kind == "discrete":
                first = np.array(spec.starts).reshape(spec.shape)
                leaves[key] = leaf - first if any(spec.starts) else leaf
                continue
            values = leaf if leaf.dtype == np.float32 else leaf.astype(np.float32)
            if policy.obs_normalizer is not None and key in self.moments:
                shift, scale = self.moments[key]
                clip = policy.obs_normalizer.clip
                values = np.clip((values - shift) / scale, -clip, clip)
            leaves[key] = values
        return policy.obs_spec.nest(leaves)

    def _difference(self) -> float:
        """Largest deviation from `Policy.forward`, relative to the largest parameter of its row."""
        leaves = {key: torch.from_numpy(leaf)[None] for key, leaf in self._example.items()}
        with torch.no_grad(), evaluating(self.policy):
            wanted: np.ndarray = self.policy(leaves).dist_params[0].numpy()
        found = self._params(self._example)
        same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
        with np.errstate(all="ignore"):
            gaps = np.where(same, 0.0, np.abs(found - wanted))
        sizes = np.abs(wanted).max(-1, initial=0.0, where=~np.isnan(wanted))
        return float((gaps.max(-1) / (1.0 + sizes)).max())


def check_actor(actor: Actor, policy: Policy, num_rows: int) -> None:
    """Compare an actor with `Policy.forward` on random observations; disagreement is `ActorError`.

    Under the same noise and masks discrete actions must be equal, except where two are tied to
    rounding, and continuous ones to 1e-4. Both act in evaluation mode.
    """
    generator = np.random.Generator(np.random.PCG64(0))
    eager, spec = EagerActor(policy), policy.action_spec
    states = [policy.initial_state(num_rows), policy.initial_state(num_rows)]
    noise = draw_noise(spec, generator, _CHECKED_BATCHES, num_rows)
    with evaluating(policy):
        for step in range(_CHECKED_BATCHES):
            obs = random_obs(policy.obs_spec, generator, num_rows)
            mask = random_mask(spec, generator, num_rows) if step % 2 else None
            starts = generator.random(num_rows) < (0.2 if step else 1.0)
            found, states[0] = actor.act(obs, states[0], starts, mask, noise[step])
            wanted, states[1] = eager.act(obs, states[1], starts, mask, noise[step])
            legal = None if mask is None else torch.from_numpy(mask).to(policy.device)
            drawn = torch.from_numpy(noise[step]).to(policy.device)
            if not same_actions(spec, wanted["dist_params"], drawn, legal, found["action"]):
                raise ActorError(
                    f"the actor disagrees with the policy: {found['action']} instead of "
                    f"{wanted['action']}"
                )


def make_actor(kind: str, policy: Policy, num_rows: int) -> Actor:
    """An actor of one `kind` for groups of `num_rows`; ``auto`` takes the fastest that agrees.

    Asking for ``numpy`` where it cannot be had is an `ActorError` that says why.
    """
    if kind not in _KINDS:
        raise ConfigError(f"actor={kind!r} is not one of {_KINDS}{did_you_mean(kind, _KINDS)}")
    if kind == "eager" or (kind == "auto" and num_rows > _MOST_NUMPY_ROWS):
        return EagerActor(policy)
    try:
        actor = NumpyActor(policy, num_rows)
        check_actor(actor, policy, num_rows)
    except ActorError as error:
        if kind == "numpy":
            raise ActorError(
                f"actor='numpy' was asked for, but {error}; use actor='auto' or 'eager'"
            ) from error
        return EagerActor(policy)
    return actor


def _require_simple(policy: Policy) -> None:
    if policy.is_recurrent or policy.device.type != "cpu" or policy.dtype != torch.float32:
        raise ActorError("only feed-forward float32 policies on the CPU have a NumPy actor")
    if policy.precision != torch.float32:
        raise ActorError("reduced precision has no NumPy actor")
