"""What actors without torch share: recorded calls of a network, checked against `Policy.forward`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from metta.agent.actors.check import difference, random_obs
from metta.agent.actors.plain_values import has_own_code, plain_values
from metta.agent.actors.protocol import Actor
from metta.agent.actors.recorded_calls import record_calls, refuse_hooks
from metta.agent.evaluation_mode import evaluating
from metta.agent.module_output import read_output
from metta.agent.output import PolicyOutput
from metta.agent.policy import Policy
from metta.errors import ActorError

__all__ = ["STALE_DIFFERENCE", "WRONG_DIFFERENCE", "GraphActor"]

STALE_DIFFERENCE = 1e-4
"""From the policy, relative to a row's largest parameter; beyond it a trace is made anew."""
WRONG_DIFFERENCE = 1e-2
"""Beyond it training ends; below, a new trace differs by rounding: 4e-3 where large weights cancel."""


class GraphActor(Actor):
    """Runs the action branch of a small feed-forward network on the CPU; subclasses implement how.

    Values and log-probabilities are left to one batched forward after the rollout.
    """

    kind = "graph"
    produces = frozenset({"action"})

    def __init__(self, policy: Policy, num_rows: int) -> None:
        require_simple(policy, self.kind)
        self.num_rows = num_rows
        self._example = random_obs(
            policy.obs_spec, np.random.Generator(np.random.PCG64(0)), num_rows
        )
        self.moments: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self._plain: tuple[Any, ...] = ()
        self._module: nn.Module | None = None
        self._rounding = 0.0
        self.refresh(policy)

    def refresh(self, policy: Policy) -> None:
        """Copy weights and normaliser moments, and compare with `Policy.forward` again.

        Networks without user code need the comparison only if more than tensors changed.
        """
        require_simple(policy, self.kind)
        refuse_hooks(policy.module)
        plain, has_code = plain_values(policy.module), has_own_code(policy.module)
        looks_same, self._plain = plain == self._plain, plain
        if policy.module is not self._module or not (looks_same or has_code):
            self._trace(policy)
        self._copy(policy)
        allowed = STALE_DIFFERENCE
        if looks_same:
            allowed = min(max(allowed, 2 * self._rounding), WRONG_DIFFERENCE)
        if (looks_same and not has_code) or self._difference() <= allowed:
            return
        # a Python attribute that was a constant of the recorded calls has changed
        self._trace(policy)
        self._copy(policy)
        self._rounding = self._difference()
        if not self._rounding <= WRONG_DIFFERENCE:
            raise ActorError("the actor does not agree with the policy; use actor='eager'")

    def _params(self, obs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Distribution parameters ``[n, P]`` of observations ``[n, ...]``."""
        raise NotImplementedError

    def _trace(self, policy: Policy) -> None:
        """Record the calls of the network, whose outputs are parameters and values."""
        self.policy, self._module = policy, policy.module
        example = {key: torch.from_numpy(leaf) for key, leaf in self._example.items()}
        inputs = policy.prepare(example)

        def forward(*leaves: Tensor) -> tuple[Tensor, Tensor]:
            seen = policy.obs_spec.nest(dict(zip(inputs, leaves, strict=True)))
            return read_output(policy.module(seen))[:2]

        self.recorded = record_calls(policy.module, forward, list(inputs.values()))

    def _copy(self, policy: Policy) -> None:
        """Copy weights and moments."""
        self.policy = policy
        log_std = policy.log_std
        self.log_std = None if log_std is None else log_std.detach().numpy().copy()
        self.moments = {}
        if policy.obs_normalizer is not None:
            for key in policy.obs_normalizer.keys:
                leaf = policy.obs_normalizer.leaf(key)
                self.moments[key] = (leaf.shift.numpy().copy(), leaf.scale.numpy().copy())

    def _inputs(self, obs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Leaves as the network sees them, in the order in which they were recorded."""
        policy, leaves = self.policy, []
        for spec in policy.obs_spec.leaves:
            key, leaf = spec.key, obs[spec.key]
            if spec.kind == "discrete":
                first = np.array(spec.starts).reshape(spec.shape)
                leaves.append(leaf - first if any(spec.starts) else leaf)
                continue
            values = leaf if leaf.dtype == np.float32 else leaf.astype(np.float32)
            if policy.obs_normalizer is not None and key in self.moments:
                shift, scale = self.moments[key]
                clip = policy.obs_normalizer.clip
                values = np.clip((values - shift) / scale, -clip, clip)
            leaves.append(values)
        return leaves

    def _difference(self) -> float:
        return difference(
            self._params(self._example), self._wanted().dist_params[0].numpy(force=True)
        )

    def _wanted(self) -> PolicyOutput:
        """The policy's own output for the example."""
        leaves = {key: torch.from_numpy(leaf)[None] for key, leaf in self._example.items()}
        with torch.no_grad(), evaluating(self.policy):
            output: PolicyOutput = self.policy(leaves)
        return output


def require_simple(policy: Policy, kind: str) -> None:
    """`ActorError` unless the policy is feed-forward, on the CPU and in float32."""
    name = {"numpy": "NumPy", "c": "C"}.get(kind, kind)
    if policy.is_recurrent or policy.device.type != "cpu" or policy.dtype != torch.float32:
        raise ActorError(f"only feed-forward float32 policies on the CPU have a {name} actor")
    if policy.precision != torch.float32:
        raise ActorError(f"reduced precision has no {name} actor")
