"""Steps per second of whole training loops, side by side.

    python -m benchmarks.run [--repetitions 5] [--only metta]

Every repetition runs every job once, in turn, each in its own process, so that slow drift of a noisy
machine hits all alike. Runs during which other processes used the CPU are repeated. Steady speed
leaves out the first fifth of a run. Ratios are medians of per-repetition ratios to Stable-Baselines3.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

JOBS = ("metta_default", "metta_custom", "sb3", "plain")
BASELINE = "sb3"
WARM_SHARE = 0.2
QUIET_CORES = 0.15
TICKS = os.sysconf("SC_CLK_TCK")


def busy_seconds() -> float:
    """CPU seconds that the whole machine has used, stolen ones too."""
    fields = [int(x) for x in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return sum(fields[i] for i in (0, 1, 2, 5, 6, 7)) / TICKS


def run_job(name: str) -> dict[str, float]:
    """One run: steady steps/s, CPU seconds per million steps, peak memory, cores used by others."""
    before, started = busy_seconds(), time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", f"benchmarks.jobs.{name}"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    points = [tuple(map(float, line.split())) for line in process.stdout]
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.monotonic() - started
    if status:
        raise SystemExit(f"job {name} failed with status {status}")
    total = points[-1][0]
    first = next(point for point in points if point[0] >= WARM_SHARE * total)
    cpu = usage.ru_utime + usage.ru_stime
    return {
        "steps_per_second": (total - first[0]) / (points[-1][1] - first[1]),
        "cpu_seconds_per_million": cpu / total * 1e6,
        "peak_mb": usage.ru_maxrss / 1024,
        "foreign_cores": max(0.0, (busy_seconds() - before - cpu) / wall),
    }


def run_quiet(name: str, retries: int) -> dict[str, float]:
    """A run that nobody disturbed, or the last try, marked as disturbed."""
    for _ in range(retries + 1):
        result = run_job(name)
        if result["foreign_cores"] <= QUIET_CORES:
            break
        print(f"  (disturbed: {result['foreign_cores']:.2f} cores used by others)", flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--retries", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=JOBS, choices=JOBS)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/cartpole.json"))
    options = parser.parse_args()
    results: dict[str, list[dict[str, float]]] = {name: [] for name in options.only}
    for repetition in range(options.repetitions):
        for name in options.only:
            result = run_quiet(name, options.retries)
            results[name].append(result)
            speed = result["steps_per_second"]
            print(f"repetition {repetition + 1}  {name:<14} {speed:>8,.0f} steps/s", flush=True)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=2))
    print_table(results)


def print_table(results: dict[str, list[dict[str, float]]]) -> None:
    print("\n| job | steps/s (median) | ratio to SB3 (median, range) | CPU s / M steps | peak MB |")
    print("|---|---|---|---|---|")
    for name, runs in results.items():
        median = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        ratio = ""
        if BASELINE in results:
            pairs = zip(runs, results[BASELINE], strict=True)
            ratios = [a["steps_per_second"] / b["steps_per_second"] for a, b in pairs]
            ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(
            f"| {name} | {median['steps_per_second']:,.0f} | {ratio} "
            f"| {median['cpu_seconds_per_million']:.0f} | {median['peak_mb']:.0f} |"
        )


if __name__ == "__main__":
    main()
