"""The C kernels and the NumPy ones are the same game, to the bit."""

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from metta.envs.grid import TASKS, GridVecEnv, GridWorldConfig, native_available, numpy_kernels
from metta.envs.grid import worlds as worlds_module
from metta.envs.vec_env import StepResult
from metta.errors import ConfigError

from .text_worlds import needs_native

SMALL = GridWorldConfig(width=7, height=7, num_agents=3, num_resources=3, num_depots=1, horizon=40)
CASES: dict[str, list[GridWorldConfig]] = {
    **{name: [replace(task, horizon=20)] for name, task in TASKS.items()},
    "goal": [replace(SMALL, goal=2, capacity=1, gather_reward=0.3, step_cost=0.01)],
    "shared": [replace(SMALL, share_rewards=True, door_reward=0.7, deliver_reward=0.9, goal=3)],
    "no respawn": [replace(SMALL, respawn=False, capacity=7, view_radius=1, wall_density=0.2)],
    "doors": [
        GridWorldConfig(
            width=10, height=7, num_rooms=3, num_agents=4, num_resources=3, num_depots=3,
            horizon=90, view_radius=2, share_rewards=True, door_reward=0.1, step_cost=0.003,
        )
    ],
    "narrow": [
        GridWorldConfig(
            width=17, height=5, num_agents=2, num_resources=3, num_depots=1, wall_density=0.5,
            horizon=50, view_radius=4,
        )
    ],
    "one step": [replace(SMALL, horizon=1, view_radius=5)],
    "full of agents": [
        GridWorldConfig(width=11, height=11, num_agents=60, num_resources=15, num_depots=5, horizon=10)
    ],
    "mixed sizes": [
        SMALL,
        replace(SMALL, width=13, height=9, num_rooms=2, goal=1, horizon=90),
        replace(SMALL, width=20, height=21, wall_density=0.4, gather_reward=-0.2, horizon=70),
    ],
}  # fmt: skip


@pytest.mark.skipif(
    os.environ.get("METTA_REQUIRE_NATIVE") != "1" and not native_available(),
    reason="metta.envs.grid._native was not built and METTA_REQUIRE_NATIVE is not 1",
)
def test_the_grid_extension_is_built_when_it_is_required() -> None:
    assert native_available()


class Pair:
    """Two environments with the same past, one per kernel."""

    def __init__(self, tasks: list[GridWorldConfig], num_envs: int, seed: int) -> None:
        self.envs = [GridVecEnv(tasks, num_envs, native=native) for native in (True, False)]
        self.obs = [env.obs_spec.zeros(env.num_rows) for env in self.envs]
        self.generator = np.random.default_rng(seed)
        self.numbers: dict[str, float] = {}
        self.num_ends = np.zeros(2, int)
        self.num_rows, self.num_tasks = self.envs[0].num_rows, len(tasks)
        self._draw_tasks()
        seeds = self.generator.integers(0, 2**62, self.num_rows).tolist()
        for env, obs in zip(self.envs, self.obs, strict=True):
            env.prepare_restore()
            env.reset(seeds, obs)
        self.actions = np.zeros(self.num_rows, np.int64)
        self.compare_states()

    def step(self) -> None:
        self._draw_tasks()
        # agents that often continue in one direction get further than by chance
        changes = self.generator.random(self.num_rows) < 0.4
        drawn = self.generator.integers(0, 5, self.num_rows)
        self.actions = np.where(changes, drawn, self.actions)
        results = []
        for env, obs in zip(self.envs, self.obs, strict=True):
            env.send(0, self.actions)
            results.append(env.recv(0, obs))
        assert self.obs[0]["obs"].tobytes() == self.obs[1]["obs"].tobytes()
        assert told_by(results[0]) == told_by(results[1])
        self.num_ends += [results[0].terminated.sum(), results[0].truncated.sum()]
        for _, numbers in results[0].infos:
            for name, number in numbers.items():
                self.numbers[name] = self.numbers.get(name, 0.0) + number

    def compare_states(self) -> None:
        first, second = (env.state_dict() for env in self.envs)
        assert first.keys() == second.keys()
        for name in first.keys() - {"class"}:
            assert first[name].tobytes() == second[name].tobytes(), name
            assert first[name].dtype == second[name].dtype
        compasses = [env._worlds.arrays.compass.tobytes() for env in self.envs]
        assert compasses[0] == compasses[1]

    def _draw_tasks(self) -> None:
        drawn = self.generator.integers(0, self.num_tasks, len(self.envs[0].tasks))
        for env in self.envs:
            env.next_tasks[:] = drawn


def told_by(result: StepResult) -> list[Any]:
    told: list[Any] = [
        getattr(result, name).tobytes()
        for name in ("rewards", "terminated", "truncated", "valid", "starts")
    ]
    told.append(result.infos)
    if result.final is not None:
        told += [result.final.rows.tobytes(), result.final.obs["obs"].tobytes()]
    return told


def play_both(tasks: list[GridWorldConfig], num_envs: int, agent_steps: int, seed: int) -> Pair:
    pair = Pair(tasks, num_envs, seed)
    for step in range(-(-agent_steps // pair.num_rows)):
        pair.step()
        if step % 50 == 0:
            pair.compare_states()
    pair.compare_states()
    return pair


@needs_native
@pytest.mark.parametrize("name", CASES)
def test_both_kernels_play_the_same_game_when_actions_are_random(name: str) -> None:
    pair = play_both(CASES[name], 24, 20_000, seed=len(name))
    assert pair.num_ends.sum() > 0
    assert pair.numbers["gathered"] > 0 or name == "one step"
    assert pair.numbers["blocked"] > 0
    if any(task.goal for task in CASES[name]):
        assert pair.num_ends[0] > 0
        assert pair.numbers["delivered"] > 0
    if name == "doors":
        assert pair.numbers["doors_opened"] > 20


@needs_native
@pytest.mark.parametrize("seed", range(12))
def test_both_kernels_play_the_same_game_when_the_world_is_drawn_at_random(seed: int) -> None:
    generator = np.random.default_rng(1000 + seed)
    num_rooms = int(generator.integers(1, 4))
    config = GridWorldConfig(
        width=int(generator.integers(14, 40)), height=int(generator.integers(8, 40)),
        num_agents=int(generator.integers(1, 6)), view_radius=int(generator.integers(1, 6)),
        horizon=int(generator.integers(20, 120)), wall_density=float(generator.random() * 0.5),
        num_resources=int(generator.integers(0, 5)), num_depots=int(generator.integers(0, 3)),
        num_rooms=num_rooms, num_keys=num_rooms - 1, capacity=int(generator.integers(1, 8)),
        gather_reward=float(generator.normal()), deliver_reward=float(generator.normal()),
        door_reward=float(generator.normal()), step_cost=float(generator.normal()),
        share_rewards=bool(generator.integers(2)), respawn=bool(generator.integers(2)),
    )  # fmt: skip
    play_both([config], 8, 3_000, seed)


@needs_native
@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_both_kernels_play_the_same_game_when_they_play_a_million_steps(name: str) -> None:
    play_both(CASES[name], 64, 1_000_000 // len(CASES) + 1, seed=5)


def test_the_other_kernels_are_refused_when_they_were_not_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worlds_module, "_native", None)
    assert not native_available()
    with pytest.raises(ConfigError, match="not built"):
        GridVecEnv([SMALL], 1, native=True)
    assert GridVecEnv([SMALL], 1)._worlds._kernels is numpy_kernels
