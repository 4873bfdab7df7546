"""Which interface an environment has: objects that are no `gymnasium.Env` are named, with what to write.

Only reading: methods are looked at, and never called.
"""

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium import spaces

from metta.errors import EnvError

__all__ = [
    "checked_reset",
    "is_aec_env",
    "old_step",
    "parallel_of_aec",
    "require_parallelizable",
    "require_gym_env",
    "what_it_is",
]

_NEW_API = (
    "write `class MyEnv(gymnasium.Env)` with observation_space, action_space, reset(self, *, seed=None, "
    "options=None) -> (observation, info) and step(action) -> (observation, reward, terminated, "
    "truncated, info)"
)
_RESET = "return (observation, info), e.g. return observation, {}"
_SHIMMY = "or convert it: gymnasium.make('GymV21Environment-v0', env=env) of the package shimmy"


def require_gym_env(env: Any) -> gymnasium.Env[Any, Any]:
    """The environment, if it is one with spaces; `EnvError` names the interface found, and the cure."""
    if not isinstance(env, gymnasium.Env):
        raise EnvError(what_it_is(env))
    for name in ("observation_space", "action_space"):
        found = _attribute(env, name)
        if not isinstance(found, spaces.Space):
            raise EnvError(
                f"{_kind(env)} has {name}={found!r}, which is not a space of gymnasium; set it in "
                f"__init__, e.g. self.{name} = gymnasium.spaces.Discrete(4)"
            )
    return env


def checked_reset(env: gymnasium.Env[Any, Any], seed: int) -> tuple[Any, dict[str, Any]]:
    """Observation and info of a reset; `EnvError` where it is written for the API before gymnasium."""
    try:
        result: Any = env.reset(seed=seed)
    except (TypeError, ValueError) as error:
        raise _old_reset(env.unwrapped, error) or error from error
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
        return result
    raise EnvError(
        f"reset() of {_kind(env.unwrapped)} returned {_form(result)}, as in the API of gym before 0.26; "
        f"{_RESET}"
    )


def _old_reset(env: Any, error: Exception) -> EnvError | None:
    parameters = _parameters(env.reset)
    if parameters is not None and "seed" not in parameters:
        old = " (it has a method seed(), the API of gym before 0.26)" if _has_seed(env) else ""
        return EnvError(
            f"{_kind(env)} has reset({', '.join(parameters)}) without seed{old}; write def reset(self, *, "
            "seed=None, options=None), which begins with super().reset(seed=seed)"
        )
    if not _is_unpacking(error):
        return None
    return EnvError(
        f"reset() of {_kind(env)} does not return 2 values ({error}); the API of gym before 0.26 returns "
        f"the observation alone: {_RESET}"
    )


def old_step(env: gymnasium.Env[Any, Any], error: BaseException) -> EnvError | None:
    """What to say where unpacking the result of a step failed; None if the error is another one."""
    if not _is_unpacking(error):
        return None
    return EnvError(
        f"step() of {_kind(env.unwrapped)} does not return 5 values ({error}); with 4 it has the API of "
        "gym before 0.26: instead of done return terminated (task over) and truncated (time limit): "
        "return observation, reward, terminated, truncated, info"
    )


def _is_unpacking(error: BaseException) -> bool:
    """Whether metta or a wrapper of gymnasium failed to unpack what the environment returned."""
    if not isinstance(error, ValueError | TypeError) or "unpack" not in str(error):
        return False
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    raised_in = "" if place is None else str(place.tb_frame.f_globals.get("__name__"))
    return raised_in.startswith(("gymnasium.", "metta.envs."))


def is_aec_env(env: Any) -> bool:
    """Whether an object has PettingZoo's interface of agents that act in turn (AEC)."""
    return all(hasattr(env, name) for name in ("possible_agents", "agent_iter", "last"))


def parallel_of_aec(env: Any) -> Any:
    """The parallel environment of an AEC one; `EnvError` where agents cannot act at the same time."""
    require_parallelizable(_kind(env), getattr(env, "metadata", None) or {})
    conversions = importlib.import_module("pettingzoo.utils.conversions")
    return conversions.aec_to_parallel(env)


def require_parallelizable(name: str, metadata: Mapping[str, Any]) -> None:
    """`EnvError` if the metadata of an AEC environment do not say that its agents may act together."""
    if not metadata.get("is_parallelizable", False):
        raise EnvError(
            f"{name} has PettingZoo's AEC interface: its agents act in turn, and its metadata do not say "
            "is_parallelizable; metta trains environments of the parallel interface (parallel_env), in "
            "which all agents act at once: give a ParallelEnv"
        )


def what_it_is(env: Any) -> str:
    """Of an object that is no `gymnasium.Env`: the interface that it has, and what to write instead."""
    return f"{_described(env)}; {_cure(env)}"


def _described(env: Any) -> str:
    if env is None:
        return "it is None (a function that makes it must return it)"
    bases = [f"{base.__module__}." for base in type(env).__mro__]
    if any(base.startswith("gym.") for base in bases):
        return f"{_kind(env)} is an environment of the old package gym, which gymnasium replaced"
    if all(hasattr(env, name) for name in ("observation_spec", "action_spec", "step")):
        return f"{_kind(env)} has the interface of dm_env (observation_spec, action_spec)"
    missing = [
        name
        for name in ("reset", "step", "observation_space", "action_space")
        if not hasattr(env, name)
    ]
    if len(missing) == 4:
        return f"{_kind(env)} is not an environment: it has no {', '.join(missing)}"
    if missing:
        return f"{_kind(env)} has no {', '.join(missing)}, and is not a gymnasium.Env"
    if _has_seed(env):
        return (
            f"{_kind(env)} has a method seed(), the API of gym before 0.26, and is no gymnasium.Env"
        )
    return f"{_kind(env)} is not a gymnasium.Env, though it has its methods"


def _cure(env: Any) -> str:
    if all(hasattr(env, name) for name in ("observation_spec", "action_spec")):
        return "convert it with shimmy.DmControlCompatibilityV0"
    if hasattr(env, "reset") and hasattr(env, "step"):
        return f"{_NEW_API}, {_SHIMMY}" if _has_seed(env) else _NEW_API
    return (
        "give a gymnasium id, a gymnasium.Env, its class, a function that returns a new one, a list of "
        "such functions, a gymnasium VectorEnv, or a metta VecEnv"
    )


def _kind(env: Any) -> str:
    return type(env).__qualname__


def _attribute(env: Any, name: str) -> Any:
    try:
        return getattr(env, name, None)
    except Exception as error:  # noqa: BLE001  # a property of the user's own class
        return error


def _has_seed(env: Any) -> bool:
    own = getattr(getattr(env, "unwrapped", env), "seed", None)
    return inspect.ismethod(own)


def _parameters(reset: Any) -> list[str] | None:
    """Names of the parameters of a method; None if it takes any, or they cannot be read."""
    try:
        found = inspect.signature(reset).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in found):
        return None
    return [one.name for one in found]


def _form(result: Any) -> str:
    if isinstance(result, tuple):
        return f"a tuple of {', '.join(type(part).__name__ for part in result)}"
    return f"the observation alone ({type(result).__name__})"
