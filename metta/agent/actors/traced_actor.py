"""`TracedActor`: the torch calls of `Policy.forward` without the Python of its modules."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from metta.agent.actors.check import random_obs
from metta.agent.actors.protocol import Actor
from metta.agent.actors.recorded_calls import record_calls
from metta.agent.evaluation_mode import evaluating
from metta.agent.output import State
from metta.agent.policy import Policy
from metta.errors import ActorError

__all__ = ["TracedActor"]


class TracedActor(Actor):
    """Repeats the torch calls of one recorded forward, on the live weights; recurrent policies too.

        actor = TracedActor(policy, num_rows=8)
        produced, state = actor.act(obs, state, starts, None, noise)

    The same calls give the same bits as `EagerActor`. What the module's Python does beside them (counting,
    caching) happens only when the forward is recorded.
    """

    kind = "traced"
    produces = frozenset({"action", "value", "dist_params"})

    def __init__(self, policy: Policy, num_rows: int) -> None:
        self.num_rows = num_rows
        self._record(policy)
        self.refresh(policy)

    def refresh(self, policy: Policy) -> None:
        """Compare the calls with `Policy.forward` again; record them again if they are stale."""
        if policy is self.policy and self._agrees():
            return
        self._record(policy)
        if not self._agrees():
            raise ActorError("the actor does not agree with the policy; use actor='eager'")

    def act(
        self,
        obs: Mapping[str, np.ndarray],
        state: State,
        starts: np.ndarray,
        mask: np.ndarray | None,
        noise: np.ndarray,
    ) -> tuple[dict[str, Tensor], State]:
        """One forward of ``[1, n]``."""
        if len(noise) != self.num_rows:
            raise ActorError(f"this actor is for {self.num_rows} rows, but got {len(noise)}")
        leaves = [torch.from_numpy(obs[key]).unsqueeze(0) for key in self._obs_keys]
        begins = torch.from_numpy(starts).unsqueeze(0)
        with torch.no_grad():
            params, value, *parts = self._calls.run(
                [*leaves, begins, *(state[key] for key in self._state_keys)]
            )
            params = params[0]
            legal = None if mask is None else torch.from_numpy(mask)
            action = self.policy.action_spec.sample(params, torch.from_numpy(noise), legal)
        produced = {"action": action, "value": value[0], "dist_params": params}
        return produced, dict(zip(self._state_keys, parts, strict=True))

    def _record(self, policy: Policy) -> None:
        if policy.device.type != "cpu" or policy.precision != torch.float32:
            raise ActorError("only policies on the CPU, in full precision, have a traced actor")
        self.policy = policy
        self._obs_keys = [leaf.key for leaf in policy.obs_spec.leaves]
        self._state_keys = list(policy.initial_state(1))
        self._example = self._random_inputs()
        self._calls = record_calls(policy, self._forward, self._example)

    def _forward(self, *inputs: Tensor) -> list[Tensor]:
        """`Policy.forward` on a flat list: observation leaves, starts, parts of the state."""
        leaves = dict(zip(self._obs_keys, inputs, strict=False))
        state = dict(zip(self._state_keys, inputs[len(leaves) + 1 :], strict=True))
        output = self.policy(leaves, state, inputs[len(leaves)])
        return [output.dist_params, output.value, *(output.state[key] for key in self._state_keys)]

    def _random_inputs(self) -> list[Tensor]:
        policy, rows = self.policy, self.num_rows
        generator = np.random.Generator(np.random.PCG64(0))
        obs = random_obs(policy.obs_spec, generator, rows)
        starts = generator.random((1, rows)) < 0.2
        parts = [
            torch.from_numpy(generator.standard_normal(part.shape)).to(part)
            for part in policy.initial_state(rows).values()
        ]
        leaves = [torch.from_numpy(obs[key]).unsqueeze(0) for key in self._obs_keys]
        return [*leaves, torch.from_numpy(starts), *parts]

    def _agrees(self) -> bool:
        """Whether the recorded calls give what the policy gives, to the bit."""
        with torch.no_grad(), evaluating(self.policy), torch.random.fork_rng(devices=[]):
            wanted: Sequence[Tensor] = self._forward(*self._example)
            found = self._calls.run(self._example)
        return all(
            left.shape == right.shape and torch.allclose(left, right, 0.0, 0.0, equal_nan=True)
            for left, right in zip(found, wanted, strict=True)
        )
