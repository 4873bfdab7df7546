"""`RemoteShard`: a shard that is collected elsewhere, as this process sees it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from metta.curriculum import Curriculum
from metta.envs.vec_env import RestoreSupport, VecEnv
from metta.errors import StateError
from metta.rl.collect.buffer import RolloutBuffer
from metta.rl.collect.collector import CollectedPart, RolloutCollector
from metta.rl.remote.tasks import ShardResult
from metta.rl.resume.environment_state import EnvironmentState, WantedRestore
from metta.rl.training_state import crossed
from metta.state_tree import bytes_of_state, state_of_bytes

__all__ = ["NOBODY", "RemoteEnvironments", "RemoteShard"]

NOBODY = -1


class RemoteShard:
    """What is known here of a shard: its last rollout, and where it is, as bytes.

    Its state is that of a `RolloutCollector`, so that a run continues wherever its shards are collected.
    """

    state_version = RolloutCollector.state_version

    def __init__(
        self,
        number: int,
        vec_env: VecEnv,
        experience: RolloutBuffer,
        *,
        actor_kind: str,
        curriculum: Curriculum | None,
    ) -> None:
        self.number, self.vec_env, self.experience = number, vec_env, experience
        self.actor_kind, self.curriculum = actor_kind, curriculum
        self.state_name = RolloutCollector.state_name
        self.state = b""
        """A snapshot of collector and environments; empty: nothing has begun."""
        self.holder = NOBODY
        """The process that has the shard as it is in `state`, if one has."""
        self.support: RestoreSupport | None = None
        self.is_fresh = False
        """Whether unfinished episodes are dropped before the next rollout."""
        self.num_rollouts = self.num_episodes = self.num_boundaries = 0
        self.part: CollectedPart | None = None

    def take(self, result: ShardResult, process: int) -> None:
        """The shard has moved on."""
        self.state, self.holder, self.support = result.state, process, result.support
        self.num_rollouts, self.num_episodes = result.num_rollouts, result.num_episodes
        self.num_boundaries += result.num_boundaries
        self.part = result.part
        if result.part is None:
            return
        self.is_fresh = False
        device = self.experience.device
        self.experience.columns = {
            name: torch.from_numpy(np.array(column)).to(device)
            for name, column in result.columns.items()
        }

    @property
    def is_under_way(self) -> bool:
        """Whether episodes continue in the next rollout."""
        return self.num_rollouts > 0 and not self.is_fresh

    def resume_with_fresh_episodes(self) -> None:
        """Begin new episodes in the next rollout; unfinished ones are dropped and not counted."""
        parts, self.is_fresh = state_of_bytes(self.state), True
        own = parts[RolloutCollector.state_name]["state"]
        for numbers in (own["meter"]["returns"], own["meter"]["lengths"]):
            numbers[:] = 0
        own["carry"] = {}
        parts[EnvironmentState.state_name]["state"] = {"class": "boundary"}
        self.state = bytes_of_state(parts)

    def saved(self, name: str) -> dict[str, Any]:
        """The part of the shard's state that a component of this name has."""
        if not self.state:
            raise StateError("the shards of this run have not begun; call Trainer.setup() first")
        state: dict[str, Any] = state_of_bytes(self.state)[name]
        return state

    def replace(self, name: str, version: int, state: Mapping[str, Any]) -> None:
        """Continue with another state of this component."""
        parts = state_of_bytes(self.state)
        parts[name] = {"version": version, "state": state}
        self.state, self.holder = bytes_of_state(parts), NOBODY

    def state_dict(self) -> dict[str, Any]:
        """As of the collector that has the shard."""
        state: dict[str, Any] = self.saved(RolloutCollector.state_name)["state"]
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.replace(RolloutCollector.state_name, self.state_version, state)
        self.is_fresh = False
        self.num_rollouts = int(state["num_rollouts"])
        self.num_episodes = int(state["meter"]["num_episodes"])


class RemoteEnvironments:
    """The environments of a shard that is collected elsewhere."""

    state_version = EnvironmentState.state_version
    in_digest = False
    gives_copies = True

    def __init__(self, shard: RemoteShard, wanted: WantedRestore, checkpoint_interval: int) -> None:
        self.collector, self.wanted = shard, wanted
        self.checkpoint_interval = checkpoint_interval
        _, slash, number = shard.state_name.partition("/")
        self.state_name = f"{EnvironmentState.state_name}{slash}{number}"

    @property
    def num_boundaries(self) -> int:
        """How often episodes were dropped because environments could not be restored."""
        return self.collector.num_boundaries

    def prepare(self, wanted: WantedRestore | None = None) -> RestoreSupport:
        """How they can be restored, as the process found that has them."""
        del wanted  # it tried when it made them
        assert self.collector.support is not None
        return self.collector.support

    def reset_before_checkpoint(self, epoch: int) -> None:
        """As of `EnvironmentState`."""
        if self.wanted == "sync_reset" and crossed(epoch - 1, epoch, self.checkpoint_interval):
            self.collector.resume_with_fresh_episodes()

    def state_dict(self) -> dict[str, Any]:
        """The environments' own state."""
        state: dict[str, Any] = self.collector.saved(EnvironmentState.state_name)["state"]
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The process that gets the shard restores it, or begins fresh episodes with a warning."""
        self.collector.replace(EnvironmentState.state_name, self.state_version, state)
