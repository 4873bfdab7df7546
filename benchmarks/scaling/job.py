"""One training run of one variant; prints what its epochs took, as JSON.

    python benchmarks/scaling/job.py '{"epochs": 3, "warmup": 1, "sleep": 0.002, "settings": {...}}'

It is started by its path, also under torchrun, and with an older checkout of metta on PYTHONPATH: it uses
nothing of this package, and of metta only what has always been there.
"""

import json
import os
import sys
import time
from typing import Any

import gymnasium
import numpy as np


class Sleeping(gymnasium.Env):
    """Each step sleeps, as an environment does that waits for a simulator; episodes have 64 steps."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (8,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    seconds = 0.0

    def __init__(self, seconds: float) -> None:
        self.seconds, self.taken = seconds, 0

    def reset(self, *, seed=None, options=None):  # noqa: ARG002  # gymnasium passes them
        super().reset(seed=seed)
        self.taken = 0
        return np.zeros(8, np.float32), {}

    def step(self, action):
        if self.seconds > 0:
            time.sleep(self.seconds)
        self.taken += 1
        observation = self.np_random.uniform(-1, 1, 8).astype(np.float32)
        return observation, float(action), False, self.taken == 64, {}


class Clock:
    """A hook: seconds of collecting and of the rest, epoch by epoch."""

    def __init__(self) -> None:
        self.collected: list[float] = []
        self.epochs: list[float] = []
        self._epoch = self._rollout = 0.0

    def on_epoch_start(self) -> None:
        self._epoch = time.perf_counter()

    def on_rollout_start(self) -> None:
        self._rollout = time.perf_counter()

    def on_rollout_end(self) -> None:
        self.collected.append(time.perf_counter() - self._rollout)

    def on_update_end(self) -> None:
        self.epochs.append(time.perf_counter() - self._epoch)


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Train, and leave out the epochs of the warm-up."""
    from metta import Trainer
    from metta.train.train_config import TrainingConfig

    warmup, epochs = job["warmup"], job["epochs"]
    settings = {"verbose": False, "recipe": "none", "eval_episodes": 0, **job["settings"]}
    batch = settings["num_envs"] * settings["horizon"]
    config = TrainingConfig.from_dict({**settings, "total_timesteps": (warmup + epochs) * batch})
    seconds, clock = job.get("sleep"), Clock()
    env = {} if seconds is None else {"env": lambda: Sleeping(seconds)}
    with Trainer(config, **env) as trainer:
        trainer.add_hook(clock)
        trainer.train()
        weights = trainer.policy.parameter_hash()
        parameters = sum(part.numel() for part in trainer.policy.parameters())
    return {
        "epoch_seconds": sum(clock.epochs[warmup:]) / epochs,
        "collect_seconds": sum(clock.collected[warmup:]) / epochs,
        "steps": batch,
        "parameters": parameters,
        "weights": weights,
    }


if __name__ == "__main__":
    found = run(json.loads(sys.argv[1]))
    if int(os.environ.get("RANK", "0")) == 0:
        sys.stdout.write(json.dumps(found) + "\n")
