"""Advice for a run that cannot be resumed, in terms of the interface that was called."""

from typing import NamedTuple

__all__ = ["FOR_CHECKPOINT_DIR", "FOR_COMPONENTS", "FOR_LOAD", "FOR_RUNS", "Advice"]


class Advice(NamedTuple):
    """What the caller can do."""

    settings: str
    """If settings, environment or network differ from the saved ones."""
    inexact: str
    """How to accept other libraries, threads or devices."""


_AS_SAVED = "the saved settings, environment and network"
FOR_RUNS = Advice(
    f"Resume with {_AS_SAVED}, or begin another run (`metta train --run NAME`; in Python: another "
    "run_dir); `metta finetune RUN NAME=VALUE` begins one with the weights of this one",
    "--allow-inexact (in Python: allow_inexact=True)",
)
"""`metta train`, `metta resume`, `Trainer` and `train`."""
FOR_CHECKPOINT_DIR = Advice(
    f"Make the PPOTrainer with {_AS_SAVED}, or give it another checkpoint_dir",
    "PPOTrainer(..., allow_inexact=True)",
)
"""`PPOTrainer` with a `checkpoint_dir`."""
FOR_LOAD = Advice(
    f"Make the PPOTrainer with {_AS_SAVED}, then call load(); to take the weights alone, use "
    "metta.store.load_weights",
    FOR_CHECKPOINT_DIR.inexact,
)
"""`PPOTrainer.load` with a path."""
FOR_COMPONENTS = Advice(
    f"Train with {_AS_SAVED}, or save to another folder",
    "allow_inexact=True of functional_training_loop or create_training_components",
)
"""Policy stores, and hooks that save without a run directory."""
