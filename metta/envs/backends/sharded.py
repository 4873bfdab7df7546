"""`ShardedVecEnv`: the environments of several shards, each a `VecEnv` of its own."""

from collections.abc import Sequence
from typing import Any

from metta.envs.vec_env import VecEnv

__all__ = ["ShardedVecEnv", "shards_of"]


class ShardedVecEnv:
    """What the shards of a process have in common; each is collected from on its own.

    It has no `reset` and no `send`. `num_rows` counts the rows of all of them, and every other attribute is
    that of the first. `num_run_rows` are those of all `num_shards` of the run.
    """

    def __init__(self, shards: Sequence[VecEnv], num_shards: int) -> None:
        self.shards = list(shards)
        first = self.shards[0]
        self.observation_space, self.action_space = first.observation_space, first.action_space
        self.obs_spec, self.mask_size = first.obs_spec, first.mask_size
        self.num_groups = first.num_groups
        self.num_rows = sum(shard.num_rows for shard in self.shards)
        self.num_shards, self.num_run_rows = num_shards, first.num_rows * num_shards

    def __getattr__(self, name: str) -> Any:
        if name in ("shards", "run_steps", "is_fusable", "reset", "send", "recv"):
            raise AttributeError(name)
        return getattr(self.shards[0], name)

    @property
    def num_resets(self) -> int:
        """How often shards were reset."""
        return sum(shard.num_resets for shard in self.shards)

    def close(self) -> None:
        """Close all of them."""
        for shard in self.shards:
            shard.close()


def shards_of(env: Any) -> list[VecEnv]:
    """The environments of each shard; of a single one, itself."""
    return env.shards if isinstance(env, ShardedVecEnv) else [env]
