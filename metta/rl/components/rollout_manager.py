"""`RolloutManager`: the rollout phase of a run."""

from metta.rl.collect.sharded_collector import Collector, Experience

__all__ = ["RolloutManager"]


class RolloutManager:
    """The interface of `RolloutCollector`."""

    def __init__(self, collector: Collector) -> None:
        self.collector = collector

    def collect(self) -> tuple[dict[str, list[float]], int]:
        """Run the rollout phase: fills `experience`; returns episode statistics and agent steps."""
        return self.collector.collect()

    @property
    def experience(self) -> Experience:
        """The experience that was collected last."""
        return self.collector.experience

    @property
    def num_rollouts(self) -> int:
        """Rollout phases up to now."""
        return self.collector.num_rollouts

    @property
    def num_episodes(self) -> int:
        """Episodes that ended in them."""
        return self.collector.num_episodes
