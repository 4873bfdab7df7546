"""What a run remembers between epochs, in small containers that each have one purpose.

In a run of several ranks every field is of one kind, which its type names: see `On` and `fields_on`.
"""

import enum
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, NamedTuple, Protocol, get_type_hints

import numpy as np

from metta.agent.policy_record import PolicyRecord
from metta.sim.scores import EvalRewardSummary
from metta.stateful import StateRegistry

__all__ = [
    "CheckpointRequest",
    "LateScores",
    "On",
    "PolicyTracker",
    "StatsTracker",
    "TrainerState",
    "crossed",
    "fields_on",
]

_RECENT_EPISODES = 100


def crossed(previous: int, now: int, interval: int) -> bool:
    """Whether a multiple of `interval` lies in ``(previous, now]``; 0: never.

    Counters may jump over the multiple itself.
    """
    return interval > 0 and now // interval > previous // interval


class On(enum.Enum):
    """What a field holds on the ranks of a run."""

    EVERY_RANK = "replicated"
    """The same value on all of them, between two events."""
    EACH_RANK = "per rank"
    """What this process saw or asked for."""
    MASTER = "master only"
    """The first rank keeps it; on others it is empty, or what the checkpoint had that they began from."""


def fields_on(container: type) -> dict[str, On]:
    """The kind of every field of a container; those that are containers themselves are left out."""
    hints = get_type_hints(container, include_extras=True)
    found = {one.name: getattr(hints[one.name], "__metadata__", ()) for one in fields(container)}
    return {name: marks[0] for name, marks in found.items() if marks}


@dataclass
class StatsTracker:
    """Statistics that are not reported yet, and the run's ids in a stats database.

    Statistics are those of all shards, on every rank alike; the ids are on the master.
    """

    rollout_stats: Annotated[dict[str, list[float]], On.EVERY_RANK] = field(default_factory=dict)
    """One number per episode that ended since the last report."""
    grad_stats: Annotated[dict[str, float], On.EVERY_RANK] = field(default_factory=dict)
    """The last statistics of gradients."""
    stats_epoch_start: Annotated[int, On.EVERY_RANK] = 0
    """First epoch that the next report covers."""
    stats_epoch_id: Annotated[str | None, On.MASTER] = None
    stats_run_id: Annotated[str | None, On.MASTER] = None
    recent_returns: Annotated[deque[float], On.EVERY_RANK] = field(
        default_factory=lambda: deque(maxlen=_RECENT_EPISODES)
    )
    """Returns of the last 100 episodes."""

    state_name = "stats_tracker"
    state_version = 1

    def add_rollout_stats(self, stats: Mapping[str, Sequence[float] | float]) -> None:
        """Add what a rollout reported: one number per episode that ended, or a single number."""
        for name, numbers in stats.items():
            several = numbers if isinstance(numbers, Sequence) else np.ravel(numbers).tolist()
            self.rollout_stats.setdefault(name, []).extend(several)

    def add_returns(self, returns: Sequence[float]) -> None:
        """Add returns of ended episodes; the last 100 are kept, also after a report."""
        self.recent_returns.extend(returns)

    def clear_rollout_stats(self, next_epoch: int) -> None:
        """Forget what was reported; the next report begins with `next_epoch`."""
        self.rollout_stats.clear()
        self.stats_epoch_start = next_epoch

    def summary(self) -> dict[str, float]:
        """Means of what is not reported yet; they divide by samples, and empty lists give nothing."""
        return {
            name: sum(numbers) / len(numbers)
            for name, numbers in self.rollout_stats.items()
            if numbers
        }

    @property
    def mean_return(self) -> float:
        """Mean return of the last 100 episodes; NaN before the first ends."""
        recent = self.recent_returns
        return sum(recent) / len(recent) if recent else float("nan")

    def state_dict(self) -> dict[str, Any]:
        """Everything but the ids, which the event log keeps, as plain data."""
        return {
            "rollout_stats": {name: list(numbers) for name, numbers in self.rollout_stats.items()},
            "grad_stats": dict(self.grad_stats),
            "stats_epoch_start": self.stats_epoch_start,
            "recent_returns": list(self.recent_returns),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.rollout_stats = {name: list(n) for name, n in state["rollout_stats"].items()}
        self.grad_stats = dict(state["grad_stats"])
        self.stats_epoch_start = int(state["stats_epoch_start"])
        self.recent_returns = deque(state["recent_returns"], maxlen=_RECENT_EPISODES)


@dataclass
class PolicyTracker:
    """The policy that a run began with and the one it saved last; the master saves."""

    initial_policy_record: Annotated[PolicyRecord | None, On.MASTER] = None
    latest_saved_policy_record: Annotated[PolicyRecord | None, On.MASTER] = None

    state_name = "policy_tracker"
    state_version = 1
    in_digest = False  # it names files

    def add(self, record: PolicyRecord) -> None:
        """A policy was saved; the first one is remembered as the initial one."""
        self.initial_policy_record = self.initial_policy_record or record
        self.latest_saved_policy_record = record

    def clear(self) -> None:
        """Forget both, for a run that begins anew."""
        self.initial_policy_record = self.latest_saved_policy_record = None

    def summary(self) -> dict[str, Any]:
        """URIs of both."""
        initial, latest = self.initial_policy_record, self.latest_saved_policy_record
        return {"initial": initial and initial.uri, "latest": latest and latest.uri}

    def state_dict(self) -> dict[str, Any]:
        """Both records as plain data."""
        initial, latest = self.initial_policy_record, self.latest_saved_policy_record
        return {"initial": initial and initial.to_dict(), "latest": latest and latest.to_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        initial, latest = state["initial"], state["latest"]
        self.initial_policy_record = initial and PolicyRecord.from_dict(initial)
        self.latest_saved_policy_record = latest and PolicyRecord.from_dict(latest)


class CheckpointRequest(Protocol):
    """A requested checkpoint."""

    def take(self, registry: StateRegistry, policy: Any, state: "TrainerState") -> Any:
        """A snapshot of the run; None if there is nothing new to save."""
        ...

    def write(self, pending: Any) -> None:
        """Write what `take` gave, now or in the background."""
        ...


class LateScores(NamedTuple):
    """Scores that came some epochs after their policy."""

    epoch: int
    """Of the policy, as is `agent_step`."""
    agent_step: int
    scores: EvalRewardSummary


@dataclass
class TrainerState:
    """Counters of a run, what its hooks share, and whether to stop.

    An *epoch* is one rollout and one update. `agent_step` counts valid agent steps. Counters are those of
    the whole run, on every rank alike; scores are on the master, and what hooks leave and ask for is where
    they run.
    """

    agent_step: Annotated[int, On.EVERY_RANK] = 0
    epoch: Annotated[int, On.EVERY_RANK] = 0
    first_step: Annotated[int, On.EVERY_RANK] = 0
    """`agent_step` at which schedules began."""
    train_call: Annotated[int, On.EVERY_RANK] = 0
    """Number of the `PPOTrainer.train` call that is under way or was last."""
    call_was_stopped: Annotated[bool, On.EVERY_RANK] = False
    """Whether a hook ended that call, as far as the checkpoint knows that this was taken from."""
    progress: Annotated[float, On.EVERY_RANK] = 0.0
    """Share of the run that is done, 0..1; steers schedules."""
    stop_reason: Annotated[str | None, On.EACH_RANK] = None
    agreed_stop: Annotated[str | None, On.EVERY_RANK] = None
    """In a run of several processes, the reason that all of them know. Not saved."""
    metrics: Annotated[dict[str, float], On.EVERY_RANK] = field(default_factory=dict)
    """Metrics of the last epoch."""
    eval_scores: Annotated[EvalRewardSummary, On.MASTER] = field(default_factory=EvalRewardSummary)
    """The last scores; evaluation passes them to `record_scores`."""
    eval_epoch: Annotated[int | None, On.MASTER] = None
    """The epoch that they belong to."""
    late_scores: Annotated[list[LateScores] | None, On.MASTER] = None
    """What came from the background in this event; None: scores do not come late. Not saved."""
    owes_scores: Annotated[bool, On.MASTER] = False
    """Whether the run ended before all its evaluations had; a resumed run does them. Not saved."""
    stats: StatsTracker = field(default_factory=StatsTracker)
    policies: PolicyTracker = field(default_factory=PolicyTracker)
    shared: Annotated[dict[str, Any], On.EACH_RANK] = field(default_factory=dict)
    """For hooks to leave notes for each other; not saved."""
    checkpoint_requests: Annotated[list[CheckpointRequest], On.EACH_RANK] = field(
        default_factory=list
    )
    """Checkpoints that the loop takes when all hooks have received the epoch. Not saved."""

    state_name = "trainer_state"
    state_version = 1
    observed = frozenset({"eval_scores", "eval_epoch"})
    """What observers write: it is saved, and not part of the digest."""

    @property
    def agent_steps(self) -> int:
        """The same as `agent_step`."""
        return self.agent_step

    def request_stop(self, reason: str) -> None:
        """Ask for a stop at the end of this epoch; the first reason is kept."""
        self.stop_reason = self.stop_reason or reason

    def record_scores(self, scores: EvalRewardSummary) -> None:
        """The policy of the present epoch was evaluated."""
        self.eval_scores, self.eval_epoch = scores, self.epoch

    def note_policy(self, record: PolicyRecord) -> None:
        """A policy was saved."""
        self.policies.add(record)
        self.shared["latest_policy_uri"] = record.uri

    def measure_progress(self, total_timesteps: int) -> None:
        """Set `progress` for an epoch that begins now, in a run of `total_timesteps`."""
        self.progress = min((self.agent_step - self.first_step) / max(total_timesteps, 1), 1.0)

    def state_dict(self) -> dict[str, Any]:
        """Counters and scores; metrics are output, not state, and trackers are separate components."""
        return {
            "agent_step": self.agent_step,
            "epoch": self.epoch,
            "first_step": self.first_step,
            "train_call": self.train_call,
            "call_was_stopped": self.stop_reason is not None and "stop_signal" not in self.shared,
            "progress": self.progress,
            "eval_scores": self.eval_scores.to_dict(),
            "eval_epoch": self.eval_epoch,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore counters and scores."""
        self.agent_step, self.epoch = int(state["agent_step"]), int(state["epoch"])
        self.first_step, self.train_call = int(state["first_step"]), int(state["train_call"])
        self.call_was_stopped = bool(state["call_was_stopped"])
        self.progress = float(state["progress"])
        self.eval_scores = EvalRewardSummary.from_dict(state["eval_scores"])
        self.eval_epoch = state["eval_epoch"]
