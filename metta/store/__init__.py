"""Bytes on disk: rollouts and policies, as data and never as code."""

from metta.store.policy_file import load_weights, save_policy
from metta.store.rollout_file import Rollout, load_rollout, save_rollout

__all__ = ["Rollout", "load_rollout", "load_weights", "save_policy", "save_rollout"]
