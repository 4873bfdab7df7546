"""Games of the Atari 2600 (extra `atari`), with the usual preprocessing, done by ALE itself in C++."""

import importlib
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from metta.envs.families.packages import ATARI, is_of
from metta.envs.vec_env import LIFE_LOST

__all__ = ["AtariGame", "learns_clipped", "learns_lives", "make_atari"]

_FRAME_SKIP = 4
_CLIPPING, _LIVES = "reward_clipping", "life_loss_info"
_OF_LEARNING = (_CLIPPING, _LIVES)


class AtariGame(gymnasium.Env[np.ndarray, int]):
    """One game as learning sees it: the last four frames ``[4, 84, 84]``, grey, one of four shown.

        env = AtariGame("pong", repeat_action_probability=0.25)

    It is a vector environment of ALE with one game: flicker removed, up to 30 idle steps and FIRE at the
    start, rewards as the game gives them. An episode is a whole game, a function of its seed and its
    actions; where a life is lost and it goes on, the info has `LIFE_LOST`. `settings` are those of ALE's
    ``AtariVectorEnv``.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012  # as gymnasium declares it

    def __init__(self, game: str, *, render_mode: str | None = None, **settings: Any) -> None:
        vector = importlib.import_module("ale_py.vector_env").AtariVectorEnv
        # matters of learning, see `learns_clipped` and `learns_lives`
        settings = {name: value for name, value in settings.items() if name not in _OF_LEARNING}
        self._games = vector(game, num_envs=1, num_threads=1, reward_clipping=False, **settings)
        self._lives = 0
        self.observation_space = self._games.single_observation_space
        self.action_space = self._games.single_action_space
        self.render_mode = render_mode
        self._frame = np.zeros((1, 1), np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin a game."""
        super().reset(seed=seed, options=options)
        observations, infos = self._games.reset(seed=None if seed is None else np.array([seed]))
        self._frame, self._lives = observations[0, -1], int(infos["lives"][0])
        return observations[0], {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Hold the joystick for four frames."""
        observations, rewards, ended, cut, infos = self._games.step(np.asarray([action]))
        before, self._lives = self._lives, int(infos["lives"][0])
        self._frame = observations[0, -1]
        is_over = bool(ended[0] or cut[0])
        info = {LIFE_LOST: 1.0} if self._lives < before and not is_over else {}
        return observations[0], float(rewards[0]), bool(ended[0]), bool(cut[0]), info

    def render(self) -> Any:
        """The newest frame of the observation ``[84, 84, 3]``."""
        return np.repeat(self._frame[..., None], 3, -1) if self._frame.ndim == 2 else self._frame

    def close(self) -> None:
        """End the game."""
        self._games.close()


def make_atari(spec: EnvSpec, **kwargs: Any) -> AtariGame:
    """The game of an id; sticky actions are those of the id (0.25 in ``ALE/...-v5``)."""
    return AtariGame(**{**spec.kwargs, "frameskip": _FRAME_SKIP, **kwargs})


def learns_clipped(env: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether learning sees rewards as -1, 0 and 1: in games, unless ``reward_clipping`` is false."""
    return _is_game(env) and bool(kwargs.get(_CLIPPING, True))


def learns_lives(env: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether learning sees a lost life as an end: in games, unless ``life_loss_info`` is false."""
    return _is_game(env) and bool(kwargs.get(_LIVES, True))


def _is_game(env: Any) -> bool:
    spec = gymnasium.registry.get(env.rpartition(":")[2]) if isinstance(env, str) else None
    return spec is not None and is_of(spec, ATARI)
