"""Environments of EnvPool (extra `envpool`), which steps a whole batch in its own C++ threads."""

import contextlib
import importlib
import importlib.util
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from metta.errors import EnvError, MissingExtraError, did_you_mean

__all__ = ["EnvPoolEnv", "EnvPoolEnvs", "is_envpool", "is_envpool_id", "require_envpool"]

_PREFIX = "envpool:"


def is_envpool_id(env: Any) -> bool:
    """Whether this names an environment of EnvPool, e.g. ``envpool:Ant-v4``."""
    return isinstance(env, str) and env.startswith(_PREFIX)


def require_envpool(env_id: str) -> str:
    """EnvPool's own name of an id; an error where the package or the environment is missing."""
    name = env_id.removeprefix(_PREFIX)
    if importlib.util.find_spec("envpool") is None:
        raise MissingExtraError("envpool", "envpool", f"the environment {env_id}")
    known = _envpool().list_all_envs()
    if name not in known:
        raise EnvError(
            f"EnvPool has no environment {name!r}{did_you_mean(name, known)}; "
            "envpool.list_all_envs() lists those of the installed version"
        )
    return name


def is_envpool(env: Any) -> bool:
    """Whether this is a pool that EnvPool has made."""
    return any(base.__module__.partition(".")[0] == "envpool" for base in type(env).__mro__)


class EnvPoolEnvs(VectorEnv[Any, Any, Any]):
    """A batch of one environment, stepped at once.

        envs = EnvPoolEnvs("envpool:Ant-v4", 64)

    EnvPool takes seeds only where a pool is made, so each `reset` with seeds (one per row) makes a new one.
    A pool that exists keeps its own. `settings` are those of ``envpool.make``.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012  # as gymnasium declares it
    takes_seed_per_row = True

    def __init__(self, env: Any, num_envs: int = 1, **settings: Any) -> None:
        self._is_given = is_envpool(env)
        self._pool: Any = env if self._is_given else None
        self._settings = settings
        if self._is_given:
            self.num_envs, spec = env.config["num_envs"], env.spec
        else:
            self.num_envs, self._name = num_envs, require_envpool(env)
            spec = _spec_of(self._name, settings)
        with _quiet():
            self.single_observation_space = spec.gymnasium_observation_space
            self.single_action_space = spec.gymnasium_action_space
        batch = gymnasium.vector.utils.batch_space
        self.observation_space = batch(self.single_observation_space, self.num_envs)
        self.action_space = batch(self.single_action_space, self.num_envs)

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every row."""
        del options
        with _quiet():
            if not self._is_given and (self._pool is None or seed is not None):
                self.close()
                self._pool = self._made(0 if seed is None else seed)
            observations, _ = self._pool.reset()
        return observations, {}

    def _made(self, seed: Any) -> Any:
        seeds = (
            list(seed)
            if isinstance(seed, Sequence)
            else [seed + row for row in range(self.num_envs)]
        )
        make = _envpool().make_gymnasium
        return make(self._name, num_envs=self.num_envs, seed=seeds, **self._settings)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every row; a row whose episode ended before is reset instead."""
        observations, rewards, terminated, truncated, _ = self._pool.step(actions)
        return observations, rewards, terminated, truncated, {}

    def close(self, **_: Any) -> None:
        """End the threads of the pool."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None


class EnvPoolEnv(gymnasium.Env[Any, Any]):
    """One environment of EnvPool, for wrappers, workers and replays; it is not drawn."""

    def __init__(self, env_id: str, **settings: Any) -> None:
        self._envs = EnvPoolEnvs(env_id, 1, num_threads=1, **settings)
        self.observation_space = self._envs.single_observation_space
        self.action_space = self._envs.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed, options=options)
        observations, _ = self._envs.reset(seed=seed)
        return _first(observations), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step."""
        observations, rewards, ended, cut, _ = self._envs.step(np.asarray([action]))
        return _first(observations), float(rewards[0]), bool(ended[0]), bool(cut[0]), {}

    def close(self) -> None:
        """End the thread of the pool."""
        self._envs.close()


def _first(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {key: _first(value) for key, value in batch.items()}
    return batch[0]


def _spec_of(name: str, settings: dict[str, Any]) -> Any:
    try:
        return _envpool().make_spec(name, **settings)
    except (TypeError, ValueError, AssertionError) as error:
        raise EnvError(f"EnvPool's {name} cannot be made with {settings}: {error}") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Its spaces have bounds of float64 where their numbers are float32, of which gymnasium warns."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*precision lowered")
        yield


def _envpool() -> Any:
    return importlib.import_module("envpool")
