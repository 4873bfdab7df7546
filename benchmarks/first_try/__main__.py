"""metta with nothing but an id, beside Stable-Baselines3's defaults, at equal agent steps.

python -m benchmarks.first_try --seeds 1 2 3 --out benchmarks/first_try/results.csv

Needs the extra ``bench``, and of the environments' packages those of the tasks that are run (all of them:
``pip install -e '.[dev]' minatar flappy-bird-gymnasium opencv-python-headless``). Jobs that the file has
already are not run again. A score is the mean return of 20 fresh episodes with sampled actions.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.first_try.tasks import TASKS, Task

EPISODES = 20
LIMIT = 1800
"""Seconds that one job may take; a policy whose episodes do not end would play for ever."""
LIBRARIES = ("metta", "sb3")
FIELDS = ("env", "family", "is_tuned", "steps", "library", "seed", "score")


class Job(NamedTuple):
    task: Task
    library: str
    seed: int


def run_metta(task: Task, seed: int) -> float:
    """Two commands: train on the id, play the last policy."""
    with tempfile.TemporaryDirectory() as folder:
        words = [f"total_timesteps={task.steps}", f"seed={seed}", "verbose=false"]
        _call("metta", "train", task.env, *words, "--runs", folder, "--run", "one",
              "--eval-episodes", "0")  # fmt: skip
        scores = Path(folder) / "scores.json"
        _call("metta", "eval", "one:latest", "--episodes", str(EPISODES), "--seed", str(seed + 1000),
              "--runs", folder, "--json", str(scores))  # fmt: skip
        return _mean_return(json.loads(scores.read_text()))


def run_sb3(task: Task, seed: int) -> float:
    shown = _call("benchmarks.first_try.peer", task.env, str(seed))
    return float(json.loads(shown.splitlines()[-1])["score"])


def _mean_return(scores: Any) -> float:
    """Of all episodes in what ``metta eval --json`` wrote."""
    found = list(_returns_in(scores))
    assert found, scores
    return float(np.mean(found))


def _returns_in(node: Any) -> Iterator[float]:
    if isinstance(node, dict):
        if isinstance(node.get("returns"), list):
            yield from np.ravel(node["returns"]).tolist()
            return
        for child in node.values():
            yield from _returns_in(child)
    elif isinstance(node, list):
        for child in node:
            yield from _returns_in(child)


def _call(module: str, *words: str) -> str:
    options = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, *words],
            capture_output=True, text=True, env=os.environ | options, check=False, timeout=LIMIT,
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        raise RuntimeError(f"{module} {' '.join(words)}: more than {LIMIT} seconds") from late
    if done.returncode:
        raise RuntimeError(f"{module} {' '.join(words)}: {done.stderr[-600:]}")
    return done.stdout


def run(job: Job) -> float | None:
    try:
        return (run_metta if job.library == "metta" else run_sb3)(job.task, job.seed)
    except RuntimeError as error:
        print(f"FAILED {job.task.env} {job.library} {job.seed}: {error}", flush=True)
        return None


def read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write_table(rows: list[dict[str, str]]) -> None:
    """One line per environment: scores of both, over seeds."""
    print("\n| environment | family | steps | metta | SB3 | tuned on |\n|---|---|---|---|---|---|")
    ahead = total = 0
    for task in TASKS:
        scores = {
            library: [float(row["score"]) for row in rows
                      if row["env"] == task.env and row["library"] == library]
            for library in LIBRARIES
        }  # fmt: skip
        if not all(scores.values()):
            continue
        total += 1
        ahead += bool(np.mean(scores["metta"]) >= np.mean(scores["sb3"]))
        cells = " | ".join(
            f"{np.mean(found):.4g} ({', '.join(f'{score:.4g}' for score in found)})"
            for found in scores.values()
        )
        tuned = "yes" if task.is_tuned else ""
        name = task.env.rpartition(":")[2]
        print(f"| {name} | {task.family} | {task.steps:,} | {cells} | {tuned} |")
    print(f"\nmean at least as high as Stable-Baselines3's: {ahead} of {total}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/first_try/results.csv"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--libraries", nargs="+", default=list(LIBRARIES), choices=LIBRARIES)
    parser.add_argument("--only", nargs="+", default=[], help="parts of environments' ids")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows = read(options.out)
    done = {(row["env"], row["library"], int(row["seed"])) for row in rows}
    jobs = [
        Job(task, library, seed)
        for seed in options.seeds
        for task in TASKS
        for library in options.libraries
        if (task.env, library, seed) not in done
        and (not options.only or any(part in task.env for part in options.only))
    ]
    with ThreadPoolExecutor(options.jobs) as pool:
        for job, score in zip(jobs, pool.map(run, jobs), strict=True):
            if score is None:
                continue
            task = job.task
            about = task.env, task.family, task.is_tuned, task.steps
            values = *about, job.library, job.seed, score
            rows.append({name: str(value) for name, value in zip(FIELDS, values, strict=True)})
            with options.out.open("w", newline="") as file:
                writer = csv.DictWriter(file, FIELDS)
                writer.writeheader()
                writer.writerows(rows)
            print(f"{task.env} {job.library} seed {job.seed}: {score:.4g}", flush=True)
    write_table(rows)


if __name__ == "__main__":
    main()
