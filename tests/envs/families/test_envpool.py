"""Environments of EnvPool: one pool for all rows, seeds of our own, single ones where rows stand alone."""

import json
from contextlib import closing
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from metta import PPOTrainer
from metta.cli.main import main
from metta.envs import GymnasiumVecEnv, VecEnv, make_vec_env
from metta.envs.families.envpool import EnvPoolEnvs
from metta.errors import ConfigError, EnvError, MissingExtraError

envpool = pytest.importorskip("envpool", reason="the extra 'envpool' is not installed")


def pushed_right(envs: VecEnv, seeds: list[int], num_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Observations and starts of episodes ``[num_steps, rows, ...]``."""
    obs = envs.obs_spec.zeros(envs.num_rows)
    envs.reset(seeds, obs)
    seen, starts = [], []
    for _ in range(num_steps):
        envs.send(0, np.ones(envs.num_rows, np.int64))
        result = envs.recv(0, obs)
        seen.append(obs["obs"].copy())
        starts.append(result.starts.copy())
    return np.stack(seen), np.stack(starts)


def test_a_row_depends_on_its_own_seed_only_when_a_pool_is_reset() -> None:
    with closing(make_vec_env("envpool:CartPole-v1", num_envs=3)) as envs:
        assert isinstance(envs, GymnasiumVecEnv)
        first, starts = pushed_right(envs, [5, 6, 7], 30)
        again, _ = pushed_right(envs, [5, 6, 7], 30)
        turned, _ = pushed_right(envs, [7, 6, 5], 30)
    assert np.array_equal(first, again)
    assert np.array_equal(first, turned[:, ::-1])
    assert not np.array_equal(first[:, 0], first[:, 1])
    assert starts.sum() >= 3, "a pole that is only pushed to the right falls within 30 steps"


def test_the_rules_are_those_of_gymnasium_when_both_play_one_episode() -> None:
    with closing(make_vec_env("envpool:MountainCar-v0", num_envs=1)) as envs:
        obs = envs.obs_spec.zeros(1)
        envs.reset([3], obs)
        twin = gymnasium.make("MountainCar-v0").unwrapped
        twin.reset(seed=0)
        twin.state = obs["obs"][0].astype(np.float64)  # type: ignore[attr-defined]
        for step in range(200):
            envs.send(0, np.array([2]))
            result = envs.recv(0, obs)
            expected, reward, *_ = twin.step(2)
            assert obs["obs"][0] == pytest.approx(expected, abs=1e-4)
            assert result.rewards[0] == reward
            assert result.truncated[0] == (step == 199)
        envs.send(0, np.array([2]))
        result = envs.recv(0, obs)
        assert not result.valid[0], "this step only began the next episode"


@pytest.mark.parametrize("more", [{"num_workers": 1}, {"wrappers": ["TimeLimit(5)"]}])
def test_rows_are_single_environments_when_workers_or_wrappers_want_them(
    more: dict[str, object],
) -> None:
    with closing(make_vec_env("envpool:CartPole-v1", num_envs=2, **more)) as envs:  # type: ignore[arg-type]
        first, _ = pushed_right(envs, [5, 6], 8)
        again, _ = pushed_right(envs, [5, 6], 8)
    assert np.array_equal(first, again)


def test_an_end_by_time_is_told_apart_when_a_row_stands_alone() -> None:
    alone = {"wrappers": ["TimeLimit(500)"]}
    with closing(make_vec_env("envpool:MountainCar-v0", **alone)) as envs:  # type: ignore[arg-type]
        obs = envs.obs_spec.zeros(1)
        envs.reset([3], obs)
        for step in range(200):
            envs.send(0, np.array([2]))
            result = envs.recv(0, obs)
            assert (result.truncated[0], result.terminated[0]) == (step == 199, False)


def test_every_row_has_its_own_seed_when_a_pool_is_given_one() -> None:
    with closing(EnvPoolEnvs("envpool:CartPole-v1", 3)) as pool:
        first, _ = pool.reset(seed=5)
        assert np.array_equal(first, pool.reset(seed=[5, 6, 7])[0])
        assert len(np.unique(first, axis=0)) == 3


@pytest.mark.filterwarnings("ignore:.*precision lowered")  # EnvPool's own spaces
def test_a_pool_of_ones_own_trains_when_it_is_given(tmp_path: Path) -> None:
    pool = envpool.make_gymnasium("CartPole-v1", num_envs=4, seed=1)
    with PPOTrainer(None, pool, horizon=16, num_minibatches=1, update_epochs=1) as trainer:
        assert trainer.train(128)
    pool.close()


def test_a_run_is_evaluated_resumed_and_replayed_when_its_environment_is_a_pool(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["num_envs=2", "horizon=16", "num_minibatches=1", "update_epochs=1", "verbose=false"]
    folder = ["--runs", str(tmp_path)]
    words = ["train", "envpool:CartPole-v1", *small, "total_timesteps=64", "--run", "pool"]
    assert main([*words, *folder]) == 0, capsys.readouterr().err
    scores = tmp_path / "scores.json"
    assert main(["eval", "pool", "--episodes", "3", "--json", str(scores), *folder]) == 0
    assert "CartPole" in json.dumps(json.loads(scores.read_text()))
    assert main(["resume", str(tmp_path / "pool"), "total_timesteps=128"]) == 0
    assert main(["replay", "pool", *folder]) == 0, capsys.readouterr().err


def test_errors_name_the_way_out_when_an_id_or_an_argument_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(EnvError, match="no environment 'CartPole-v9'; did you mean"):
        make_vec_env("envpool:CartPole-v9")
    with pytest.raises(EnvError, match=r"CartPole-v1 cannot be made with {'gravitas': 1}"):
        EnvPoolEnvs("envpool:CartPole-v1", 2, gravitas=1)
    with pytest.raises(ConfigError, match="num_groups=1"):
        make_vec_env("envpool:CartPole-v1", num_envs=2, num_groups=2)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="envpool"):
        make_vec_env("envpool:CartPole-v1")
