"""What was measured as a picture: bars, or curves where one setting grows."""

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.speed.session import Results
from metta.errors import MissingExtraError
from metta.files import atomic_write

__all__ = ["draw_results", "load_pyplot"]

_BLUE, _GREY = "#2563eb", "#94a3b8"
Speeds = Mapping[str, list[float]]


def draw_results(path: Path, results: Results, title: str) -> Path:
    """A PNG of steps per second, a dot for each repetition.

    Jobs named ``setting=number`` become curves, one picture per setting.
    """
    pyplot = load_pyplot()
    speeds = {
        job: [run.numbers["steps_per_second"] for run in runs if run is not None]
        for job, runs in results.items()
    }
    grows = bool(speeds) and all("=" in job for job in speeds)
    figure = _curves(pyplot, speeds) if grows else _bars(pyplot, speeds)
    figure.suptitle(title)
    try:
        return atomic_write(path, lambda target: figure.savefig(target, format="png", dpi=120))
    finally:
        pyplot.close(figure)


def load_pyplot() -> Any:
    """Matplotlib's pyplot, without a window; `MissingExtraError` says how to install it."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise MissingExtraError("matplotlib", "plot", "drawing what was measured") from None
    return pyplot


def _bars(pyplot: Any, speeds: Speeds) -> Any:
    figure, axes = pyplot.subplots(figsize=(8, 1 + 0.4 * len(speeds)), layout="constrained")
    for place, (job, values) in enumerate(speeds.items()):
        if not values:
            axes.text(0, place, " failed", va="center")
            continue
        color = _BLUE if job.startswith("metta") else _GREY
        axes.barh(place, statistics.median(values), color=color, height=0.7)
        axes.plot(values, [place] * len(values), "o", color="black", ms=3)
    axes.set_yticks(range(len(speeds)), list(speeds))
    axes.invert_yaxis()
    axes.set_xlabel("steps per second")
    axes.grid(axis="x", alpha=0.3)
    return figure


def _curves(pyplot: Any, speeds: Speeds) -> Any:
    settings = list(dict.fromkeys(job.partition("=")[0] for job in speeds))
    figure, panels = pyplot.subplots(
        1, len(settings), figsize=(4 * len(settings), 3.5), layout="constrained", squeeze=False
    )
    for setting, axes in zip(settings, panels[0], strict=True):
        points = {
            float(job.partition("=")[2]): values
            for job, values in speeds.items()
            if job.partition("=")[0] == setting and values
        }
        axes.plot(
            list(points), [statistics.median(values) for values in points.values()], color=_BLUE
        )
        for place, values in points.items():
            axes.plot([place] * len(values), values, "o", color=_BLUE, ms=3)
        axes.set_xscale("symlog", base=2)
        axes.set_ylim(bottom=0)
        axes.set(xlabel=setting, ylabel="steps per second")
        axes.grid(alpha=0.3)
    return figure
