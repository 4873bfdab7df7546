"""Wrappers of vectorised environments: what they do not say, the environments below say."""

import copy

import gymnasium
import pytest

from metta.envs import make_vec_env
from metta.envs.vec_env_wrapper import VecEnvWrapper


def test_the_environments_below_answer_when_a_wrapper_does_not() -> None:
    inner = make_vec_env("CartPole-v1", num_envs=2)
    wrapper = VecEnvWrapper(inner)
    assert wrapper.obs_spec is inner.obs_spec
    assert wrapper.num_resets == 0
    assert wrapper.prepare_restore("replay").restore_class == "replay"
    with pytest.raises(AttributeError, match="no_such_thing"):
        wrapper.no_such_thing  # noqa: B018 (asked for, not used)
    # copying asks a wrapper for its methods before it has anything below
    assert isinstance(copy.copy(wrapper).inner, type(inner))
    wrapper.close()


def test_nothing_is_promised_when_environments_have_no_state() -> None:
    inner = gymnasium.make_vec("CartPole-v1", num_envs=1, vectorization_mode="sync")
    made = make_vec_env(inner)
    assert VecEnvWrapper(made).prepare_restore().restore_class == "boundary"
    made.close()
