"""The recipe that a run would follow, for commands that show settings without training."""

import dataclasses
from typing import TYPE_CHECKING

from metta.envs.factory import make_vec_env
from metta.envs.facts import env_facts
from metta.envs.vec_env import VecEnv
from metta.train.recipes import Applied, with_recipe
from metta.train.train_config import TrainingConfig

if TYPE_CHECKING:
    from metta.train.layers import Resolved

__all__ = ["recipe_of", "resolved_with_recipe"]


def resolved_with_recipe(resolved: "Resolved") -> "Resolved":
    """The settings that a run would have; one environment is made to find out what it is."""
    config = resolved.config
    about = config.trainer.curriculum
    env = make_vec_env(config.env, env_kwargs=about.env_kwargs, wrappers=about.wrappers)
    try:
        return resolved.with_recipe(recipe_of(config, env))
    finally:
        env.close()


def recipe_of(config: TrainingConfig, env: VecEnv) -> Applied | None:
    """The recipe of a run on as many environments like this one as the configuration asks for."""
    about = config.trainer.curriculum
    facts = env_facts(env, config.env, about.env_kwargs, about.wrappers)
    rows = facts.rows * config.trainer.rollout.num_envs
    return with_recipe(config, dataclasses.replace(facts, rows=rows))
