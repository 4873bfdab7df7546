from functools import partial
from typing import Any

import numpy as np
import pytest

from faults.saved_envs import SavedCountdown
from metta.envs import SerialVecEnv
from metta.envs.toy import BufferReuseEnv
from metta.errors import MettaWarning


def test_actions_are_logged_from_the_first_reset_on_whenever_the_class_is_found() -> None:
    vec_env = SerialVecEnv([partial(BufferReuseEnv, 3), partial(BufferReuseEnv, 5)])
    obs = vec_env.obs_spec.zeros(2)
    vec_env.reset([1, 2], obs)

    def step() -> None:
        vec_env.send(0, np.array([1, 0]))
        vec_env.recv(0, obs)

    step()
    vec_env.prepare_restore("repeat")
    for _ in range(3):
        step()
    state = vec_env.state_dict()
    assert state["class"] == "repeat"
    assert state["episodes"].tolist() == [1, 0]
    assert state["lengths"].tolist() == [1, 4]
    assert state["actions"].tolist() == [1, 0, 0, 0, 0]
    step()
    step()
    state = vec_env.state_dict()
    assert state["class"] == "repeat"
    assert state["seeds"].tolist() == [1, 2]
    assert state["episodes"].tolist() == [2, 1]
    assert state["lengths"].tolist() == [0, 1]
    assert state["actions"].tolist() == [0]


class ShyEnv(SavedCountdown):
    """Gives its state, until it shows a window."""

    shows = False

    def get_state(self) -> Any:
        return super().get_state() | ({"window": iter([1])} if self.shows else {})


def test_a_warning_says_so_when_an_environment_can_no_longer_be_read() -> None:
    vec_env = SerialVecEnv([ShyEnv])
    obs = vec_env.obs_spec.zeros(1)
    assert vec_env.prepare_restore().restore_class == "snapshot"
    vec_env.reset([1], obs)
    vec_env._envs[0].shows = True  # type: ignore[attr-defined]
    with pytest.warns(MettaWarning, match=r"\['window'\] is a list_iterator"):
        assert vec_env.state_dict() == {"class": "boundary"}


def test_fresh_episodes_are_announced_when_the_class_changes_to_one_that_was_not_logged() -> None:
    vec_env = SerialVecEnv([SavedCountdown])
    obs = vec_env.obs_spec.zeros(1)
    vec_env.reset([1], obs)
    vec_env.prepare_restore("snapshot")
    vec_env.send(0, np.array([0]))
    vec_env.recv(0, obs)
    vec_env.prepare_restore("repeat")
    with pytest.warns(MettaWarning, match=r"rows \[0\] since their last reset are not known"):
        assert vec_env.state_dict() == {"class": "boundary"}
    vec_env.reset([1], obs)
    assert vec_env.state_dict()["class"] == "repeat"


def test_actions_since_a_loaded_state_are_no_repetition_when_the_next_state_is_asked_for() -> None:
    vec_env, other = SerialVecEnv([SavedCountdown]), SerialVecEnv([SavedCountdown])
    obs = vec_env.obs_spec.zeros(1)
    vec_env.prepare_restore("snapshot")
    other.prepare_restore("repeat")
    vec_env.reset([1], obs)
    other.load_state_dict(vec_env.state_dict())
    other.send(0, np.array([0]))
    other.recv(0, obs)
    with pytest.warns(MettaWarning, match=r"rows \[0\]"):
        assert other.state_dict() == {"class": "boundary"}
