"""The recipe that a run would follow, for commands that show settings without training."""

from contextlib import closing
from typing import TYPE_CHECKING

from metta.envs.factory import make_vec_env
from metta.envs.facts import recipe_of

if TYPE_CHECKING:
    from metta.train.layers import Resolved

__all__ = ["resolved_with_recipe"]


def resolved_with_recipe(resolved: "Resolved") -> "Resolved":
    """The settings that a run would have; one environment is made to find out what it is."""
    config = resolved.config
    about, num_envs = config.trainer.curriculum, config.trainer.rollout.num_envs
    made = make_vec_env(config.env, env_kwargs=about.env_kwargs, wrappers=about.wrappers)
    with closing(made) as env:
        return resolved.with_recipe(recipe_of(config, env, config.env, num_envs=num_envs))
