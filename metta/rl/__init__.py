"""Learning: collect, learn, train."""

from typing import TYPE_CHECKING

from metta.lazy import lazy_exports

if TYPE_CHECKING:
    from metta.rl.collector import RolloutCollector
    from metta.rl.custom_losses import CustomLoss
    from metta.rl.experience import Experience, RolloutBuffer
    from metta.rl.loop import run_training
    from metta.rl.optimizer import FlatAdam, make_optimizer
    from metta.rl.ppo import PPOOptimizer
    from metta.rl.ppo_trainer import PPOTrainer
    from metta.rl.rollout_data import combine_rollouts
    from metta.rl.rollout_report import describe_rollout
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
        "CustomLoss": "metta.rl.custom_losses",
        "Experience": "metta.rl.experience",
        "FlatAdam": "metta.rl.optimizer",
        "PPOOptimizer": "metta.rl.ppo",
        "PPOTrainer": "metta.rl.ppo_trainer",
        "RolloutBuffer": "metta.rl.experience",
        "RolloutCollector": "metta.rl.collector",
        "TrainerState": "metta.rl.training_state",
        "combine_rollouts": "metta.rl.rollout_data",
        "describe_rollout": "metta.rl.rollout_report",
        "make_optimizer": "metta.rl.optimizer",
        "run_training": "metta.rl.loop",
    },
)
