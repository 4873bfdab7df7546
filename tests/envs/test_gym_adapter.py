from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import RecordEpisodeStatistics

from metta.envs import SerialVecEnv, StepResult
from metta.envs.gym_adapter import as_reward
from metta.envs.toy import CountdownEnv
from metta.errors import EnvError, SpaceError

from .faulty_envs import MaskedEnv, ReplyEnv, WideBoxEnv


def run(env: Any, num_steps: int, action: Any = 0) -> list[StepResult]:
    """Step one environment; each result is complete before the next step changes its arrays."""
    vec_env = SerialVecEnv([lambda: env])
    obs = vec_env.obs_spec.zeros(1)
    results = [vec_env.reset([1], obs)]
    for _ in range(num_steps):
        vec_env.send(0, np.asarray([action]))
        results.append(vec_env.recv(0, obs))
    return results


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        (2, 2.0),
        (True, 1.0),
        (np.float32(0.5), 0.5),
        (np.int16(-3), -3.0),
        (np.bool_(True), 1.0),
        (np.array(1.5), 1.5),
        (np.array([1.5]), 1.5),
    ],
)
def test_rewards_become_floats_when_they_come_in_a_usual_disguise(
    reward: Any, expected: float
) -> None:
    number = as_reward(reward)
    assert type(number) is float
    assert number == expected
    assert run(ReplyEnv(reward=reward), 1)[-1].rewards.tolist() == [expected]


@pytest.mark.parametrize("reward", [None, "1", [1.0], np.zeros(2), 1j, {}])
def test_rewards_are_refused_when_they_are_not_one_real_number(reward: Any) -> None:
    with pytest.raises(EnvError, match=r"row 0 .* failed at step 1: the reward is"):
        run(ReplyEnv(reward=reward), 1)


def test_numbers_are_reported_when_an_episode_ends() -> None:
    info = {
        "score": np.float32(0.5),
        "kills": 3,
        "won": True,
        "flag": np.bool_(False),
        "level": np.array(7),
        "name": "maze",
        "path": [1, 2],
        "position": np.zeros(1),
        "nested": {"a": 1.0},
    }
    numbers = {"score": 0.5, "kills": 3.0, "won": 1.0, "flag": 0.0, "level": 7.0}
    assert run(ReplyEnv(info=info), 2)[-1].infos == [(0, numbers)]


def test_nothing_is_reported_when_the_episode_goes_on() -> None:
    assert run(ReplyEnv(info={"score": 1.0}), 1)[-1].infos == []


def test_infos_are_gone_when_the_next_step_ends_nothing() -> None:
    assert run(ReplyEnv(info={"score": 1.0}), 3)[-1].infos == []


def test_gymnasiums_episode_statistics_are_left_out_when_recorded() -> None:
    assert run(RecordEpisodeStatistics(CountdownEnv(1)), 1)[-1].infos == [(0, {"length": 1.0})]


@pytest.mark.parametrize(
    ("observation", "complaint"),
    [
        (np.zeros(2, np.float32), r"shape \(2,\).* promises \(1,\)"),
        (np.float32(0), r"shape \(\)"),
        (np.array(["a"]), "dtype"),
        (np.array([None]), "dtype"),
        (None, "shape"),
    ],
)
def test_observations_are_refused_when_they_do_not_fit_their_space(
    observation: Any, complaint: str
) -> None:
    with pytest.raises(EnvError, match=rf"(?s)row 0 .* failed at step 1: .*{complaint}"):
        run(ReplyEnv(observation=observation), 1)


@pytest.mark.parametrize("observation", [[1.5], (1.5,), np.array([1.5]), np.array([1.5], "f2")])
def test_observations_are_converted_when_nothing_is_lost(observation: Any) -> None:
    vec_env = SerialVecEnv([lambda: ReplyEnv(observation=observation)])
    obs = vec_env.obs_spec.zeros(1)
    vec_env.reset([1], obs)
    vec_env.send(0, np.zeros(1, np.int64))
    vec_env.recv(0, obs)
    assert obs["obs"].tolist() == [[1.5]]


def test_float64_observations_are_stored_as_float32_when_the_space_is_wide() -> None:
    assert SerialVecEnv([WideBoxEnv]).obs_spec.leaves[0].dtype == np.float32


@pytest.mark.parametrize(
    ("space", "mask", "expected"),
    [
        (spaces.Discrete(3), [True, False, True], [1, 0, 1]),
        (spaces.Discrete(3, start=5), np.array([0, 1, 1], np.int8), [0, 1, 1]),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 0, 0, 1, 1]), [1, 0, 0, 1, 1]),
        (spaces.MultiDiscrete([2, 3]), (np.ones(2), np.array([0, 0, 1])), [1, 1, 0, 0, 1]),
        (spaces.MultiDiscrete(np.array([[2], [2]])), np.array([[1, 0], [0, 1]]), [1, 0, 0, 1]),
        (spaces.MultiBinary(2), np.array([1, 1, 0, 1], bool), [1, 1, 0, 1]),
    ],
)
def test_masks_are_flat_rows_of_booleans_when_given_in_any_usual_form(
    space: Any, mask: Any, expected: list[int]
) -> None:
    action = space.sample()
    for result in run(MaskedEnv([mask], space), 2, action):
        assert result.action_mask is not None
        assert result.action_mask.dtype == np.bool_
        assert result.action_mask.astype(int).tolist() == [expected]


@pytest.mark.parametrize(
    ("space", "mask", "complaint"),
    [
        (spaces.Discrete(3), np.zeros(3, bool), "leaves no legal"),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 1, 0, 0, 0]), "leaves no legal"),
        (spaces.Discrete(3), np.ones(2, bool), "2 entries of bool, but the action space needs 3"),
        (spaces.MultiDiscrete([2, 3]), np.ones((2, 3), bool), "6 entries"),
        (spaces.Discrete(3), np.array(["a", "b", "c"]), "booleans"),
        (spaces.Discrete(3), None, "info has no 'action_mask'"),
    ],
)
def test_masks_are_refused_when_no_policy_could_obey_them(
    space: Any, mask: Any, complaint: str
) -> None:
    good = np.ones(3 if isinstance(space, spaces.Discrete) else 5, bool)
    with pytest.raises(EnvError, match=rf"(?s)row 0 .* failed at step 1: .*{complaint}"):
        run(MaskedEnv([good, mask], space), 1, space.sample())


def test_a_mask_is_refused_when_the_first_reset_had_none() -> None:
    late = ReplyEnv(info={"action_mask": np.ones(2, bool)})
    with pytest.raises(EnvError, match="the first reset had none"):
        run(late, 2)


def test_infos_of_earlier_steps_stay_when_a_later_step_ends() -> None:
    quiet, ending = run(CountdownEnv(3), 3)[-2:]
    assert quiet.infos == []
    assert ending.infos == [(0, {"length": 3.0})]


def test_a_mask_is_refused_when_it_is_bad_in_reset_already() -> None:
    with pytest.raises(EnvError, match=r"failed at step 0: .*leaves no legal"):
        run(MaskedEnv([np.zeros(3, bool)]), 0)


class MaskedBoxEnv(CountdownEnv):
    def __init__(self) -> None:
        super().__init__()
        box = spaces.Box(0, 1, (1,), np.float32)
        self.observation_space = spaces.Dict({"x": box, "action_mask": box})
        self.action_space = box


def test_masks_are_refused_when_the_action_space_is_continuous() -> None:
    with pytest.raises(EnvError, match="cannot be masked"):
        SerialVecEnv([MaskedBoxEnv])


class DictActionEnv(CountdownEnv):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Dict({"a": spaces.Discrete(2)})


def test_action_spaces_are_refused_when_an_action_is_not_one_array() -> None:
    with pytest.raises(SpaceError, match="flatten it"):
        SerialVecEnv([DictActionEnv])


class OldStyleEnv(CountdownEnv):
    def step(self, action: int) -> Any:
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, info


def test_the_row_is_named_when_an_environment_returns_the_old_four_values() -> None:
    with pytest.raises(EnvError, match=r"row 0 .* failed at step 1: ValueError"):
        run(OldStyleEnv(), 1)


def test_wrappers_time_limits_truncate_when_made_by_gymnasium() -> None:
    env = gymnasium.make("CartPole-v1", max_episode_steps=1, disable_env_checker=True)
    result = run(env, 1)[-1]
    assert result.truncated.tolist() == [True]
    assert result.final is not None
