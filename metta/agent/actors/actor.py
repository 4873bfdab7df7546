"""Actors: ways to draw actions from a policy, each derived from `Policy.forward` and checked against it."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from metta.agent.actions.action_spec import draw_noise
from metta.agent.actors.c_actor import CActor
from metta.agent.actors.check import random_mask, random_obs, same_actions
from metta.agent.actors.numpy_actor import NumpyActor
from metta.agent.actors.protocol import Actor
from metta.agent.actors.traced_actor import TracedActor
from metta.agent.evaluation_mode import evaluating
from metta.agent.networks.actor_critic import ActorCritic, RecurrentActorCritic
from metta.agent.output import State
from metta.agent.policy import Policy
from metta.errors import ActorError, ConfigError, did_you_mean

__all__ = [
    "Actor",
    "CActor",
    "EagerActor",
    "NumpyActor",
    "TracedActor",
    "check_actor",
    "make_actor",
]

_KINDS = ("auto", "eager", "traced", "numpy", "c")
_CHECKED_BATCHES = 16
_MAX_NUMPY_ROWS = 64
"""Beyond it torch is as fast: what NumPy saves is the overhead of each call."""
_MAX_C_PARAMETERS = 1_000_000
"""Beyond it torch's matrix products win."""
_CHECKED_ROWS = 64
"""A C actor takes any number of rows, so more need not be compared."""


class EagerActor(Actor):
    """Calls `Policy.forward` for each step; takes any policy."""

    kind = "eager"
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

    Asking for a kind that is not available raises an `ActorError` with the reason.
    """
    if kind not in _KINDS:
        raise ConfigError(f"actor={kind!r} is not one of {_KINDS}{did_you_mean(kind, _KINDS)}")
    if kind != "auto":
        try:
            return _checked(kind, policy, num_rows)
        except ActorError as error:
            raise ActorError(
                f"actor={kind!r} was asked for, but {error}; use actor='auto' or 'eager'"
            ) from error
    for candidate in _candidates(policy, num_rows):
        try:
            actor = _checked(candidate, policy, num_rows)
        except ActorError:
            continue
        # for many rows it is cheaper to compute values while acting than after the rollout
        has_values = "value" in actor.produces or actor.value_source is not None
        if has_values or num_rows <= _MAX_NUMPY_ROWS:
            return actor
    return EagerActor(policy)


def _candidates(policy: Policy, num_rows: int) -> list[str]:
    """Kinds of actors that may be faster than calling the policy, fastest first."""
    size = sum(parameter.numel() for parameter in policy.parameters())
    found = ["c"] if size <= _MAX_C_PARAMETERS else []
    if num_rows <= _MAX_NUMPY_ROWS:
        found.append("numpy")
        # users' modules may do more in Python than their torch calls show
        if isinstance(policy.module, ActorCritic | RecurrentActorCritic):
            found.append("traced")
    return found


def _checked(kind: str, policy: Policy, num_rows: int) -> Actor:
    """An actor of this kind that agrees with the policy; else `ActorError`."""
    actor: Actor
    match kind:
        case "eager":
            return EagerActor(policy)
        case "numpy":
            actor = NumpyActor(policy, num_rows)
        case "traced":
            actor = TracedActor(policy, num_rows)
        case _:
            actor, num_rows = CActor(policy), min(num_rows, _CHECKED_ROWS)
    check_actor(actor, policy, num_rows)
    return actor
