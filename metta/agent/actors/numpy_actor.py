"""`NumpyActor`: the action branch as NumPy calls, for few rows."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from metta.agent.actions.categorical import MASKED_LOGIT, DiscreteSpec
from metta.agent.actors.graph_actor import GraphActor
from metta.agent.actors.numpy_program import NumpyProgram
from metta.agent.output import State
from metta.agent.policy import Policy
from metta.errors import ActorError

__all__ = ["NumpyActor"]


class NumpyActor(GraphActor):
    """Runs the action branch in NumPy; for small feed-forward networks on the CPU."""

    kind = "numpy"

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
        params, spec = self._params(obs), self.policy.action_spec
        if type(spec) is DiscreteSpec:
            # samples without converting to torch and back
            if mask is not None:
                params = np.where(mask, params, np.float32(MASKED_LOGIT))
            return {"action": torch.from_numpy((params + noise).argmax(-1))}, state
        legal = None if mask is None else torch.from_numpy(mask)
        action = spec.sample(torch.from_numpy(params), torch.from_numpy(noise), legal)
        return {"action": action}, state

    def _trace(self, policy: Policy) -> None:
        super()._trace(policy)
        with np.errstate(all="ignore"):
            params, example = self.recorded.outputs[0], self._inputs(self._example)
            self._program = NumpyProgram(self.recorded, params, example)

    def _copy(self, policy: Policy) -> None:
        super()._copy(policy)
        self._program.refresh()

    def _params(self, obs: Mapping[str, np.ndarray]) -> np.ndarray:
        # like torch, NumPy must overflow to infinity without a warning
        with np.errstate(all="ignore"):
            params = self._program.run(self._inputs(obs))
        if self.log_std is not None:
            log_std = np.broadcast_to(self.log_std, params.shape)
            params = np.concatenate([params, log_std], -1)
        # torch refuses read-only arrays, and a network may end in a broadcast
        return params if params.flags.writeable else params.copy()
