"""Configuration: what a run is, before anything is built. Loads without torch."""

from metta.train.batch_sizing import BatchPlan, propose_batch
from metta.train.settings import ALIASES, apply_settings
from metta.train.train_config import (
    AgentConfig,
    NumericsConfig,
    OptimizerConfig,
    PPOConfig,
    RolloutConfig,
    TrainerConfig,
    TrainingConfig,
)

__all__ = [
    "ALIASES",
    "AgentConfig",
    "BatchPlan",
    "NumericsConfig",
    "OptimizerConfig",
    "PPOConfig",
    "RolloutConfig",
    "TrainerConfig",
    "TrainingConfig",
    "apply_settings",
    "propose_batch",
]
