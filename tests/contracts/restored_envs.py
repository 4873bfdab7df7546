"""Worlds, backends and recordings for the tests of restored environments; free of pytest.

Run as a script it is the new process: it brings environments to a saved cut and tells what they did then.
"""

import hashlib
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import (
    FrameStackObservation,
    NormalizeObservation,
    OrderEnforcing,
    RecordEpisodeStatistics,
    TimeLimit,
)
from safetensors.torch import load_file, save_file

from faults.saved_envs import SavedCartPole, SavedMaskedCorridor, SavedNested
from metta.envs import MultiprocessVecEnv, SerialVecEnv
from metta.envs.rows.action_masks import draw_action
from metta.envs.vec_env import RestorableVecEnv, StepResult
from metta.state_tree import pack_state, unpack_state

Factory = Callable[[], Any]

NUM_ROWS = 4
CUTS = (0, 37, 150)
STEPS_AFTER_CUT = 200
SEEDS = [101, 102, 103, 104]


def made(env_id: str, **options: Any) -> Any:
    return gymnasium.make(env_id, disable_env_checker=True, **options)


def saved_cartpole() -> Any:
    return OrderEnforcing(TimeLimit(SavedCartPole(), 60))


def wrapped() -> Any:
    env = RecordEpisodeStatistics(TimeLimit(SavedCartPole(), 30))
    return NormalizeObservation(FrameStackObservation(env, 3))


WORLDS: dict[str, Factory] = {
    "cartpole": partial(made, "CartPole-v1"),
    "pendulum": partial(made, "Pendulum-v1", max_episode_steps=90),
    "acrobot": partial(made, "Acrobot-v1", max_episode_steps=90),
    "mountain-car": partial(made, "MountainCar-v0", max_episode_steps=90),
    "saved-cartpole": saved_cartpole,
    "wrapped": wrapped,
    "masked-dict": partial(SavedMaskedCorridor, mask_in="observation", max_steps=40),
    "nested": SavedNested,
    "lunar-lander": partial(made, "LunarLander-v3", max_episode_steps=120),
}
_SAVED = ("saved-cartpole", "wrapped", "masked-dict", "nested")
CLASSES = {world: "snapshot" if world in _SAVED else "repeat" for world in WORLDS}

BACKENDS: dict[str, Callable[[list[Factory]], RestorableVecEnv]] = {
    "serial-2": lambda factories: SerialVecEnv(factories, 2),
    "multiprocess-2x2": lambda factories: MultiprocessVecEnv(factories, 2, 2),
}


def open_world(backend: str, world: str) -> RestorableVecEnv:
    return BACKENDS[backend]([WORLDS[world]] * NUM_ROWS)


class Recording:
    """What rows did from their reset on: a digest per step, and a state at each cut."""

    def __init__(self, vec_env: RestorableVecEnv) -> None:
        self.actions: list[np.ndarray] = []
        self.told: list[str] = []
        self.states: dict[int, Any] = {}
        self.observed: dict[int, dict[str, np.ndarray]] = {}
        self.num_ends = 0
        obs = vec_env.obs_spec.zeros(NUM_ROWS)
        masks = _masks([vec_env.reset(SEEDS, obs)])
        generator = np.random.default_rng(3)
        for step in range(CUTS[-1] + STEPS_AFTER_CUT):
            if step in CUTS:
                self.states[step] = saved(vec_env.state_dict())
                self.observed[step] = {key: array.copy() for key, array in obs.items()}
            drawn = [draw_action(vec_env.action_space, mask, generator) for mask in masks]
            self.actions.append(np.array(drawn))
            results = take_step(vec_env, self.actions[-1], obs)
            self.told.append(_digest(results, obs))
            self.num_ends += sum(int(result.starts.sum()) for result in results)
            masks = _masks(results)

    def part(self, cut: int) -> tuple[list[np.ndarray], list[str]]:
        after = slice(cut, cut + STEPS_AFTER_CUT)
        return self.actions[after], self.told[after]


def saved(state: Any) -> Any:
    """The state as a checkpoint would give it back."""
    packed, tensors = pack_state(state)
    return unpack_state(json.loads(json.dumps(packed)), tensors)


def play(vec_env: RestorableVecEnv, actions: list[np.ndarray]) -> list[str]:
    """What given actions lead to, a digest per step."""
    obs = vec_env.obs_spec.zeros(NUM_ROWS)
    return [_digest(take_step(vec_env, one, obs), obs) for one in actions]


def take_step(
    vec_env: RestorableVecEnv, actions: np.ndarray, obs: dict[str, np.ndarray]
) -> list[StepResult]:
    parts = np.split(np.arange(NUM_ROWS), vec_env.num_groups)
    for group, rows in enumerate(parts):
        vec_env.send(group, actions[rows])
    results = []
    for group, rows in enumerate(parts):
        out = {key: array[rows[0] : rows[-1] + 1] for key, array in obs.items()}
        results.append(vec_env.recv(group, out))
    return results


def _masks(results: list[StepResult]) -> list[np.ndarray | None]:
    if results[0].action_mask is None:
        return [None] * NUM_ROWS
    return [row.copy() for result in results for row in result.action_mask]  # type: ignore[union-attr]


def _digest(results: list[StepResult], obs: dict[str, np.ndarray]) -> str:
    """Of everything that a trainer sees of a step, whatever the groups."""
    seen = [array.tobytes() for array in obs.values()]
    for name in ("rewards", "terminated", "truncated", "valid", "starts", "action_mask"):
        found = [getattr(result, name) for result in results]
        seen += [] if found[0] is None else [array.tobytes() for array in found]
    for group, result in enumerate(results):
        first = group * len(result.rewards)
        seen += [repr((first + row, numbers)).encode() for row, numbers in result.infos]
        if result.final is not None:
            seen += [(first + result.final.rows).tobytes()]
            seen += [array.tobytes() for array in result.final.obs.values()]
    return hashlib.sha256(b"".join(seen)).hexdigest()


def write_last_cut(folder: Path, recording: Recording) -> None:
    actions = recording.part(CUTS[-1])[0]
    packed, tensors = pack_state({"state": recording.states[CUTS[-1]], "actions": actions})
    folder.mkdir(parents=True)
    (folder / "cut.json").write_text(json.dumps(packed))
    save_file(tensors, folder / "cut.safetensors")


def main(folder: Path) -> None:
    """For each ``backend/world`` below the folder, what its environments do after the cut."""
    told: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*/*/cut.json")):
        tensors = load_file(path.with_suffix(".safetensors"))
        cut = unpack_state(json.loads(path.read_text()), tensors)
        backend, world = path.parts[-3:-1]
        vec_env = open_world(backend, world)
        vec_env.load_state_dict(cut["state"])
        told[f"{backend}/{world}"] = play(vec_env, cut["actions"])
        vec_env.close()
    (folder / "told.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
