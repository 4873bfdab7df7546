"""Small environments whose best returns are known, for tests and examples.

All of them are deterministic given the seed.
"""

from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

from metta.spaces import MASK_KEY

__all__ = [
    "BufferReuseEnv",
    "ContinuousTargetEnv",
    "CorridorEnv",
    "CountdownEnv",
    "MaskedCorridorEnv",
    "MemoryEnv",
    "MultiDiscreteEnv",
    "NestedEnv",
]

Info = dict[str, Any]
Step = tuple[Any, float, bool, bool, Info]


class _ToyEnv(gymnasium.Env[Any, Any]):
    """Counts the steps of an episode; each toy defines how an episode begins and continues."""

    steps = 0
    """Steps of the episode, the present one included."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Info]:
        """Begin an episode."""
        super().reset(seed=seed, options=options)
        self.steps = 0
        return self._begin()

    def step(self, action: Any) -> Step:
        """Take one action."""
        self.steps += 1
        return self._advance(action)

    def _begin(self) -> tuple[Any, Info]:
        raise NotImplementedError

    def _advance(self, action: Any) -> Step:
        raise NotImplementedError


class CorridorEnv(_ToyEnv):
    """Walk right (action 1) to the end of a corridor; left is action 0.

    The observation is the one-hot position ``[length]``. A step costs 0.1, the last one earns 1, and
    an episode is cut after `max_steps`.
    """

    def __init__(self, length: int = 8, max_steps: int = 64) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (length,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.length, self.max_steps = length, max_steps
        self.optimal_return = 1.0 - 0.1 * (length - 2)
        self._position = 0

    def _begin(self) -> tuple[np.ndarray, Info]:
        self._position = 0
        return _one_hot(self._position, self.length), {}

    def _advance(self, action: int) -> Step:
        self._position = max(0, self._position + (1 if action == 1 else -1))
        arrived = self._position == self.length - 1
        late = self.steps >= self.max_steps
        info = {"position": self._position} if arrived or late else {}
        observation = _one_hot(self._position, self.length)
        return observation, 1.0 if arrived else -0.1, arrived, late, info


class MaskedCorridorEnv(_ToyEnv):
    """A corridor with moves -1, +1 and +2 (actions 0, 1, 2), not all of them legal everywhere.

    Nothing leads out of the corridor, and +2 is legal on even cells only. An illegal action raises
    `ValueError`. The mask is in `info`, or with ``mask_in="observation"`` in a `Dict` observation.
    """

    moves = (-1, 1, 2)

    def __init__(
        self, length: int = 9, mask_in: Literal["info", "observation"] = "info", max_steps: int = 64
    ) -> None:
        self.observation_space: spaces.Space[Any] = spaces.Box(0.0, 1.0, (length,), np.float32)
        if mask_in == "observation":
            mask_space = spaces.Box(0, 1, (len(self.moves),), np.int8)
            self.observation_space = spaces.Dict(
                {"position": self.observation_space, MASK_KEY: mask_space}
            )
        self.action_space = spaces.Discrete(len(self.moves))
        self.length, self.mask_in, self.max_steps = length, mask_in, max_steps
        jumps, walks = divmod(length - 1, 2)
        self.optimal_return = 1.0 - 0.1 * (jumps + walks - 1)
        self._position = 0

    def legal(self) -> np.ndarray:
        """Which actions are legal now: ``[3]`` bool."""
        inside = [0 <= self._position + move < self.length for move in self.moves]
        inside[2] = inside[2] and self._position % 2 == 0
        return np.array(inside)

    def _begin(self) -> tuple[Any, Info]:
        self._position = 0
        return self._observe()

    def _advance(self, action: int) -> Step:
        if not self.legal()[action]:
            raise ValueError(f"action {action} is illegal at position {self._position}")
        self._position += self.moves[action]
        arrived = self._position == self.length - 1
        observation, info = self._observe()
        return observation, 1.0 if arrived else -0.1, arrived, self.steps >= self.max_steps, info

    def _observe(self) -> tuple[Any, Info]:
        position = _one_hot(self._position, self.length)
        if self.mask_in == "info":
            return position, {MASK_KEY: self.legal()}
        return {"position": position, MASK_KEY: self.legal().astype(np.int8)}, {}


class MemoryEnv(_ToyEnv):
    """Remember a cue: it is shown in the first observation only and asked for `delay` steps later.

    The observation is the one-hot cue ``[num_cues]``, then zeros. Only the last action counts: it earns
    1 where it names the cue. Episodes have ``delay + 1`` steps.
    """

    optimal_return = 1.0

    def __init__(self, delay: int = 3, num_cues: int = 2) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (num_cues,), np.float32)
        self.action_space = spaces.Discrete(num_cues)
        self.delay, self.num_cues = delay, num_cues
        self.memoryless_return = 1.0 / num_cues
        """The best mean return of a policy that sees only the last observation (``delay >= 1``)."""
        self._cue = 0

    def _begin(self) -> tuple[np.ndarray, Info]:
        self._cue = int(self.np_random.integers(self.num_cues))
        return _one_hot(self._cue, self.num_cues), {}

    def _advance(self, action: int) -> Step:
        asked = self.steps == self.delay + 1
        reward = 1.0 if asked and int(action) == self._cue else 0.0
        return np.zeros(self.num_cues, np.float32), reward, asked, False, {}


class CountdownEnv(_ToyEnv):
    """Nothing to decide: `length` steps, the k-th of which (from 1) earns k.

    The observation ``[1]`` counts the steps of the episode. It terminates, or with `truncate` is cut.
    """

    def __init__(self, length: int = 5, truncate: bool = False) -> None:
        self.observation_space = spaces.Box(0.0, float(length), (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.length, self.truncate = length, truncate
        self.optimal_return = length * (length + 1) / 2

    def _begin(self) -> tuple[np.ndarray, Info]:
        return np.zeros(1, np.float32), {}

    def _advance(self, action: int) -> Step:
        del action
        over = self.steps == self.length
        observation, reward = np.array([self.steps], np.float32), float(self.steps)
        info = {"length": self.steps} if over else {}
        return observation, reward, over and not self.truncate, over and self.truncate, info


class BufferReuseEnv(_ToyEnv):
    """Returns one and the same array from every call, and is cut after `length` steps.

    The observation ``[2]`` is a random number of the episode, and the count of its steps.
    """

    def __init__(self, length: int = 4) -> None:
        self.observation_space = spaces.Box(0.0, float(length), (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.length = length
        self._buffer = np.zeros(2, np.float32)

    def _begin(self) -> tuple[np.ndarray, Info]:
        self._buffer[:] = (self.np_random.random(), 0)
        return self._buffer, {}

    def _advance(self, action: int) -> Step:
        del action
        self._buffer[1] = self.steps
        return self._buffer, 1.0, False, self.steps >= self.length, {}


class ContinuousTargetEnv(_ToyEnv):
    """Name a point: the reward is minus the squared distance of the action to a target in [-1, 1].

    The observation is the target ``[size]``, drawn anew for each step; episodes are cut at `length`.
    """

    optimal_return = 0.0

    def __init__(self, size: int = 2, length: int = 8) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (size,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (size,), np.float32)
        self.size, self.length = size, length
        self._target = np.zeros(size, np.float32)

    def _begin(self) -> tuple[np.ndarray, Info]:
        return self._next_target(), {}

    def _advance(self, action: np.ndarray) -> Step:
        reward = -float(np.square(np.asarray(action, np.float64) - self._target).sum())
        return self._next_target(), reward, False, self.steps >= self.length, {}

    def _next_target(self) -> np.ndarray:
        self._target = self.np_random.uniform(-1.0, 1.0, self.size).astype(np.float32)
        return self._target.copy()


class MultiDiscreteEnv(_ToyEnv):
    """Repeat several numbers at once: the reward is the share of parts that match the observation.

    Observation and action are both `MultiDiscrete(nvec)`; episodes are cut at `length`.
    """

    def __init__(self, nvec: tuple[int, ...] = (3, 2, 4), length: int = 8) -> None:
        self.observation_space = spaces.MultiDiscrete(list(nvec))
        self.action_space = spaces.MultiDiscrete(list(nvec))
        self.nvec, self.length = np.array(nvec), length
        self.optimal_return = float(length)
        self._wanted = np.zeros(len(nvec), np.int64)

    def _begin(self) -> tuple[np.ndarray, Info]:
        return self._next_numbers(), {}

    def _advance(self, action: np.ndarray) -> Step:
        reward = float(np.mean(np.asarray(action) == self._wanted))
        return self._next_numbers(), reward, False, self.steps >= self.length, {}

    def _next_numbers(self) -> np.ndarray:
        self._wanted = self.np_random.integers(self.nvec)
        return self._wanted.copy()


class NestedEnv(_ToyEnv):
    """Random observations of every kind, nested: Dict of Tuple of Dict.

    Episodes end at random (one step in ten), half of them cut short. The reward is 1 for the action
    that equals the Discrete part of the last observation, else 0.
    """

    def __init__(self, image_size: int = 8) -> None:
        speed = spaces.Box(-1.0, 1.0, (2,), np.float32)
        inner = spaces.Dict({"gear": spaces.MultiDiscrete([3, 4]), "speed": speed})
        self._image_shape = (3, image_size, image_size)
        self.observation_space = spaces.Dict(
            {
                "camera": spaces.Box(0, 255, self._image_shape, np.uint8),
                "state": spaces.Tuple((spaces.Discrete(3), inner)),
                "lamps": spaces.MultiBinary(4),
            }
        )
        self.action_space = spaces.Discrete(3)
        self._wanted = 0

    def _begin(self) -> tuple[dict[str, Any], Info]:
        return self._observe(), {}

    def _advance(self, action: int) -> Step:
        reward = 1.0 if int(action) == self._wanted else 0.0
        over = self.np_random.random() < 0.1
        cut = bool(over and self.np_random.random() < 0.5)
        info = {"last_reward": reward} if over else {}
        return self._observe(), reward, bool(over and not cut), cut, info

    def _observe(self) -> dict[str, Any]:
        rng = self.np_random
        self._wanted = int(rng.integers(3))
        speed = rng.uniform(-1.0, 1.0, 2).astype(np.float32)
        return {
            "camera": rng.integers(0, 256, self._image_shape, np.uint8),
            "state": (self._wanted, {"gear": rng.integers([3, 4]), "speed": speed}),
            "lamps": rng.integers(0, 2, 4, np.int8),
        }


def _one_hot(index: int, size: int) -> np.ndarray:
    vector = np.zeros(size, np.float32)
    vector[index] = 1.0
    return vector
