"""Learning: collect, learn, train."""

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
