"""Grid worlds: what was recorded is what stepping again shows, the last state too."""

from typing import Any

import numpy as np
import pytest

from metta.curriculum import Task
from metta.envs.factory import make_vec_env, row_seeds
from metta.envs.grid import TASKS, GridVecEnv, GridWorldConfig
from metta.envs.grid.render import WorldView, draw_rgb, draw_text
from metta.errors import ConfigError
from metta.replays.capture import GridScene
from metta.replays.replay import Replay, ReplayInfo
from metta.seeding import numpy_generator

NAMES = sorted(TASKS)


def random_task(generator: np.random.Generator, name: str) -> Task:
    """A task with settings of its own; most combinations fit, and others are drawn again."""
    while True:
        rooms = int(generator.integers(1, 4))
        kwargs = {
            "width": int(generator.integers(3 * rooms + 2, 20)),
            "height": int(generator.integers(5, 14)),
            "num_rooms": rooms,
            "num_agents": int(generator.integers(1, 5)),
            "horizon": int(generator.integers(1, 40)),
            "wall_density": float(generator.uniform(0, 0.4)),
            "num_resources": int(generator.integers(1, 8)),
            "num_depots": int(generator.integers(1, 3)),
            "respawn": bool(generator.integers(2)),
            "goal": int(generator.integers(0, 2)),
            "share_rewards": bool(generator.integers(2)),
        }
        task = Task(f"grid/{name}", kwargs)
        try:
            GridWorldConfig(**kwargs)
        except ConfigError:
            continue
        return task


def recorded(task: Task, seed: int, generator: np.random.Generator) -> tuple[Replay, list[Any]]:
    """A random episode, and what was seen of the world that really played, before its last step."""
    scene = GridScene(task)
    played = scene.vec_env
    assert isinstance(played, GridVecEnv)
    obs, rows = played.obs_spec.zeros(played.num_rows), played.num_rows
    scene.begin(seed)
    played.reset(row_seeds(seed, rows), obs)
    views, actions, is_over = [played.view(0)], [], False
    rewards = np.zeros(rows)
    while not is_over:
        actions.append(generator.integers(0, 5, rows))
        played.send(0, actions[-1])
        result = played.recv(0, obs)
        scene.after_step(actions[-1])
        rewards += result.rewards
        is_over = bool(result.starts.all())
        if not is_over:
            views.append(played.view(0))
    info = ReplayInfo(
        kind="grid", env="grid", num_agents=rows, num_steps=len(actions), ended="truncated",
        returns=tuple(rewards.tolist()), evaluated=(True,) * rows, seed=seed,
    )  # fmt: skip
    for action in actions:
        scene.recorder.append("actions", action)
        scene.recorder.append("rewards", np.zeros(rows, np.float32))
        scene.recorder.append("valid", np.ones(rows, bool))
    scene.close()
    return Replay(info, scene.recorder.finish()), views


def stepped_again(task: Task, seed: int, replay: Replay) -> list[WorldView]:
    """Every state of a world that takes the recorded actions, and has not come to its end after them."""
    longer = {**task.env_kwargs, "goal": 0, "horizon": replay.info.num_steps + 1}
    world = make_vec_env(Task(task.env, longer))
    assert isinstance(world, GridVecEnv)
    obs = world.obs_spec.zeros(world.num_rows)
    world.reset(row_seeds(seed, world.num_rows), obs)
    views = [world.view(0)]
    for step in range(replay.info.num_steps):
        world.send(0, replay.actions(step))
        world.recv(0, obs)
        views.append(world.view(0))
    return views


def same(one: WorldView, other: WorldView) -> bool:
    names = ("cells", "agents", "cargo", "keys")
    equal = [np.array_equal(getattr(one, name), getattr(other, name)) for name in names]
    return all(equal) and one.step == other.step


def check_episodes(count: int) -> set[int]:
    lengths = set()
    for number in range(count):
        generator = numpy_generator(number, "episode")
        task = random_task(generator, NAMES[number % len(NAMES)])
        replay, views = recorded(task, number, generator)
        again = stepped_again(task, number, replay)
        assert len(again) == replay.num_moments == len(views) + 1
        for moment, view in enumerate(again):
            assert same(replay.world(moment), view)
            assert moment == len(views) or same(view, views[moment])
        lengths.add(replay.info.num_steps)
    return lengths


def test_states_are_those_of_stepping_again_when_a_hundred_episodes_were_recorded() -> None:
    assert len(check_episodes(100)) > 20


@pytest.mark.slow
def test_states_are_those_of_stepping_again_when_a_thousand_episodes_were_recorded() -> None:
    assert len(check_episodes(1000)) > 30


@pytest.mark.parametrize("name", NAMES)
def test_the_double_looks_like_the_world_when_a_named_task_is_played(name: str) -> None:
    generator = numpy_generator(1, name)
    replay, views = recorded(Task(f"grid/{name}", {"horizon": 50}), 3, generator)
    assert replay.info.num_steps == 50
    for moment, view in enumerate(views):
        seen = replay.world(moment)
        assert draw_text(seen) == draw_text(view)
        assert np.array_equal(draw_rgb(seen), draw_rgb(view))
