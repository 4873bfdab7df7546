"""`TrainingManager`: the learning phase of a run."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from metta.rl.collect.buffer import RolloutBuffer
from metta.rl.collect.sharded_collector import Experience
from metta.rl.learn.custom_losses import CustomLoss, LossFunction
from metta.rl.learn.ppo import PPOOptimizer

__all__ = ["TrainingManager"]


class TrainingManager:
    """The interface of `PPOOptimizer`."""

    def __init__(
        self, ppo: PPOOptimizer, custom_losses: Sequence[CustomLoss | LossFunction] = ()
    ) -> None:
        self.ppo = ppo
        self.custom_losses = list(custom_losses)
        self.losses: dict[str, float] = {}
        """Means of the last update."""

    def compute_advantages(
        self, experience: RolloutBuffer | Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """``advantages`` and ``returns`` ``[T, N]`` of a rollout."""
        return self.ppo.compute_advantages(experience)

    def train(
        self, experience: Experience | Mapping[str, Tensor], *, progress: float = 0.0
    ) -> dict[str, float]:
        """Run the training phase: every minibatch of every pass, unless the KL limit stops it early."""
        self.losses = self.ppo.update(experience, self.custom_losses, progress=progress)
        return self.losses

    @property
    def stopped_early(self) -> bool:
        """Whether the last update ended at the KL limit."""
        return self.losses.get("kl_stopped", 0.0) > 0

    @property
    def num_updates(self) -> int:
        """Training phases up to now."""
        return self.ppo.num_updates
