"""Episode statistics read off whole rollouts: nothing is counted step by step."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from metta.envs.vec_env import EPISODE_RETURN, LIFE_LOST
from metta.rl.collect.buffer import RolloutBuffer

__all__ = ["EpisodeMeter", "EpisodeParts", "cut_episodes"]


class EpisodeParts(NamedTuple):
    """Episodes cut out of ``[T, N]`` arrays; arrays ``[K]`` are in order of steps, then rows."""

    steps: np.ndarray
    """``[K]`` int64, where each episode ended."""
    rows: np.ndarray
    """``[K]`` int64."""
    returns: np.ndarray
    """``[K]`` float64; the first of a row may lack its beginning."""
    lengths: np.ndarray
    """``[K]`` int64."""
    is_first: np.ndarray
    """``[K]`` bool, whether the row had ended no episode before in these arrays."""
    tail_returns: np.ndarray
    """``[N]`` return of each row since its last end."""
    tail_lengths: np.ndarray
    """``[N]`` steps of each row since its last end."""


def cut_episodes(rewards: np.ndarray, valid: np.ndarray, ended: np.ndarray) -> EpisodeParts:
    """Returns and lengths of the episodes inside a rollout; invalid steps do not count."""
    returns = np.cumsum(np.where(valid, rewards, 0.0), axis=0, dtype=np.float64)
    lengths = np.cumsum(valid, axis=0, dtype=np.int64)
    steps, rows = np.nonzero(ended)
    by_row = np.lexsort((steps, rows))
    is_first = np.ones(len(rows), np.bool_)
    is_first[by_row[1:]] = rows[by_row[1:]] != rows[by_row[:-1]]
    last = by_row[np.append(is_first[by_row[1:]], True)[: len(rows)]]

    def cut(sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sums over each episode, and over each row since its last end."""
        at_end, tail = sums[steps, rows], sums[-1].copy()
        before = np.zeros_like(at_end)
        before[by_row[1:]] = np.where(is_first[by_row[1:]], 0, at_end[by_row[:-1]])
        tail[rows[last]] -= at_end[last]
        return at_end - before, tail

    part_returns, tail_returns = cut(returns)
    part_lengths, tail_lengths = cut(lengths)
    return EpisodeParts(
        steps, rows, part_returns, part_lengths, is_first, tail_returns, tail_lengths
    )


class EpisodeMeter:
    """Returns and lengths of episodes that continue from rollout to rollout."""

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
        for step, row, numbers in infos:
            if LIFE_LOST in numbers and (step, row) not in buffer.lost:
                ended[step, row] = False
        parts = cut_episodes(rewards, valid, ended)
        for step, row in buffer.lost:
            if step < 0:  # all that was lost lies before this rollout
                self.returns[row], self.lengths[row] = 0.0, 0
        returns = parts.returns + np.where(parts.is_first, self.returns[parts.rows], 0.0)
        lengths = parts.lengths + np.where(parts.is_first, self.lengths[parts.rows], 0)
        columns = (parts.steps, parts.rows, returns, lengths)
        lost = set(buffer.lost)
        rows_of = zip(*(column.tolist() for column in columns), strict=True)
        reported = {
            (step, row): numbers[EPISODE_RETURN]
            for step, row, numbers in infos
            if EPISODE_RETURN in numbers
        }
        self.last_ended = [
            (step, row, reported.get((step, row), summed), length)
            for step, row, summed, length in rows_of
            if (step, row) not in lost
        ]
        stats: dict[str, list[float]] = {
            "episode_return": [episode[2] for episode in self.last_ended],
            "episode_length": [float(episode[3]) for episode in self.last_ended],
        }
        self.returns[parts.rows], self.lengths[parts.rows] = 0.0, 0
        self.returns += parts.tail_returns
        self.lengths += parts.tail_lengths
        self.num_episodes += len(stats["episode_return"])
        for _, _, numbers in infos:
            for name, value in numbers.items():
                if name in (EPISODE_RETURN, LIFE_LOST):
                    continue
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
        """Restore unfinished episodes."""
        self.returns[:] = state["returns"]
        self.lengths[:] = state["lengths"]
        self.num_episodes = int(state["num_episodes"])
