"""Episodes played at random, as columns to look at."""

import functools
import time
from dataclasses import dataclass

import numpy as np

from metta.doctor.players import Leaves, Player, Seen, Stepped, draw_actions

__all__ = ["Ending", "Recording", "flat", "record"]

_MAX_NUMBERS = 512
_ROWS_AT_FULL_LENGTH = 4
_MAX_BYTES, _MIN_STEPS = 1 << 27, 256


@dataclass(frozen=True)
class Ending:
    """How one episode ended."""

    step: int
    """Index into the recording."""
    row: int
    length: int
    terminated: bool
    truncated: bool
    final: Leaves | None
    """Its last observation, if known."""


@dataclass
class Recording:
    """What T steps of N rows gave."""

    player: Player
    seen: list[Seen]
    """T + 1 times what was seen before acting."""
    actions: list[list[np.ndarray]]
    steps: list[Stepped]
    endings: list[Ending]
    seconds: float
    """Time spent in the environment."""

    @property
    def num_steps(self) -> int:
        """Agent steps."""
        return len(self.steps) * self.player.num_rows

    @property
    def rewards(self) -> np.ndarray:
        """``[T * N]`` of steps that count."""
        parts = [stepped.rewards[stepped.valid] for stepped in self.steps]
        return np.concatenate(parts) if parts else np.empty(0)

    def leaf(self, key: str) -> np.ndarray:
        """All observations of one leaf that were seen before acting: ``[B, ...]``."""
        return np.concatenate([seen.obs[key] for seen in self.seen])

    @functools.cached_property
    def vectors(self) -> np.ndarray:
        """Observations as `flat` vectors: ``[T + 1, N, D]`` float64."""
        return np.stack([flat(seen.obs) for seen in self.seen])

    @functools.cached_property
    def acted(self) -> np.ndarray:
        """``[T + 1, N]`` bool: the row acted on what it saw; not after its end, nor before it joins."""
        last = np.zeros((1, self.player.num_rows), np.bool_)
        return np.concatenate([*(stepped.valid[None] for stepped in self.steps), last])

    @functools.cached_property
    def starts(self) -> np.ndarray:
        """``[T + 1, N]`` bool: the observation is the first of an episode, and was acted on."""
        first = np.ones((1, self.player.num_rows), np.bool_)
        begun = np.concatenate([first, *(stepped.starts[None] for stepped in self.steps)])
        return np.asarray(begun & self.acted)


def flat(obs: Leaves) -> np.ndarray:
    """Leaves ``[N, ...]`` side by side: ``[N, D]`` float64; of large ones a fixed choice of numbers."""
    wide = np.concatenate([leaf.reshape(len(leaf), -1) for leaf in obs.values()], 1).astype(float)
    if wide.shape[1] <= _MAX_NUMBERS:
        return wide
    chosen = np.random.default_rng(0).choice(wide.shape[1], _MAX_NUMBERS, replace=False)
    return np.asarray(wide[:, np.sort(chosen)])


def record(player: Player, num_steps: int, seed: int) -> Recording:
    """Play about `num_steps` agent steps with legal actions at random; fewer of large observations."""
    generator = np.random.default_rng(seed)
    num_steps = min(num_steps, max(_MIN_STEPS, _MAX_BYTES // max(1, player.obs_spec.nbytes)))
    recording = Recording(player, [player.reset(seed)], [], [], [], 0.0)
    lengths = np.zeros(player.num_rows, np.int64)
    # many rows share the steps, but each must be able to end an episode
    for step in range(max(-(-num_steps // player.num_rows), num_steps // _ROWS_AT_FULL_LENGTH)):
        actions = draw_actions(player, recording.seen[-1], generator)
        began = time.perf_counter()
        stepped = player.step(actions)
        recording.seconds += time.perf_counter() - began
        recording.actions.append(actions)
        recording.steps.append(stepped)
        recording.seen.append(stepped)
        lengths += stepped.valid
        for row in np.flatnonzero(stepped.ended).tolist():
            ending = Ending(
                step,
                row,
                int(lengths[row]),
                bool(stepped.terminated[row]),
                bool(stepped.truncated[row]),
                stepped.finals.get(row),
            )
            recording.endings.append(ending)
            lengths[row] = 0
    return recording
