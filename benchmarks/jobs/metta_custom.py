"""metta with a user's own network and a custom loss."""

from torch import Tensor, nn

from benchmarks import settings as s
from metta import PPOTrainer


class Network(nn.Module):
    """Actor and critic apart, 2 x 64 tanh each."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = self._mlp(2)
        self.critic = self._mlp(1)

    def _mlp(self, outputs: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Linear(4, s.HIDDEN), nn.Tanh(),
            nn.Linear(s.HIDDEN, s.HIDDEN), nn.Tanh(),
            nn.Linear(s.HIDDEN, outputs),
        )  # fmt: skip

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(obs), self.critic(obs)


def small_values(new_values: Tensor) -> Tensor:
    """Keeps value predictions from growing without need."""
    return 1e-4 * new_values.square().mean()


trainer = PPOTrainer(
    Network(),
    "CartPole-v1",
    custom_losses=[small_values],
    **s.METTA_SETTINGS,
)
trainer.train(s.TOTAL_STEPS, on_epoch_end=lambda state, _: s.report(state.agent_step))
