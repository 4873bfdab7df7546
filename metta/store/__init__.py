"""Bytes on disk: rollouts, policies, checkpoints and runs, as data and never as code."""

from typing import TYPE_CHECKING

from metta.lazy import lazy_exports

if TYPE_CHECKING:
    from metta.store.checkpoints.files import (
        Checkpoint,
        list_checkpoints,
        read_checkpoint,
        write_checkpoint,
    )
    from metta.store.checkpoints.late_scores import add_late_score, read_late_scores
    from metta.store.policies.file import load_weights, save_policy
    from metta.store.policy_store import PolicyStore
    from metta.store.rollout_file import Rollout, load_rollout, save_rollout
    from metta.store.run_directory import RunDirectory

__all__ = [
    "Checkpoint",
    "PolicyStore",
    "Rollout",
    "RunDirectory",
    "add_late_score",
    "list_checkpoints",
    "load_rollout",
    "load_weights",
    "read_checkpoint",
    "read_late_scores",
    "save_policy",
    "save_rollout",
    "write_checkpoint",
]

__getattr__, __dir__ = lazy_exports(  # reading a rollout needs no environments
    __name__,
    {
        "Checkpoint": "metta.store.checkpoints.files",
        "PolicyStore": "metta.store.policy_store",
        "Rollout": "metta.store.rollout_file",
        "RunDirectory": "metta.store.run_directory",
        "add_late_score": "metta.store.checkpoints.late_scores",
        "list_checkpoints": "metta.store.checkpoints.files",
        "load_rollout": "metta.store.rollout_file",
        "load_weights": "metta.store.policies.file",
        "read_checkpoint": "metta.store.checkpoints.files",
        "read_late_scores": "metta.store.checkpoints.late_scores",
        "save_policy": "metta.store.policies.file",
        "save_rollout": "metta.store.rollout_file",
        "write_checkpoint": "metta.store.checkpoints.files",
    },
)
