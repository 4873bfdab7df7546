"""Games of the Atari 2600 by their ids: preprocessing, clipped rewards, raw returns, exact resume."""

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metta import PPOTrainer
from metta.envs import make_vec_env
from metta.envs.backends.clipped_rewards import ClippedRewards
from metta.envs.env_ids import factory_of_id

pytest.importorskip("ale_py", reason="the extra 'atari' is not installed")

SHORT = {"max_num_frames_per_episode": 160, "img_height": 36, "img_width": 36}
"""Forty steps; frames of the smallest size that the network for pixels takes."""


def gymnasium_env(env_id: str, kwargs: dict[str, Any]) -> Any:
    """As replays have it."""
    return factory_of_id(env_id, {**kwargs, "render_mode": "rgb_array"}, ())()


def trainer_of(**more: Any) -> PPOTrainer:
    settings = {"num_envs": 2, "horizon": 32, "update_epochs": 1, "num_minibatches": 1}
    settings |= {"hidden_size": 8, "numerics.threads": 1, "env_kwargs": SHORT}
    return PPOTrainer(None, "ALE/MsPacman-v5", **{**settings, **more})


def test_frames_are_grey_small_and_stacked_when_a_game_is_named() -> None:
    with closing(make_vec_env("ALE/Breakout-v5", num_envs=2)) as envs:
        (leaf,) = envs.obs_spec.leaves
        assert leaf.is_image
        assert leaf.shape == (4, 84, 84)
        first, again, other = (envs.obs_spec.zeros(2) for _ in range(3))
        envs.reset([1, 2], first)
        envs.reset([1, 2], again)
        envs.reset([3, 4], other)
        assert np.array_equal(first["obs"], again["obs"])
        assert not np.array_equal(first["obs"], other["obs"])


def test_learning_sees_clipped_rewards_when_returns_are_raw() -> None:
    longer: Any = {"env_kwargs": {**SHORT, "max_num_frames_per_episode": 480}, "horizon": 128}
    with trainer_of(**longer) as trainer:
        history = trainer.train(total_timesteps=256)
        rewards = trainer.collect_rollouts()["rewards"]
    assert set(np.unique(rewards)) <= {-1.0, 0.0, 1.0}
    found = [value for value in history["episode_return"] if value == value]
    # a dot of the maze is worth 10, and clipped 1
    assert found
    assert all(value >= 20.0 and value % 5 == 0 for value in found), found
    longer["env_kwargs"]["reward_clipping"] = False
    with trainer_of(**longer) as trainer:
        assert trainer.collect_rollouts()["rewards"].max() == 10.0
    with closing(make_vec_env("ALE/MsPacman-v5", env_kwargs=SHORT)) as scored:
        assert not isinstance(scored, ClippedRewards)


def test_settings_of_the_game_come_first_when_they_are_given() -> None:
    kwargs = {**SHORT, "frameskip": 8}
    with closing(make_vec_env("ALE/MsPacman-v5", env_kwargs=kwargs)) as envs:
        obs = envs.obs_spec.zeros(1)
        envs.reset([1], obs)
        for step in range(20):
            envs.send(0, np.array([0]))
            assert envs.recv(0, obs).truncated[0] == (step == 19)


def test_rewards_are_clipped_when_an_id_names_its_module_too() -> None:
    with PPOTrainer(None, "ale_py:ALE/MsPacman-v5", env_kwargs=SHORT, num_envs=1) as trainer:
        assert isinstance(trainer.env, ClippedRewards)


def test_the_newest_frame_is_drawn_when_a_game_is_shown() -> None:
    game = gymnasium_env("ALE/MsPacman-v5", SHORT)
    with closing(game):
        observation, _ = game.reset(seed=1)
        differ = 0
        for _ in range(30):
            assert np.array_equal(game.render(), np.repeat(observation[-1][..., None], 3, -1))
            differ += not np.array_equal(observation[-1], observation[0])
            observation, *_ = game.step(2)
        assert differ > 0


def test_a_run_goes_on_equal_to_the_bit_when_it_is_resumed_in_a_game(tmp_path: Path) -> None:
    def digests(trainer: PPOTrainer) -> dict[str, str]:
        left_out = ("policy_tracker", "conditions")
        return {k: v for k, v in trainer.registry.digests().items() if k not in left_out}

    with trainer_of() as whole:
        whole.train(128)
        whole.save(tmp_path / "half")
        whole.train(128)
        wanted = digests(whole)
    with trainer_of() as resumed:
        resumed.load(tmp_path / "half")
        resumed.train(128)
        assert digests(resumed) == wanted
