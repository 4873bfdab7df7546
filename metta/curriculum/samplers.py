"""How a curriculum weights its tasks: pure functions of their scores so far."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from metta.errors import StateError
from metta.train.run_config import CurriculumConfig

__all__ = ["WEIGHINGS", "ScoreTable"]

_COLUMNS = ("counts", "fast", "slow", "peak")
_SLOW_SHARE = 0.1
"""How fast the slow average follows, as a share of the fast one's speed."""
_MIN_COUNT = 5
"""Episodes of a task before anything is concluded from its scores."""


class ScoreTable:
    """Statistics of each task: episodes, and a fast and a slow average of the scores."""

    def __init__(self, num_tasks: int, smoothing: float) -> None:
        self.smoothing = smoothing
        self.counts = np.zeros(num_tasks, np.int64)
        """``[K]`` episodes that ended."""
        self.fast = np.zeros(num_tasks)
        """``[K]`` average that follows the scores by `smoothing` per episode; 0 before the first."""
        self.slow = np.zeros(num_tasks)
        """``[K]`` the same, ten times as slow."""
        self.peak = np.zeros(num_tasks)
        """``[K]`` highest value of the fast average."""

    def record(self, task: int, score: float) -> None:
        """An episode of a task ended."""
        if self.counts[task] == 0:
            self.fast[task] = self.slow[task] = self.peak[task] = score
        else:
            self.fast[task] += self.smoothing * (score - self.fast[task])
            self.slow[task] += self.smoothing * _SLOW_SHARE * (score - self.slow[task])
            self.peak[task] = max(self.peak[task], self.fast[task])
        self.counts[task] += 1

    @property
    def known(self) -> np.ndarray:
        """``[K]`` bool: tasks with enough episodes to draw conclusions."""
        return self.counts >= _MIN_COUNT

    @property
    def scale(self) -> float:
        """Spread of the scores: the unit in which differences are compared."""
        known = self.known
        if not known.any():
            return 1.0
        values = np.concatenate([self.fast[known], self.slow[known], self.peak[known]])
        spread = float(values.max() - values.min())
        return spread if spread > 0.0 else 1.0

    def state_dict(self) -> dict[str, Any]:
        """Every column."""
        return {name: getattr(self, name).copy() for name in _COLUMNS}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for name in _COLUMNS:
            column, own = np.asarray(state.get(name)), getattr(self, name)
            if column.shape != own.shape or column.dtype != own.dtype:
                raise StateError(
                    f"the saved {name} of the curriculum are {column.shape} of {column.dtype}, but it "
                    f"has {len(own)} tasks; continue with the tasks of the run"
                )
            own[:] = column


def _even(table: ScoreTable, config: CurriculumConfig) -> np.ndarray:
    del config
    return np.ones(len(table.counts))


def _learning_progress(table: ScoreTable, config: CurriculumConfig) -> np.ndarray:
    """Tasks whose scores change, up or down, come more often; new ones as often as the fastest."""
    del config
    progress = np.abs(table.fast - table.slow) / table.scale
    known = table.known
    liveliest = float(progress[known].max()) if known.any() else 0.0
    return np.where(known, progress, liveliest or 1.0)


def _prioritize_regressed(table: ScoreTable, config: CurriculumConfig) -> np.ndarray:
    """Tasks come more often the further they have fallen below their best."""
    del config
    fall = (table.peak - table.fast) / table.scale
    known = table.known
    furthest = float(fall[known].max()) if known.any() else 0.0
    return np.where(known, fall, furthest or 1.0)


def _progressive(table: ScoreTable, config: CurriculumConfig) -> np.ndarray:
    """One task after the other: the next one opens when the newest is mastered."""
    mastered = table.known & (table.peak >= config.mastery_score)
    num_open = 1
    while num_open < len(mastered) and mastered[num_open - 1]:
        num_open += 1
    weights = np.zeros(len(mastered))
    weights[num_open - 1] = 1.0
    return weights


Weighing = Callable[[ScoreTable, CurriculumConfig], np.ndarray]

WEIGHINGS: dict[str, Weighing] = {
    "single": _even,
    "random": _even,
    "bucketed": _even,
    "learning_progress": _learning_progress,
    "prioritize_regressed": _prioritize_regressed,
    "progressive": _progressive,
}
"""Kind of curriculum -> weights ``[K]`` of its tasks, before `min_share` and `task_weights`."""
