"""Carts with poles in NumPy: the reference of the C kernels, with their names and arguments.

The arithmetic has the C kernels' order of operations, so the two agree to the bit.
"""

import math

import numpy as np

__all__ = ["X_LIMIT", "STEEPEST", "reset", "step"]

X_LIMIT = 2.4
"""Place at which an episode terminates, on either side."""
STEEPEST = 12 * 2 * math.pi / 360
"""Angle at which it does."""

_GRAVITY, _POLE_MASS, _TOTAL_MASS, _LENGTH = 9.8, 0.1, 0.1 + 1.0, 0.5
_POLE_MOMENT, _FORCE, _SECONDS = 0.1 * 0.5, 10.0, 0.02
_TERMINATED, _TRUNCATED = 1, 2
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_SINE = [(-1) ** k / math.factorial(2 * k + 1) for k in range(7, 0, -1)]
_COSINE = [(-1) ** k / math.factorial(2 * k) for k in range(8, 0, -1)]

Carts = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""State ``[4, N]`` (place, speed, angle, turn), seeds, numbers of episodes, steps ``[N]``."""


def reset(carts: Carts, max_episode_steps: int, obs: np.ndarray) -> None:  # noqa: ARG001 (of the C kernel)
    """Begin the first episode of every row and write observations ``[N, 4]``."""
    state, _, episodes, _ = carts
    episodes[:] = 0
    _begin_episodes(carts, np.arange(len(episodes)))
    obs[...] = state.T


def step(  # noqa: PLR0913 - the arguments of the C kernel: every array that it writes
    carts: Carts,
    max_episode_steps: int,
    first_row: int,
    actions: np.ndarray,
    obs: np.ndarray,
    final_obs: np.ndarray,
    rewards: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    starts: np.ndarray,
) -> int:
    """Step the rows from `first_row` on; 1 where one terminated, plus 2 where one was only truncated."""
    state, _, episodes, steps = carts
    rows = slice(first_row, first_row + len(actions))
    state[:, rows] = _moved(state[:, rows], np.where(actions != 0, _FORCE, -_FORCE))
    steps[rows] += 1
    rewards[:] = 1.0
    terminated[:] = (np.abs(state[0, rows]) > X_LIMIT) | (np.abs(state[2, rows]) > STEEPEST)
    truncated[:] = steps[rows] >= max_episode_steps
    np.logical_or(terminated, truncated, out=starts)
    cut = np.flatnonzero(truncated & ~terminated)
    final_obs[cut] = state[:, rows].T[cut]
    ended = first_row + np.flatnonzero(starts)
    if len(ended):
        episodes[ended] += 1
        _begin_episodes(carts, ended)
    obs[...] = state[:, rows].T
    return _TERMINATED * bool(terminated.any()) + _TRUNCATED * bool(len(cut))


def _moved(state: np.ndarray, force: np.ndarray) -> np.ndarray:
    """One step of Euler's method, as gymnasium's CartPole-v1 takes it; ``[4, n]``."""
    place, speed, angle, turn = state
    square = angle * angle
    cosine = 1.0 + square * _polynomial(square, _COSINE)
    sine = angle + angle * (square * _polynomial(square, _SINE))
    pushed = (force + _POLE_MOMENT * (turn * turn) * sine) / _TOTAL_MASS
    turning = (_GRAVITY * sine - cosine * pushed) / (
        _LENGTH * (4.0 / 3.0 - _POLE_MASS * (cosine * cosine) / _TOTAL_MASS)
    )
    speeding = pushed - _POLE_MOMENT * turning * cosine / _TOTAL_MASS
    return np.stack(
        [
            place + _SECONDS * speed,
            speed + _SECONDS * speeding,
            angle + _SECONDS * turn,
            turn + _SECONDS * turning,
        ]
    )


def _polynomial(square: np.ndarray, coefficients: list[float]) -> np.ndarray:
    total = np.full_like(square, coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * square + coefficient
    return total


def _begin_episodes(carts: Carts, rows: np.ndarray) -> None:
    """Four numbers from -0.05 to 0.05 that follow from a row's seed and the number of its episode."""
    state, seeds, episodes, steps = carts
    seed, episode = seeds[rows].view(np.uint64), episodes[rows].view(np.uint64)
    stream = _mixed(_mixed(seed + _GAMMA) + episode * _GAMMA)
    with np.errstate(over="ignore"):  # for numbers; arrays wrap around without a warning
        offsets = np.arange(1, 5, dtype=np.uint64) * _GAMMA
    bits = _mixed(stream + offsets[:, None]) >> np.uint64(11)
    state[:, rows] = bits.astype(np.float64) * 2.0**-53 * 0.1 - 0.05
    steps[rows] = 0


def _mixed(values: np.ndarray) -> np.ndarray:
    """splitmix64 (Steele, Lea and Flood 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    result: np.ndarray = values ^ (values >> np.uint64(31))
    return result
