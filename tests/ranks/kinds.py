"""Small runs of every kind, of four shards each, for any number of processes.

torchrun --nproc-per-node 2 -m tests.ranks.kinds FOLDER KIND...    # prints a digest for each kind
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from metta import Trainer
from metta.envs.toy import CorridorEnv, MaskedCorridorEnv
from metta.train.train_config import TrainingConfig

SMALL = {
    "num_envs": 8, "horizon": 16, "update_epochs": 2, "num_minibatches": 2, "hidden_size": 8,
    "bptt_horizon": 8, "num_shards": 4, "recipe": "none", "verbose": False, "seed": 5,
    "eval_episodes": 0, "checkpoint_interval": 2, "rank_timeout_seconds": 60.0,
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "mlp": {"normalize_observations": True, "normalize_returns": True},
    "lstm": {"core": "lstm", "gradient_accumulation": 2},
    "continuous": {"env": "Pendulum-v1", "schedule": "adaptive_kl", "target_kl": 0.01},
    "native": {"env": "metta/cartpole", "optimizer.name": "sgd"},
    "self-play": {"env": "grid/gather", "learner_share": 0.5, "self_play_interval": 2},
    "masks": {"own_env": MaskedCorridorEnv},
    "custom loss": {"losses": True},
    "dropout": {"network": True},
    "curriculum": {
        "trainer.curriculum.kind": "learning_progress",
        "trainer.curriculum.buckets": {"max_episode_steps": [4, 8, 16]},
    },
}
ELSEWHERE: dict[str, dict[str, Any]] = {
    "mlp in processes": {**KINDS["mlp"], "collect.kind": "process"},
    "lstm ahead": {**KINDS["lstm"], "collect.kind": "process", "collect.overlap": True},
}
"""Shards that are collected by further processes of each rank."""


class Breaking(CorridorEnv):
    """Fails in the middle of the second rollout."""

    taken = 0

    def step(self, action: Any) -> Any:
        Breaking.taken += 1
        if Breaking.taken > 80:
            raise OSError("the cable came loose")
        return super().step(action)


class Targets(nn.Module):
    """A loss with parameters of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.level = nn.Parameter(torch.zeros(()))

    def forward(self, new_values: Tensor, returns: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        error = (self.level + new_values.mean() - returns.mean()).square()
        return error, {"level": self.level.detach()}


class Dropping(nn.Module):
    """A network that draws numbers while it learns."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 3))

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        found = self.body(obs)
        return found[:, :2], found[:, 2]


def trainer_of(kind: str, folder: Path, epochs: int = 4, **settings: Any) -> Trainer:
    chosen = {**SMALL, **(KINDS | ELSEWHERE)[kind], **settings}
    env, losses = chosen.pop("own_env", None), [Targets()] if chosen.pop("losses", False) else []
    torch.manual_seed(0)
    policy = Dropping() if chosen.pop("network", False) else None
    rows = 16 if kind == "self-play" else 8
    config = TrainingConfig.from_dict({**chosen, "total_timesteps": epochs * 16 * rows})
    return Trainer(config, None, policy, env=env, custom_losses=losses, run_dir=folder)


def digest_of(kind: str, folder: Path, epochs: int = 4, **settings: Any) -> str:
    with trainer_of(kind, folder, epochs, **settings) as trainer:
        trainer.train()
        return trainer.digest()


def main() -> None:
    folder, *kinds = sys.argv[1:]
    rank = int(os.environ["RANK"])
    for kind in kinds:
        settings = {}
        if kind == "other seeds":
            kind, settings = "mlp", {"seed": rank}
        if kind == "an error":
            kind, settings = "mlp", {"own_env": Breaking if rank else CorridorEnv}
        digest = digest_of(kind, Path(folder) / kind, **settings)
        if rank == 0:
            sys.stdout.write(json.dumps({kind: digest}) + "\n")


if __name__ == "__main__":
    main()
