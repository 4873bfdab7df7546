"""Observers of training: metrics, checkpoints, evaluation, and your own."""

from typing import TYPE_CHECKING

from metta.lazy import lazy_exports

if TYPE_CHECKING:
    from metta.rl.hooks.base import TrainerHook
    from metta.rl.hooks.checkpoint import CheckpointHook
    from metta.rl.hooks.evaluation import EvaluationHook
    from metta.rl.hooks.metrics import MetricsHook
    from metta.rl.hooks.registry import HookRegistry

__all__ = ["CheckpointHook", "EvaluationHook", "HookRegistry", "MetricsHook", "TrainerHook"]

__getattr__, __dir__ = lazy_exports(  # the loop imports the protocol, and must not load the hooks
    __name__,
    {
        "CheckpointHook": "metta.rl.hooks.checkpoint",
        "EvaluationHook": "metta.rl.hooks.evaluation",
        "HookRegistry": "metta.rl.hooks.registry",
        "MetricsHook": "metta.rl.hooks.metrics",
        "TrainerHook": "metta.rl.hooks.base",
    },
)
