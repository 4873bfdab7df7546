"""Where rows are, and how they are brought there: by an environment's state, by actions, or both."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from metta.envs.restore.own_state import load_own_state, own_state
from metta.envs.rows.gym_adapter import GymRows
from metta.envs.rows.row_spec import GymEnv
from metta.envs.rows.tasked_env import TaskedEnv
from metta.envs.vec_env import ObsArrays
from metta.errors import StateError

__all__ = ["RowPlace", "bring_row", "row_states"]


class RowPlace(NamedTuple):
    """Where a row is: the present episode's number, and how it got to where it is now."""

    seed: int
    """Of the row, not of the episode."""
    episode: int
    state: Mapping[str, Any] | None
    """The environment's state before the first of `actions`; None: that was the episode's first."""
    actions: np.ndarray
    """``[L, ...]``, taken since."""
    task: int = 0


def row_states(rows: GymRows) -> list[dict[str, Any]]:
    """Of each row its seed, the number of its episode, and its environment's state."""
    return [
        {"seed": int(seed), "episode": int(episode), "env": _state_of(env)}
        for seed, episode, env in zip(rows.row_seeds, rows.episodes, rows.envs, strict=True)
    ]


def bring_row(
    rows: GymRows,
    row: int,
    place: RowPlace,
    obs_out: ObsArrays,
    sign_of_life: Callable[[], None] = lambda: None,
) -> None:
    """Bring one of `rows` to a place and write what it observes there, if that was seen again.

    The results of its last step stay as they are, since a reader may still hold them.
    """
    env = rows.envs[row]
    observation = rows.begin_again(row, place.seed, place.episode, place.task)
    if place.state is not None:
        try:
            _load_state(env, place.state)
        except (ArithmeticError, LookupError, TypeError, ValueError, StateError) as error:
            raise StateError(
                f"the saved state of row {rows.first_row + row} does not fit {env}: {error}"
            ) from error
    if len(place.actions):
        observation = rows.repeat(row, place.actions, sign_of_life)
    if place.state is None or len(place.actions):
        rows.write_observation(row, observation, obs_out)


def _state_of(env: GymEnv) -> dict[str, Any]:
    if isinstance(env, TaskedEnv):
        return {"open": [[task, own_state(one)] for task, one in env.open_envs()]}
    return own_state(env)


def _load_state(env: GymEnv, state: Mapping[str, Any]) -> None:
    if not isinstance(env, TaskedEnv):
        load_own_state(env, state)
        return
    saved = state.get("open")
    if not isinstance(saved, list) or not saved:
        raise StateError(f"no task is open in the saved state, which has {sorted(state)}")
    env.close()
    for task, env_state in saved:
        if not isinstance(task, int) or not 0 <= task < env.num_tasks:
            raise StateError(f"the saved task is {task!r}; there are {env.num_tasks} tasks")
        env.begin_task(task)
        env.reset(seed=0)  # some parts of an environment exist from then on only
        load_own_state(env.env, env_state)
