"""A trainer in a forked process, whose evaluation in the background never ends."""

import functools
import os
import time
from pathlib import Path
from typing import Any

from metta.curriculum import Curriculum
from metta.envs.toy import CorridorEnv
from metta.rl.hooks import EvaluationHook
from metta.rl.ppo_trainer import PPOTrainer
from metta.train.train_config import EvaluationConfig


class Hanging(CorridorEnv):
    """Tells the process that plays it, and hangs."""

    def __init__(self, told: str) -> None:
        super().__init__()
        self.told = Path(told)

    def _advance(self, action: int) -> Any:
        part = self.told.with_suffix(".part")
        part.write_text(str(os.getpid()))
        part.rename(self.told)
        while True:
            time.sleep(60)


def train(told: str, cache: str) -> None:
    """Train for one epoch, and wait for its scores."""
    os.environ["METTA_CACHE_DIR"] = cache
    config = EvaluationConfig(where="process", evaluate_interval=1)
    hook = EvaluationHook(config, Curriculum(env=functools.partial(Hanging, told)))
    with PPOTrainer(None, CorridorEnv, num_envs=2, n_steps=8, n_epochs=1, hidden_size=8) as trainer:
        trainer.train(16, hooks=[hook])
