"""Wrappers that settings name, around real environments."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from metta.curriculum import Task
from metta.envs.factory import make_vec_env
from metta.envs.rows.wrappers import wrap_env
from metta.envs.toy import CorridorEnv
from metta.envs.vec_env import find_support
from metta.errors import ConfigError, EnvError
from metta.train.wrappers import WRAPPERS


class PictureEnv(gymnasium.Env[Any, Any]):
    """Random images; the reward is the action."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 255, (6, 8, 3), np.uint8)
        self.action_space = spaces.Box(-2.0, 2.0, (1,), np.float32)
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._image(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self._image(), float(action[0]), self.steps == 40, False, {}

    def _image(self) -> np.ndarray:
        return self.np_random.integers(0, 256, (6, 8, 3), np.uint8)


class EntriesEnv(PictureEnv):
    """A dictionary of a vector and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict(  # type: ignore[assignment]  # another kind
            place=spaces.Box(-1.0, 1.0, (3,), np.float32), mood=spaces.Discrete(3)
        )

    def _image(self) -> Any:
        place = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        return {"place": place, "mood": int(self.np_random.integers(3))}


class SavedPicture(PictureEnv):
    """Gives and takes its state."""

    def get_state(self) -> Any:
        return {"steps": self.steps, "random": self.np_random}

    def set_state(self, state: Any) -> None:
        self.steps, self.np_random = state["steps"], state["random"]


CASES: dict[str, tuple[list[str], Any, tuple[int, ...]]] = {
    "FrameStack": (["FrameStack(4)"], SavedPicture, (4, 6, 8, 3)),
    "ResizeObservation": (["ResizeObservation(3, 4)"], SavedPicture, (3, 4, 3)),
    "GrayscaleObservation": (["GrayscaleObservation"], SavedPicture, (6, 8)),
    "ReshapeObservation": (["ReshapeObservation([48, 3])"], SavedPicture, (48, 3)),
    "FlattenObservation": (["FlattenObservation"], EntriesEnv, (6,)),
    "FilterObservation": (["FilterObservation(['place'])", "FlattenObservation"], EntriesEnv, (3,)),
    "RescaleObservation": (
        ["FilterObservation(['place'])", "FlattenObservation", "RescaleObservation(0, 1)"],
        EntriesEnv,
        (3,),
    ),
    "DelayObservation": (["DelayObservation(2)"], SavedPicture, (6, 8, 3)),
    "TimeAwareObservation": (
        ["ReshapeObservation([144])", "TimeLimit(9)", "TimeAwareObservation"],
        SavedPicture,
        (145,),
    ),
    "MaxAndSkipObservation": (["MaxAndSkipObservation(2)"], SavedPicture, (6, 8, 3)),
    "RescaleAction": (["RescaleAction(-1, 1)"], SavedPicture, (6, 8, 3)),
    "ClipAction": (["ClipAction"], SavedPicture, (6, 8, 3)),
    "StickyAction": (["StickyAction(0.5)"], SavedPicture, (6, 8, 3)),
    "RepeatAction": (["RepeatAction(3)"], SavedPicture, (6, 8, 3)),
    "ScaleReward": (["ScaleReward(0.5)"], SavedPicture, (6, 8, 3)),
    "ClipReward": (["ClipReward(-1, 1)"], SavedPicture, (6, 8, 3)),
    "SignReward": (["SignReward"], SavedPicture, (6, 8, 3)),
    "TimeLimit": (["TimeLimit(9)"], SavedPicture, (6, 8, 3)),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_steps_and_is_restored_to_the_bit_when_settings_name_it(name: str) -> None:
    wrappers, env, shape = CASES[name]
    vec_env = make_vec_env(env, num_envs=2, wrappers=wrappers)
    try:
        assert vec_env.observation_space.shape == shape
        obs = vec_env.obs_spec.zeros(2)
        vec_env.reset([1, 2], obs)
        for _ in range(3):
            vec_env.send(0, np.full((2, 1), 0.5, np.float32))
            vec_env.recv(0, obs)
        support = find_support(vec_env)
    finally:
        vec_env.close()
    best = "snapshot" if env is SavedPicture else "repeat"
    assert support.restore_class == best, support


def stepped(*wrappers: str, action: float = 1.5) -> tuple[Any, float]:
    """The observation and the reward of one step."""
    env = wrap_env(PictureEnv(), wrappers)
    env.reset(seed=3)
    observation, reward, *_ = env.step(np.array([action], np.float32))
    return observation, float(reward)


def test_rewards_follow_the_order_when_wrappers_are_combined() -> None:
    assert stepped("ScaleReward(2, 1)", "ClipReward(max_reward=3)")[1] == 3.0
    assert stepped("ClipReward(max_reward=1)", "ScaleReward(2, 1)")[1] == 3.0
    assert stepped("ScaleReward(scale=2)")[1] == 3.0
    assert stepped("SignReward", action=-0.1)[1] == -1.0
    assert stepped("RepeatAction(3)")[1] == 4.5


def test_repeated_actions_end_with_the_episode_when_it_is_short() -> None:
    env = wrap_env(PictureEnv(), ["TimeLimit(2)", "RepeatAction(5)"])
    env.reset(seed=1)
    _, reward, terminated, truncated, _ = env.step(np.array([1.0], np.float32))
    assert (reward, terminated, truncated) == (2.0, False, True)


def test_pixels_are_means_of_areas_when_an_image_is_resized() -> None:
    small, _ = stepped("ResizeObservation(3, 4)")
    large, _ = stepped()
    means = large.reshape(3, 2, 4, 2, 3).astype(float).mean(axis=(1, 3))
    np.testing.assert_allclose(small, np.rint(means), atol=1)
    assert small.dtype == np.uint8
    same, _ = stepped("ResizeObservation(6, 8)")
    np.testing.assert_array_equal(same, large)
    uneven, _ = stepped("ResizeObservation(4, 5)")
    assert abs(uneven.mean() - large.mean()) < 2.0
    wider, _ = stepped("ResizeObservation(12, 16)")
    np.testing.assert_array_equal(wider[::2, ::2], large)


@pytest.mark.parametrize(
    ("wrapper", "says"),
    [
        ("GrayscaleObservation()", r"GrayscaleObservation\(keep_dim=False\) does not fit .*\(5,\)"),
        ("ResizeObservation(2, 2)", "it resizes images"),
        ("FilterObservation(['x'])", "does not fit"),
        ("RescaleAction(0, 1)", "does not fit"),
    ],
)
def test_the_wrapper_and_the_spaces_are_named_when_they_do_not_fit(wrapper: str, says: str) -> None:
    with pytest.raises(EnvError, match=f"(?s){says}.*trainer.curriculum.wrappers"):
        make_vec_env(lambda: CorridorEnv(length=5), wrappers=[wrapper])


def test_pixels_are_not_rounded_to_nothing_when_they_would_be_rescaled() -> None:
    with pytest.raises(EnvError, match="these are uint8; leave it out for images"):
        make_vec_env(PictureEnv, wrappers=["RescaleObservation(0, 1)"])


def test_an_environment_that_exists_is_wrapped_once() -> None:
    env = PictureEnv()
    vec_env = make_vec_env(env, wrappers=["FrameStack(2)"])
    assert vec_env.observation_space.shape == (2, 6, 8, 3)
    assert find_support(vec_env).restore_class == "boundary"
    vec_env.close()


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ("grid/gather", "grid/gather, which steps all environments at once"),
        ("metta/cartpole", "metta/cartpole, which steps all environments at once"),
        ("pettingzoo:mpe2.simple_spread_v3", "many agents"),
    ],
)
def test_wrappers_are_refused_when_an_id_is_not_one_environment_of_one_agent(
    env: str, says: str
) -> None:
    with pytest.raises((ConfigError, EnvError), match=says):
        make_vec_env(env, wrappers=["TimeLimit(5)"])


def test_wrappers_are_refused_when_environments_are_vectors_already() -> None:
    vector = gymnasium.make_vec("CartPole-v1", num_envs=2)
    with pytest.raises(ConfigError, match=r"wrappers=.* cannot be used with a gymnasium VectorEnv"):
        make_vec_env(vector, wrappers=["TimeLimit(5)"])
    own = make_vec_env(vector)
    with pytest.raises(ConfigError, match="cannot be used with a VecEnv"):
        make_vec_env(own, wrappers=["TimeLimit(5)"])
    own.close()


def test_wrappers_are_refused_when_a_task_has_others() -> None:
    task = Task("CartPole-v1", wrappers=("TimeLimit(5)",))
    with pytest.raises(ConfigError, match="wrappers are given twice, and differ"):
        make_vec_env(task, wrappers=["TimeLimit(6)"])
