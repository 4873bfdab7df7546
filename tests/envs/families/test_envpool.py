"""EnvPool: pools that are passed, and where their episodes end."""

import warnings
from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
import pytest

from metta import PPOTrainer
from metta.envs import make_vec_env
from metta.envs.vec_env import find_support
from metta.errors import ConfigError, EnvError

# importing EnvPool touches deprecated names of other packages
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    envpool = pytest.importorskip("envpool", reason="the extra 'envpool' is not installed")

LIMIT = 12
pytestmark = pytest.mark.filterwarnings("ignore:.*precision lowered:UserWarning")


def test_episodes_end_as_in_gymnasium_when_a_pool_is_stepped() -> None:
    """Row 0 falls, row 1 reaches its time limit; gymnasium's cart continues from each first state."""
    pool = envpool.make_gymnasium("CartPole-v1", num_envs=2, max_episode_steps=LIMIT)
    carts = [gymnasium.make("CartPole-v1").unwrapped for _ in range(2)]
    ends: list[set[str]] = [set(), set()]
    with closing(make_vec_env(pool)) as envs:
        obs = envs.obs_spec.zeros(2)
        result = envs.reset([1, 2], obs)
        lengths = [0, 0]
        for step in range(60):
            for row, cart in enumerate(carts):
                if result.starts[row]:
                    cart.reset()
                    cart.state = obs["obs"][row].astype(np.float64)  # type: ignore[attr-defined]
                    lengths[row] = 0
            ended = result.terminated | result.truncated
            actions = np.array([0, step % 2])
            envs.send(0, actions)
            result = envs.recv(0, obs)
            # the step after an end only resets: no action is taken, and nothing is earned
            assert (result.valid == ~ended).all()
            assert (result.starts == ended).all()
            assert (result.rewards == result.valid).all()
            for row, cart in enumerate(carts):
                if not result.valid[row]:
                    continue
                lengths[row] += 1
                seen, _, fell, _, _ = cart.step(int(actions[row]))
                np.testing.assert_allclose(obs["obs"][row], seen, rtol=1e-3, atol=1e-4)
                assert result.terminated[row] == fell
                assert result.truncated[row] == (lengths[row] == LIMIT and not fell)
                if result.terminated[row]:
                    ends[row].add("fell")
                if result.truncated[row]:
                    ends[row].add("cut")
                    assert result.final is not None
                    at = result.final.rows.tolist().index(row)
                    np.testing.assert_allclose(
                        result.final.obs["obs"][at], seen, rtol=1e-3, atol=1e-4
                    )
    assert ends == [{"fell"}, {"cut"}]


def test_a_pool_trains_when_it_is_passed() -> None:
    settings: Any = {"horizon": 16, "hidden_size": 8, "num_minibatches": 1}
    with PPOTrainer(None, envpool.make_gymnasium("CartPole-v1", num_envs=3), **settings) as trainer:
        assert trainer.env.num_rows == 3
        assert trainer.env_name == "CartPoleGymnasiumEnvPool"
        trainer.train(96)
        with pytest.raises(ConfigError, match="sync_reset"):
            find_support(trainer.env, "sync_reset")


def test_the_error_says_what_to_change_when_a_pool_cannot_be_used() -> None:
    pool = envpool.make_gymnasium("CartPole-v1", num_envs=4, batch_size=2)
    with pytest.raises(EnvError, match="leave batch_size out"):
        make_vec_env(pool)
