"""The saved policies that a run names as its opponents."""

from metta.agent.policy import Policy
from metta.envs.vec_env import VecEnv
from metta.store.policy_store import PolicyStore
from metta.train.train_config import TrainerConfig

__all__ = ["load_opponents"]

_RUNS = "runs"
"""Folder of the runs that opponents come from, such as ``first:best``."""


def load_opponents(config: TrainerConfig, vecenv: VecEnv) -> list[Policy]:
    """Every policy of ``self_play.opponents``, for the spaces of `vecenv`; none where all agents learn."""
    if config.self_play.learner_share == 1.0:
        return []
    store = PolicyStore(_RUNS)
    found = [store.load(uri, vecenv).policy for uri in config.self_play.opponents]
    return [policy for policy in found if policy is not None]
