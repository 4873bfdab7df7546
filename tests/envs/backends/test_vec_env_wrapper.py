"""Wrappers of vectorised environments: what they do not say, the environments below say."""

import copy
from typing import Any

import pytest

from metta.envs import make_vec_env
from metta.envs.backends.wrapper import VecEnvWrapper
from metta.errors import ConfigError


class Stateless:
    """A vectorised environment of somebody's own, without `state_dict`."""

    action_space = mask_size = None
    num_groups = 1


def test_the_environments_below_answer_when_a_wrapper_does_not() -> None:
    inner = make_vec_env("CartPole-v1", num_envs=2)
    wrapper = VecEnvWrapper(inner)
    assert wrapper.obs_spec is inner.obs_spec
    assert wrapper.num_resets == 0
    assert wrapper.prepare_restore("repeat").restore_class == "repeat"
    with pytest.raises(AttributeError, match="no_such_thing"):
        wrapper.no_such_thing  # noqa: B018 (asked for, not used)
    # copying asks a wrapper for its methods before it has anything below
    assert isinstance(copy.copy(wrapper).inner, type(inner))
    wrapper.close()


def test_nothing_is_promised_when_environments_have_no_state() -> None:
    environments: Any = Stateless()
    wrapper = VecEnvWrapper(environments)
    assert wrapper.prepare_restore().restore_class == "boundary"
    assert wrapper.prepare_restore("sync_reset").restore_class == "sync_reset"
    with pytest.raises(ConfigError, match="which Stateless lacks"):
        wrapper.prepare_restore("snapshot")
