"""Learning: collect, learn, train."""

from typing import TYPE_CHECKING

from metta.lazy import lazy_exports

if TYPE_CHECKING:
    from metta.rl.collect.buffer import Experience, RolloutBuffer
    from metta.rl.collect.collector import RolloutCollector
    from metta.rl.collect.rollout_data import combine_rollouts
    from metta.rl.collect.rollout_report import describe_rollout
    from metta.rl.learn.custom_losses import CustomLoss
    from metta.rl.learn.optimizer import FlatAdam, make_optimizer
    from metta.rl.learn.ppo import PPOOptimizer
    from metta.rl.loop import run_training
    from metta.rl.ppo_trainer import PPOTrainer
    from metta.rl.training_state import TrainerState

__all__ = [
    "CustomLoss",
    "Experience",
    "FlatAdam",
    "PPOOptimizer",
    "PPOTrainer",
    "RolloutBuffer",
    "RolloutCollector",
    "TrainerState",
    "combine_rollouts",
    "describe_rollout",
    "make_optimizer",
    "run_training",
]

__getattr__, __dir__ = lazy_exports(  # parts of a run load without what surrounds it
    __name__,
    {
        "CustomLoss": "metta.rl.learn.custom_losses",
        "Experience": "metta.rl.collect.buffer",
        "FlatAdam": "metta.rl.learn.optimizer",
        "PPOOptimizer": "metta.rl.learn.ppo",
        "PPOTrainer": "metta.rl.ppo_trainer",
        "RolloutBuffer": "metta.rl.collect.buffer",
        "RolloutCollector": "metta.rl.collect.collector",
        "TrainerState": "metta.rl.training_state",
        "combine_rollouts": "metta.rl.collect.rollout_data",
        "describe_rollout": "metta.rl.collect.rollout_report",
        "make_optimizer": "metta.rl.learn.optimizer",
        "run_training": "metta.rl.loop",
    },
)
