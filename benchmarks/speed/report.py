"""Tables of what was measured."""

import statistics
from collections.abc import Callable, Sequence

from benchmarks.speed.comparison import compare_runs
from benchmarks.speed.job_run import Run
from benchmarks.speed.session import Results
from benchmarks.speed.workloads import ONE_THREAD

__all__ = ["markdown_table"]

_USUAL = ("steps_per_second", "cpu_seconds_per_million", "peak_mib")


def markdown_table(
    results: Results, baseline: str | None, is_disturbed: Callable[[Run], bool]
) -> str:
    """A row per job: medians over repetitions, and ratios to the baseline with 95 % intervals.

    Where the baseline was also measured with one thread, ratios are to the faster of the two, which the
    header names. Numbers that jobs reported of their own get columns of their own.
    """
    baseline = _faster_twin(results, baseline)
    own = list(dict.fromkeys(
        name for runs in results.values() for run in runs if run for name in run.numbers
        if name not in _USUAL
    ))  # fmt: skip
    head = ["job", "steps/s"]
    if baseline is not None:
        head += [f"speed / {baseline}", f"CPU / {baseline}"]
    head += ["CPU s per million steps", "peak MiB", *own, "disturbed runs"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for job, runs in results.items():
        done = [run for run in runs if run is not None]
        if not done:
            lines.append("| " + " | ".join([job, "failed", *[""] * (len(head) - 2)]) + " |")
            continue
        cells = [job, f"{_median(done, 'steps_per_second'):,.0f}"]
        if baseline is not None:
            cells += [_ratio(runs, results[baseline], name) for name in _USUAL[:2]]
        cells += [f"{_median(done, name):,.0f}" for name in _USUAL[1:]]
        cells += [_shown(_median(done, name)) for name in own]
        cells.append(str(sum(map(is_disturbed, done)) or ""))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _faster_twin(results: Results, baseline: str | None) -> str | None:
    """The baseline or its twin with one thread; None where neither ran to its end."""
    speeds: dict[str, float] = {}
    for name in () if baseline is None else (baseline, f"{baseline}{ONE_THREAD}"):
        speed = _median([run for run in results.get(name, ()) if run], "steps_per_second")
        if speed is not None:
            speeds[name] = speed
    return max(speeds, key=speeds.__getitem__, default=None)


def _median(runs: Sequence[Run], name: str) -> float | None:
    found = [run.numbers[name] for run in runs if name in run.numbers]
    return statistics.median(found) if found else None


def _shown(number: float | None) -> str:
    if number is None:
        return ""
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def _ratio(runs: Sequence[Run | None], baseline: Sequence[Run | None], name: str) -> str:
    compared = compare_runs(_numbers(runs, name), _numbers(baseline, name))
    return "" if compared is None else str(compared)


def _numbers(runs: Sequence[Run | None], name: str) -> list[float | None]:
    return [None if run is None else run.numbers[name] for run in runs]
