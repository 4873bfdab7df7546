"""What a run remembers between epochs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["TrainerState"]


@dataclass
class TrainerState:
    """Counters of a run and its wish to stop.

    An *epoch* is one rollout and one update. `agent_step` counts valid agent steps.
    """

    agent_step: int = 0
    epoch: int = 0
    progress: float = 0.0
    """Share of the run that is done, 0..1; steers schedules."""
    stop_reason: str | None = None
    stats: dict[str, float] = field(default_factory=dict)
    """Metrics of the last epoch."""

    state_name = "trainer_state"
    state_version = 1

    @property
    def agent_steps(self) -> int:
        """The same as `agent_step`."""
        return self.agent_step

    def request_stop(self, reason: str) -> None:
        """Ask for a stop at the end of this epoch; the first reason is kept."""
        self.stop_reason = self.stop_reason or reason

    def state_dict(self) -> dict[str, Any]:
        """Counters only: metrics are output, not state."""
        return {"agent_step": self.agent_step, "epoch": self.epoch, "progress": self.progress}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back counters."""
        self.agent_step, self.epoch = int(state["agent_step"]), int(state["epoch"])
        self.progress = float(state["progress"])
