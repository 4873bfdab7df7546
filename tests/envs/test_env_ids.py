"""What an id stands for, and what is said of one that stands for nothing."""

from contextlib import closing
from typing import Any

import numpy as np
import pytest

from metta.curriculum import Curriculum, Task
from metta.envs import make_vec_env
from metta.envs.env_ids import check_env_id, is_grid_id, module_of
from metta.envs.grid import TASKS, GridVecEnv
from metta.errors import ConfigError, EnvError
from metta.rl.ppo_trainer import PPOTrainer
from metta.train.train_config import CurriculumConfig


@pytest.mark.parametrize("task", TASKS)
def test_the_grid_world_plays_a_task_when_its_id_is_given(task: str) -> None:
    with closing(make_vec_env(f"grid/{task}", num_envs=3)) as vec_env:
        assert isinstance(vec_env, GridVecEnv)
        assert vec_env.num_rows == 3 * TASKS[task].num_agents
        obs = vec_env.obs_spec.zeros(vec_env.num_rows)
        vec_env.reset(range(vec_env.num_rows), obs)
        vec_env.send(0, np.zeros(vec_env.num_rows, np.int64))
        assert vec_env.recv(0, obs).valid.all()
    assert is_grid_id(f"grid/{task}")
    check_env_id(f"grid/{task}")


def test_arguments_lie_over_those_of_the_task_when_they_are_given() -> None:
    kwargs = {"num_agents": 2, "view_radius": 1}
    with closing(make_vec_env("grid/gather", num_envs=2, env_kwargs=kwargs)) as vec_env:
        assert vec_env.num_rows == 4
        assert vec_env.observation_space.shape == (9 + 4,)


def test_every_world_plays_all_tasks_when_there_is_a_curriculum() -> None:
    config = CurriculumConfig(
        kind="learning_progress",
        env="grid/gather",
        env_kwargs={"horizon": 16, "num_agents": 2, "width": 12, "height": 12, "num_resources": 6},
        tasks={"open": {}, "walled": {"wall_density": 0.2}, "rooms": {"num_rooms": 2}},
    )
    curriculum = Curriculum(config)
    trainer = PPOTrainer(None, curriculum, num_envs=4, horizon=32, minibatch_size=64)
    try:
        trainer.train(total_timesteps=1024)
        assert curriculum.scores.counts.sum() == 4 * 4 * 2  # two episodes a rollout, four rollouts
        assert curriculum.scores.counts.min() > 0
    finally:
        trainer.env.close()


@pytest.mark.parametrize(
    ("env", "options", "says"),
    [
        ("grid/gahter", {}, "no task 'gahter'; did you mean 'gather'"),
        ("grid/gather", {"num_workers": 2}, "num_workers=2; the grid world steps all"),
        ("grid/gather", {"env_kwargs": {"widht": 9}}, "widht"),
        (
            [Task("grid/gather"), Task("CartPole-v1")],
            {},
            "task 'CartPole-v1' is not of the grid world",
        ),
        (
            "CartPol-v1",
            {},
            "gymnasium has no environment 'CartPol-v1'; did you mean 'CartPole-v1'",
        ),
        ("no_such_module:Env-v0", {}, "Python does not find the module"),
        ("pettingzoo:no_such_module", {}, "not a module with a parallel_env"),
    ],
)
def test_the_error_says_what_to_change_when_an_id_is_wrong(
    env: Any, options: Any, says: str
) -> None:
    with pytest.raises((EnvError, ConfigError), match=says):
        make_vec_env(env, **options)
    if isinstance(env, str) and not options:
        with pytest.raises(EnvError, match=says):
            check_env_id(env)


@pytest.mark.parametrize(
    ("env_id", "module"),
    [
        ("CartPole-v1", None),
        ("mine:Maze", "mine"),
        ("a.b:Maze-v0", "a.b"),
        ("envpool:Pong-v5", None),
        ("pettingzoo:mpe2.simple_spread_v3", None),
        ("pettingzoo:mine.spread", "mine.spread"),
    ],
)
def test_the_module_of_an_id_is_what_making_it_imports(env_id: str, module: str | None) -> None:
    assert module_of(env_id) == module
