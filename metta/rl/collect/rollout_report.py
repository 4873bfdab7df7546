"""`describe_rollout`: look at the data before learning from it."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from metta.errors import RolloutError
from metta.rl.collect.episodes import cut_episodes

__all__ = ["ColumnReport", "RolloutReport", "describe_rollout"]


@dataclass(frozen=True)
class ColumnReport:
    """Shape, type and range of one column; NaN and infinity are left out of the range."""

    shape: tuple[int, ...]
    dtype: str
    minimum: float
    maximum: float
    mean: float
    num_nan: int
    num_inf: int


@dataclass(frozen=True)
class RolloutReport:
    """What a rollout holds; printing it gives a table."""

    num_steps: int
    num_rows: int
    num_valid: int
    num_terminated: int
    num_truncated: int
    episode_returns: tuple[float, ...]
    """Of episodes that ended in the rollout; those that began before it lack their beginning."""
    episode_lengths: tuple[int, ...]
    columns: dict[str, ColumnReport]
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        lines = [
            f"rollout of {self.num_steps} steps x {self.num_rows} rows, {self.num_valid} valid; "
            f"{self.num_terminated} terminated, {self.num_truncated} truncated"
        ]
        if self.episode_returns:
            returns, lengths = np.array(self.episode_returns), np.array(self.episode_lengths)
            lines.append(
                f"{len(returns)} episodes ended: return {returns.mean():.4g} "
                f"(min {returns.min():.4g}, max {returns.max():.4g}), length {lengths.mean():.4g}"
            )
        else:
            lines.append("no episode ended")
        width = max(len(name) for name in self.columns)
        lines.append(
            f"{'column':<{width}}  {'shape':<20} {'dtype':<8} {'min':>10} {'max':>10} {'mean':>10}"
        )
        for name, column in self.columns.items():
            lines.append(
                f"{name:<{width}}  {column.shape!s:<20} {column.dtype:<8} "
                f"{column.minimum:>10.4g} {column.maximum:>10.4g} {column.mean:>10.4g}"
            )
        return "\n".join([*lines, *(f"warning: {warning}" for warning in self.warnings)])


def describe_rollout(data: Mapping[str, Tensor]) -> RolloutReport:
    """Shapes, ranges, NaNs, episodes and returns of a rollout.

    print(describe_rollout(trainer.collect_rollouts(128)))
    """
    if "rewards" not in data:
        raise RolloutError(f"describe_rollout needs the column 'rewards'; found {sorted(data)}")
    rewards = _as_numpy(data["rewards"])
    if rewards.ndim != 2:
        raise RolloutError(f"column 'rewards' has shape {rewards.shape}; it must be [T, N]")
    flags = {
        name: data[name].numpy(force=True) if name in data else np.zeros(rewards.shape, bool)
        for name in ("terminated", "truncated")
    }
    valid = data["valid"].numpy(force=True) if "valid" in data else np.ones(rewards.shape, bool)
    ended = (flags["terminated"] | flags["truncated"]) & valid
    episodes = cut_episodes(rewards, valid, ended) if rewards.size else None
    columns = {name: _column(column) for name, column in data.items()}
    return RolloutReport(
        num_steps=rewards.shape[0],
        num_rows=rewards.shape[1],
        num_valid=int(valid.sum()),
        num_terminated=int((flags["terminated"] & valid).sum()),
        num_truncated=int((flags["truncated"] & valid).sum()),
        episode_returns=() if episodes is None else tuple(episodes.returns.tolist()),
        episode_lengths=() if episodes is None else tuple(episodes.lengths.tolist()),
        columns=columns,
        warnings=tuple(_warnings(columns)),
    )


def _as_numpy(column: Tensor) -> np.ndarray:
    """The values on the host; reduced floats, which NumPy lacks, as float32."""
    reduced = column.is_floating_point() and column.element_size() < 4
    return (column.float() if reduced else column).numpy(force=True)


def _column(column: Tensor) -> ColumnReport:
    values = _as_numpy(column)
    finite = values[np.isfinite(values)]
    empty = finite.size == 0
    return ColumnReport(
        shape=tuple(values.shape),
        dtype=str(column.dtype).removeprefix("torch."),
        minimum=float("nan") if empty else float(finite.min()),
        maximum=float("nan") if empty else float(finite.max()),
        mean=float("nan") if empty else float(finite.mean(dtype=np.float64)),
        num_nan=int(np.isnan(values).sum()),
        num_inf=int(np.isinf(values).sum()),
    )


def _warnings(columns: Mapping[str, ColumnReport]) -> list[str]:
    found = [
        f"column {name!r} holds {column.num_nan} NaN and {column.num_inf} infinite values"
        for name, column in columns.items()
        if column.num_nan or column.num_inf
    ]
    rewards = columns["rewards"]
    if rewards.minimum == rewards.maximum == 0.0:
        found.append("every reward is 0: there is nothing to learn from")
    advantages = columns.get("advantages")
    if advantages is not None and advantages.minimum == advantages.maximum:
        found.append("every advantage is the same: the policy gradient is zero")
    return found
