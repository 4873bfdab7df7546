"""The learning curve as a picture."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from metta.errors import MissingExtraError
from metta.files import atomic_write

__all__ = ["draw_learning_curve"]


def draw_learning_curve(path: Path, rows: Sequence[Mapping[str, float]], title: str) -> Path:
    """A PNG of return against agent steps; `rows` are records of metrics."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise MissingExtraError("matplotlib", "plot", "drawing a learning curve") from None
    points = [
        (row["agent_step"], row["episode_return"])
        for row in rows
        if not math.isnan(row.get("episode_return", math.nan))
    ]
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.plot([step for step, _ in points], [value for _, value in points], color="#2563eb", lw=2)
    axes.set(title=title, xlabel="agent steps", ylabel="mean return of the last 100 episodes")
    axes.grid(alpha=0.3)
    try:
        return atomic_write(path, lambda target: figure.savefig(target, format="png", dpi=120))
    finally:
        pyplot.close(figure)
