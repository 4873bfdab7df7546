"""Trains with metta as a long run would, and stops once enough steps are measured."""

from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv
from torch import Tensor, nn

from benchmarks.speed.jobs.telling import report, told
from metta.envs.factory import EnvLike
from metta.rl.ppo_trainer import PPOTrainer
from metta.rl.training_state import TrainerState

__all__ = ["LONG_RUN", "OwnNetwork", "env_of", "make_trainer", "train"]

LONG_RUN = 100_000_000
"""Steps that the run is told to have: some choices of metta pay off in long runs only."""


class OwnNetwork(nn.Module):
    """What a user would write: actor and critic apart, 2 x 64 tanh each."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = self._mlp(2), self._mlp(1)

    def _mlp(self, outputs: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
        )

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and values."""
        return self.actor(obs), self.critic(obs)


def small_values(new_values: Tensor) -> Tensor:
    """A loss of a user's own: keeps predictions of value from growing without need."""
    return 1e-4 * new_values.square().mean()


class IdleHook:
    """Hears of every epoch and does nothing, to see what hearing costs."""

    def on_rollout_end(self) -> None:
        """Collecting is over."""

    def on_epoch_end(self) -> None:
        """An epoch is over."""


def make_trainer(details: Mapping[str, Any]) -> PPOTrainer:
    """A trainer for what a row of a workload says."""
    settings, env = {**details["settings"], "total_timesteps": LONG_RUN}, env_of(details)
    if details.get("custom"):
        return PPOTrainer(OwnNetwork(), env, custom_losses=[small_values], **settings)
    return PPOTrainer(None, env, **settings)


def env_of(details: Mapping[str, Any]) -> EnvLike:
    """The environment of a row, as a user would name or make it."""
    num_envs = details["settings"]["num_envs"]
    if details.get("pong"):
        return _pong(num_envs)
    name: str = details["env"]
    if details.get("vector"):
        mode = "vector_entry_point"
        return gymnasium.make_vec(name, num_envs=num_envs, vectorization_mode=mode)
    return name


def train(details: Mapping[str, Any]) -> None:
    """Train until ``steps``, and report after every epoch."""

    def on_epoch_end(state: TrainerState, _: dict[str, float]) -> None:
        report(state.agent_step)
        if state.agent_step >= details["steps"]:
            state.request_stop("enough steps are measured")

    hooks = [IdleHook() for _ in range(details.get("num_hooks", 0))]
    with make_trainer(details) as trainer:
        trainer.train(hooks=hooks, on_epoch_end=on_epoch_end)


def _pong(num_envs: int) -> VectorEnv[Any, Any, Any]:
    """Four grey frames of 84 x 84 pixels, every fourth frame."""
    from ale_py.vector_env import AtariVectorEnv  # an extra that only this workload needs

    made: VectorEnv[Any, Any, Any] = AtariVectorEnv(
        "pong", num_envs=num_envs, frameskip=4, stack_num=4, img_height=84, img_width=84,
        grayscale=True, reward_clipping=True,
    )  # fmt: skip
    return made


if __name__ == "__main__":
    train(told())
