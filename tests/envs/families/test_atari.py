"""Games of the Atari 2600 by their ids: preprocessing, clipped rewards, raw returns, exact resume."""

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metta import PPOTrainer
from metta.envs import make_vec_env
from metta.envs.backends.clipped_rewards import ClippedRewards
from metta.envs.backends.lost_lives import LostLives
from metta.envs.configured import configured_vec_env
from metta.envs.env_ids import factory_of_id
from metta.envs.vec_env import LIFE_LOST, VecEnv
from metta.sim import run_episodes
from metta.train.train_config import RolloutConfig

pytest.importorskip("ale_py", reason="the extra 'atari' is not installed")

SHORT = {"max_num_frames_per_episode": 160, "img_height": 36, "img_width": 36}
"""Forty steps; frames of the smallest size that the network for pixels takes."""


LIVES = {"img_height": 36, "img_width": 36}
"""Games of five lives, about 30 steps each where play is random."""


def gymnasium_env(env_id: str, kwargs: dict[str, Any]) -> Any:
    """As replays have it."""
    return factory_of_id(env_id, {**kwargs, "render_mode": "rgb_array"}, ())()


def trainer_of(**more: Any) -> PPOTrainer:
    settings = {"num_envs": 2, "horizon": 32, "update_epochs": 1, "num_minibatches": 1}
    settings |= {"hidden_size": 8, "numerics.threads": 1, "env_kwargs": SHORT}
    env = more.pop("env", "ALE/MsPacman-v5")
    return PPOTrainer(None, env, **{**settings, **more})


def games_to_learn_from(**kwargs: Any) -> VecEnv:
    """Two games of Breakout, as a trainer has them."""
    rollout = RolloutConfig(num_envs=2, num_workers=kwargs.pop("num_workers", 0))
    return configured_vec_env("ALE/Breakout-v5", rollout, {**LIVES, **kwargs})


def played(games: VecEnv, num_steps: int = 150) -> list[dict[str, Any]]:
    """Each step of random play: flags, rewards, observations and numbers."""
    obs, generator, steps = games.obs_spec.zeros(2), np.random.default_rng(3), []
    with closing(games):
        games.reset([1, 2], obs)
        for _ in range(num_steps):
            games.send(0, generator.integers(4, size=2))
            result = games.recv(0, obs)
            flags = {"terminated": result.terminated.copy(), "truncated": result.truncated.copy()}
            more = {"starts": result.starts.copy(), "rewards": result.rewards.copy()}
            steps.append({**flags, **more, "obs": obs["obs"].copy(), "infos": list(result.infos)})
    return steps


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


def test_a_lost_life_ends_what_is_learnt_when_the_game_goes_on() -> None:
    learnt, whole = played(games_to_learn_from()), played(games_to_learn_from(life_loss_info=False))
    lives = 0
    for step, same in zip(learnt, whole, strict=True):
        assert all(np.array_equal(step[name], same[name]) for name in ("obs", "rewards", "starts"))
        assert np.array_equal(step["truncated"], same["truncated"])
        assert np.array_equal(same["terminated"], same["starts"])
        lost = [row for row, numbers in step["infos"] if LIFE_LOST in numbers]
        assert np.flatnonzero(step["terminated"] & ~same["terminated"]).tolist() == lost
        lives += len(lost)
    games = sum(step["terminated"].sum() for step in whole)
    # four of five lives are no end of a game
    assert games > 0
    assert lives >= 4 * games


def test_workers_tell_of_lost_lives_too() -> None:
    here, elsewhere = played(games_to_learn_from()), played(games_to_learn_from(num_workers=2))
    for step, same in zip(here, elsewhere, strict=True):
        for name in ("terminated", "truncated", "starts", "rewards", "obs"):
            assert np.array_equal(step[name], same[name]), name
        assert step["infos"] == same["infos"]


def test_returns_and_lengths_are_those_of_whole_games_when_lives_are_lost() -> None:
    found = {}
    for learns_lives in (True, False):
        kwargs = {**LIVES, "life_loss_info": learns_lives}
        with trainer_of(env="ALE/Breakout-v5", env_kwargs=kwargs, horizon=256) as trainer:
            data = trainer.collect_rollouts()
            stats = trainer.train(total_timesteps=512)
            found[learns_lives] = (data["terminated"].sum(), stats["episode_return"])
    assert found[True][0] > found[False][0] + 3
    assert np.array_equal(found[True][1], found[False][1], equal_nan=True)


def test_an_evaluation_plays_whole_games_when_lives_end_what_is_learnt() -> None:
    scored = make_vec_env("ALE/Breakout-v5", num_envs=3, env_kwargs=LIVES)
    with trainer_of(env="ALE/Breakout-v5", env_kwargs=LIVES) as trainer, closing(scored):
        scores = run_episodes(trainer.policy, scored, 3, seed=5)
    # a life is lost within 20 steps where the ball is not met
    assert min(scores.lengths) > 60
    assert not any(info for infos in scores.agents.infos for info in infos)


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
        assert isinstance(trainer.env, LostLives)
        assert isinstance(trainer.env.inner, ClippedRewards)


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


@pytest.mark.parametrize(
    "game", [{}, {"env": "ALE/Breakout-v5", "env_kwargs": LIVES}], ids=["frames", "lives"]
)
def test_a_run_goes_on_equal_to_the_bit_when_it_is_resumed_in_a_game(
    tmp_path: Path, game: dict[str, Any]
) -> None:
    def digests(trainer: PPOTrainer) -> dict[str, str]:
        left_out = ("policy_tracker", "conditions")
        return {k: v for k, v in trainer.registry.digests().items() if k not in left_out}

    with trainer_of(**game) as whole:
        whole.train(128)
        whole.save(tmp_path / "half")
        whole.train(128)
        wanted = digests(whole)
    with trainer_of(**game) as resumed:
        resumed.load(tmp_path / "half")
        resumed.train(128)
        assert digests(resumed) == wanted
