"""The learning curve as a picture."""

from pathlib import Path

from metta.errors import MissingExtraError
from metta.files import atomic_write
from metta.runs.learning_curve import LearningCurve

__all__ = ["draw_learning_curve"]

_BLUE, _ORANGE = "#2563eb", "#d97706"


def draw_learning_curve(path: Path, curve: LearningCurve, title: str) -> Path:
    """A PNG of returns against agent steps: episodes, their mean with a band, and evaluations."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise MissingExtraError("matplotlib", "plot", "drawing a learning curve") from None
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    steps, returns = [one[0] for one in curve.episodes], [one[1] for one in curve.episodes]
    axes.scatter(steps, returns, s=8, color=_BLUE, alpha=0.3, linewidths=0, label="episodes")
    middles, means = [part.agent_step for part in curve.parts], [part.mean for part in curve.parts]
    low, high = ([part.mean + sign * part.std for part in curve.parts] for sign in (-1, 1))
    axes.fill_between(middles, low, high, color=_BLUE, alpha=0.2, linewidth=0)
    marker = "o" if len(means) == 1 else None
    axes.plot(middles, means, color=_BLUE, lw=2, marker=marker, label="mean ± deviation")
    if curve.evaluations:
        scored, scores = zip(*curve.evaluations, strict=True)
        axes.plot(scored, scores, "D", color=_ORANGE, ms=5, label="evaluations")
    axes.set(title=title, xlabel="agent steps at the start of an episode", ylabel="return")
    axes.grid(alpha=0.3)
    axes.legend(loc="best", fontsize="small")
    try:
        return atomic_write(path, lambda target: figure.savefig(target, format="png", dpi=120))
    finally:
        pyplot.close(figure)
