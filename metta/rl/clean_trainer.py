"""`Trainer` under the name of its clean loop: training modules and hooks, nothing else."""

from metta.rl.components.trainer import Trainer

__all__ = ["Trainer"]
