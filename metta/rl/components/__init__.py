"""`Trainer` and the managers of its parts."""

from typing import TYPE_CHECKING

from metta.lazy import lazy_exports

if TYPE_CHECKING:
    from metta.rl.components.environment_manager import EnvironmentManager
    from metta.rl.components.evaluation_manager import EvaluationManager
    from metta.rl.components.optimizer_manager import OptimizerManager
    from metta.rl.components.rollout_manager import RolloutManager
    from metta.rl.components.stats_manager import StatsManager
    from metta.rl.components.trainer import Trainer
    from metta.rl.components.training_manager import TrainingManager

__all__ = [
    "EnvironmentManager",
    "EvaluationManager",
    "OptimizerManager",
    "RolloutManager",
    "StatsManager",
    "Trainer",
    "TrainingManager",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "EnvironmentManager": "metta.rl.components.environment_manager",
        "EvaluationManager": "metta.rl.components.evaluation_manager",
        "OptimizerManager": "metta.rl.components.optimizer_manager",
        "RolloutManager": "metta.rl.components.rollout_manager",
        "StatsManager": "metta.rl.components.stats_manager",
        "Trainer": "metta.rl.components.trainer",
        "TrainingManager": "metta.rl.components.training_manager",
    },
)
