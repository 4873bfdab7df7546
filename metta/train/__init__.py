"""Configuration of a run. Loads without torch."""

from metta.train.batch_sizing import BatchPlan, propose_batch
from metta.train.layers import Origin, Resolved, resolve
from metta.train.presets import PRESETS
from metta.train.run_config import (
    CheckpointConfig,
    CurriculumConfig,
    EvaluationConfig,
    LoggingConfig,
    WandbConfig,
)
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
    "PRESETS",
    "AgentConfig",
    "BatchPlan",
    "CheckpointConfig",
    "CurriculumConfig",
    "EvaluationConfig",
    "LoggingConfig",
    "NumericsConfig",
    "OptimizerConfig",
    "Origin",
    "PPOConfig",
    "Resolved",
    "RolloutConfig",
    "TrainerConfig",
    "TrainingConfig",
    "WandbConfig",
    "apply_settings",
    "propose_batch",
    "resolve",
]
