"""Environments as one component of a run's state."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from metta.envs.vec_env import RestorableVecEnv, RestoreClass, RestoreSupport, find_support
from metta.errors import EnvError, MettaWarning, StateError
from metta.rl.collect.collector import RolloutCollector
from metta.rl.training_state import crossed

__all__ = ["EnvironmentState", "ShardedEnvironments", "WantedRestore"]

WantedRestore = RestoreClass | Literal["auto"]

_ADVICE = (
    "resume with the environment that the run had, or with checkpoint.env_restore=boundary to begin fresh "
    "episodes"
)


class EnvironmentState:
    """The state of a collector's environments, for checkpoints.

    It must be restored after the collector, whose carried observations it compares with those that the
    environments show. Nothing is kept before `prepare`: environments are then of class `boundary`.
    """

    state_name = "environments"
    state_version = 1
    in_digest = False
    gives_copies = True
    """What `state_dict` returns is a copy already: snapshots do not copy it again."""

    def __init__(
        self,
        collector: RolloutCollector,
        wanted: WantedRestore = "auto",
        checkpoint_interval: int = 0,
    ) -> None:
        self.collector, self.wanted = collector, wanted
        _, slash, shard = collector.state_name.partition("/")
        self.state_name = f"{EnvironmentState.state_name}{slash}{shard}"
        self.checkpoint_interval = checkpoint_interval
        """From the settings: with ``sync_reset``, episodes end every so many epochs, saved or not."""
        self.support: RestoreSupport | None = None
        self.num_boundaries = 0
        """How often episodes were dropped because environments could not be restored."""

    def prepare(self, wanted: WantedRestore | None = None) -> RestoreSupport:
        """Find out by trying how these environments can be restored; does it once.

        ``sync_reset`` asks for fresh episodes after every checkpoint, in every run alike. The default
        is the class that the settings ask for.
        """
        if self.support is None:
            self.wanted = wanted or self.wanted
            self.support = find_support(self.collector.vec_env, self.wanted)
        return self.support

    def reset_before_checkpoint(self, epoch: int) -> None:
        """An epoch is over: with ``sync_reset``, episodes end here if the settings ask for a checkpoint."""
        if self.wanted == "sync_reset" and crossed(epoch - 1, epoch, self.checkpoint_interval):
            self.collector.resume_with_fresh_episodes()

    def state_dict(self) -> dict[str, Any]:
        """The environments' own state, in the layout of their class."""
        env, support = self.collector.vec_env, self.support
        is_kept = support is not None and support.restore_class in ("snapshot", "repeat")
        if not is_kept or not self.collector.is_under_way or not isinstance(env, RestorableVecEnv):
            return {"class": "boundary"}
        return env.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the environments; if that fails, fresh episodes begin."""
        env, collector = self.collector.vec_env, self.collector
        if state["class"] == "boundary" or self.wanted == "boundary":
            self.num_boundaries += collector.envs_out_of_sync
            if self.wanted == "sync_reset" and collector.envs_out_of_sync:
                warnings.warn(
                    "this run was saved between the checkpoints of its interval, where no episodes are "
                    "reset; fresh ones begin, so it differs from an uninterrupted one",
                    MettaWarning,
                    stacklevel=2,
                )
            return
        if not isinstance(env, RestorableVecEnv):
            raise StateError(
                f"the saved environments are of class {state['class']!r}, which "
                f"{type(env).__name__} cannot restore; {_ADVICE}"
            )
        try:
            seen = env.load_state_dict(state)
            problem = "" if collector.continues_from(seen) else "they show other observations"
        except EnvError as error:
            problem = str(error)
        except StateError as error:
            raise StateError(f"{error}; {_ADVICE}") from error
        if problem:
            self.num_boundaries += 1
            collector.resume_with_fresh_episodes()
            warnings.warn(
                f"the environments could not be restored: {problem}; fresh "
                "episodes begin, so this run differs from an uninterrupted one",
                MettaWarning,
                stacklevel=2,
            )


class ShardEnvironments(Protocol):
    """The environments of one shard, wherever they are."""

    @property
    def num_boundaries(self) -> int:
        """How often episodes were dropped because environments could not be restored."""
        ...

    def prepare(self, wanted: WantedRestore | None = None) -> RestoreSupport:
        """Find out how they can be restored."""
        ...

    def reset_before_checkpoint(self, epoch: int) -> None:
        """An epoch is over."""
        ...


class ShardedEnvironments:
    """The environments of all shards of this rank; each is a component of its own."""

    def __init__(self, shards: Sequence["ShardEnvironments"]) -> None:
        self.shards = list(shards)

    def prepare(self, wanted: WantedRestore | None = None) -> RestoreSupport:
        """Find out how they can be restored: all of them can do the same."""
        found = [shard.prepare(wanted) for shard in self.shards]
        return found[0]

    def reset_before_checkpoint(self, epoch: int) -> None:
        """As of `EnvironmentState`, in all shards."""
        for shard in self.shards:
            shard.reset_before_checkpoint(epoch)

    @property
    def num_boundaries(self) -> int:
        """How often episodes of a shard were dropped because environments could not be restored."""
        return sum(shard.num_boundaries for shard in self.shards)
