"""Where rows stand, and how they are brought there."""

from collections.abc import Mapping, Sequence
from typing import Any

from metta.envs.restore.own_state import load_own_state, own_state
from metta.envs.rows.gym_adapter import GymRows
from metta.envs.rows.row_spec import GymEnv
from metta.envs.rows.tasked_env import TaskedEnv
from metta.errors import StateError

__all__ = ["load_row_states", "row_states"]


def row_states(rows: GymRows) -> list[dict[str, Any]]:
    """Of each row its seed, the number of its episode, and its environment's state."""
    return [
        {"seed": int(seed), "episode": int(episode), "env": _state_of(env)}
        for seed, episode, (_, env) in zip(
            rows.row_seeds, rows.episodes, rows.env_rows(), strict=True
        )
    ]


def load_row_states(rows: GymRows, states: Sequence[Mapping[str, Any]]) -> None:
    """Bring each environment to where it stood; observations and masks stay with the caller."""
    envs = rows.env_rows()
    if len(states) != len(envs):
        raise StateError(f"got the states of {len(states)} rows for {len(envs)} rows")
    for place, ((row, env), state) in enumerate(zip(envs, states, strict=True)):
        try:
            rows.row_seeds[place], rows.episodes[place] = state["seed"], state["episode"]
            rows.begin_again(place)
            _load_state(env, state["env"])
        except (ArithmeticError, LookupError, TypeError, ValueError, StateError) as error:
            raise StateError(f"the saved state of row {row} does not fit {env}: {error}") from error
    rows.stand_still()


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
