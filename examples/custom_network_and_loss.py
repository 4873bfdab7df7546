"""Your own network, a loss beside PPO's, and a column of your own in the rollout.

python examples/custom_network_and_loss.py [--steps N]
"""

import argparse

import torch
from torch import Tensor, nn

from metta import CustomLoss, PPOTrainer

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=40_000, help="agent steps of the run")


class Network(nn.Module):
    """One trunk; beside logits and value it predicts where the pole is going."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.logits, self.value = nn.Linear(64, 2), nn.Linear(64, 1)
        self.prediction = nn.Linear(64, 4)

    def forward(self, obs: Tensor) -> dict[str, Tensor]:
        hidden = self.trunk(obs)
        return {
            "action_logits": self.logits(hidden),
            "value": self.value(hidden),
            "prediction": self.prediction(hidden),
        }


class PredictingTrainer(PPOTrainer):
    """Adds the next observation to the data, for the loss below."""

    def collect_rollouts(self, n_steps: int | None = None) -> dict[str, Tensor]:
        data = super().collect_rollouts(n_steps)
        following = data["observations"].roll(-1, 0)
        following[-1] = data["observations"][-1]
        data["next_observations"] = following
        return data


def prediction_loss(output, next_observations):  # type: ignore[no-untyped-def]  # receives what it names
    error = (output.extras["prediction"] - next_observations).square().mean()
    return error, {"rms": error.detach().sqrt()}


torch.manual_seed(0)
trainer = PredictingTrainer(
    Network(),
    "CartPole-v1",
    custom_losses=[CustomLoss(prediction_loss, weight=0.5, name="prediction")],
    learning_rate=1e-3,
    n_epochs=8,
)
history = trainer.train(parser.parse_args().steps)
print(f"return {history['episode_return'][-1]:.1f}")
print(f"prediction error {history['custom/prediction/rms'][0]:.3f} -> "
      f"{history['custom/prediction/rms'][-1]:.3f}")  # fmt: skip
