"""How much memory the rollouts of a run take."""

from typing import Any

from torch import Tensor

from metta.agent.policy import Policy
from metta.envs.vec_env import VecEnv
from metta.rl.collect.buffer import RolloutBuffer
from metta.train.train_config import TrainingConfig

__all__ = ["buffer_bytes"]


def buffer_bytes(config: TrainingConfig, env: VecEnv, policy: Policy) -> int:
    """Bytes of the rollout's tensors, computed from two small buffers: they grow by whole segments.

    `env` is one environment of those that `config` asks for.
    """
    rollout = config.trainer.rollout
    segment = min(rollout.bptt_horizon, rollout.horizon) if policy.is_recurrent else 1
    one, two = (
        _tensor_bytes(
            RolloutBuffer(policy, 1, count * segment, mask_size=env.mask_size, bptt_horizon=segment)
        )
        for count in (1, 2)
    )
    first, each = 2 * one - two, two - one
    rows = rollout.num_envs * env.num_rows
    return rows * (first + each * (rollout.horizon // segment))


def _tensor_bytes(buffer: RolloutBuffer) -> int:
    parts: list[Any] = list(vars(buffer).values())
    parts += [inner for part in parts if isinstance(part, dict) for inner in part.values()]
    return sum(part.nbytes for part in parts if isinstance(part, Tensor))
