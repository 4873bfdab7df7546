"""Episode statistics read off whole rollouts: nothing is counted step by step."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from metta.rl.experience import RolloutBuffer

__all__ = ["EpisodeMeter", "EpisodeParts", "cut_episodes"]


class EpisodeParts(NamedTuple):
    """Episodes cut out of ``[T, N]`` arrays."""

    ended: list[tuple[int, int, float, int]]
    """``(step, row, return, length)`` in order of steps; the first of a row may lack its beginning."""
    tail_returns: np.ndarray
    """``[N]`` return of each row since its last end."""
    tail_lengths: np.ndarray
    """``[N]`` steps of each row since its last end."""


def cut_episodes(rewards: np.ndarray, valid: np.ndarray, ended: np.ndarray) -> EpisodeParts:
    """Returns and lengths of the episodes inside a rollout; invalid steps do not count."""
    returns = np.cumsum(np.where(valid, rewards, 0.0), axis=0, dtype=np.float64)
    lengths = np.cumsum(valid, axis=0, dtype=np.int64)
    done_returns, done_lengths = np.zeros(rewards.shape[1]), np.zeros(rewards.shape[1], np.int64)
    found = []
    for step, row in np.argwhere(ended).tolist():
        total, length = float(returns[step, row]), int(lengths[step, row])
        found.append((step, row, total - float(done_returns[row]), length - int(done_lengths[row])))
        done_returns[row], done_lengths[row] = total, length
    return EpisodeParts(found, returns[-1] - done_returns, lengths[-1] - done_lengths)


class EpisodeMeter:
    """Returns and lengths of episodes that run on from rollout to rollout."""

    def __init__(self, num_rows: int) -> None:
        self.returns = np.zeros(num_rows)
        self.lengths = np.zeros(num_rows, np.int64)
        self.num_episodes = 0
        self.last_ended: list[tuple[int, int, float, int]] = []
        """(step, row, return, length) of the episodes that ended in the last rollout."""

    def update(
        self, buffer: RolloutBuffer, infos: Sequence[tuple[int, int, dict[str, float]]]
    ) -> dict[str, list[float]]:
        """Statistics of the episodes that ended in a rollout, one number per episode."""
        rewards, valid = buffer.rewards.numpy(), buffer.valid.numpy()
        ended = (buffer.terminated | buffer.truncated).numpy() & valid
        parts = cut_episodes(rewards, valid, ended)
        stats: dict[str, list[float]] = {"episode_return": [], "episode_length": []}
        lost = set(buffer.lost)
        for step, row in lost:
            if step < 0:  # all that was lost lies before this rollout
                self.returns[row], self.lengths[row] = 0.0, 0
        self.last_ended = []
        for step, row, part, steps in parts.ended:
            if (step, row) not in lost:
                total, length = part + float(self.returns[row]), int(steps + self.lengths[row])
                self.last_ended.append((step, row, total, length))
                stats["episode_return"].append(total)
                stats["episode_length"].append(float(length))
            self.returns[row], self.lengths[row] = 0.0, 0
        self.returns += parts.tail_returns
        self.lengths += parts.tail_lengths
        self.num_episodes += len(stats["episode_return"])
        for _, _, numbers in infos:
            for name, value in numbers.items():
                stats.setdefault(f"env/{name}", []).append(value)
        return stats

    def state_dict(self) -> dict[str, Any]:
        """Unfinished episodes."""
        return {
            "returns": self.returns.copy(),
            "lengths": self.lengths.copy(),
            "num_episodes": self.num_episodes,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back unfinished episodes."""
        self.returns[:] = state["returns"]
        self.lengths[:] = state["lengths"]
        self.num_episodes = int(state["num_episodes"])
