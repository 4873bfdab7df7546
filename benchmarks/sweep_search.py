"""Does a sweep find better settings than random search? Fixed before it was run.

    python -m benchmarks.sweep_search [--repetitions 5] [--trials 40] [--task cartpole]

Two tasks, with ranges that hold mostly poor settings and too few steps for most of them. For each
repetition one sweep with ``--sampler tpe`` and one with ``--sampler random``, of 40 trials each; the
repetitions differ in the sweep's seed. Two numbers are compared. *Best*: the highest score of a trial.
*Again*: the mean score of three new runs with the settings of the best trial and with new seeds, which is
what a user gets. Two sweeps run at the same time, one worker each. A second call goes on from the files.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from metta.processes import python_command
from metta.sim.statistics import estimate, mean_of_means, probability_of_improvement

COMMON = ["recipe=none", "verbose=false", "monitor_seconds=0", "eval_episodes=20", "threads=1"]
RANGES = ["lr=1e-5..1e-1:log", "gamma=0.8..0.9999", "gae_lambda=0.5..1.0", "clip_coef=0.05..0.5",
          "ent_coef=1e-5..0.3:log", "n_epochs=1..20", "num_minibatches=1,2,4,8"]  # fmt: skip
TASKS = {
    "cartpole": ["CartPole-v1", "total_timesteps=8192", "num_envs=4", "horizon=128"],
    "pendulum": ["Pendulum-v1", "total_timesteps=20480", "num_envs=4", "horizon=256"],
}
SAMPLERS = ("tpe", "random")
_NEW_SEEDS = (1001, 1002, 1003)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--task", choices=sorted(TASKS), nargs="+", default=list(TASKS))
    parser.add_argument("--out", type=Path, default=Path("sweep_search"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    wanted = [
        (task, sampler, repetition)
        for task in options.task
        for repetition in range(options.repetitions)
        for sampler in SAMPLERS
    ]
    with ThreadPoolExecutor(max_workers=2) as pool:
        rows = list(pool.map(lambda one: result(*one, options.trials, options.out), wanted))
    for task in options.task:
        print(*report(task, [row for row in rows if row["task"] == task]), sep="\n")
    return 0


def result(task: str, sampler: str, repetition: int, trials: int, out: Path) -> dict[str, object]:
    """Of one sweep, perhaps from an earlier call."""
    name = f"{task}-{sampler}-{repetition}"
    file = out / f"{name}.json"
    if file.exists():
        return json.loads(file.read_text())
    place = ["--runs", str(out / "runs"), "--database", str(out / f"{name}.db")]
    own = ["--trials", str(trials), "--seed", str(repetition), "--workers", "1", "--name", name]
    metta(["sweep", *TASKS[task], *COMMON, *RANGES, "--sampler", sampler, *own, *place])
    status = json.loads(metta(["sweep", "status", name, "--json", *place]))
    settings = [f"{path}={value}" for path, value in status["best"]["values"].items()]
    again = []
    for seed in _NEW_SEEDS:
        run = f"{name}-again-{seed}"
        words = [*TASKS[task], *COMMON, *settings, f"seed={seed}", "final_replay=false"]
        metta(["train", *words, "--run", run, "--runs", str(out / "runs")])
        [line] = metta(["runs", run, "--json", "--runs", str(out / "runs")]).splitlines()
        again.append(json.loads(line)["score"])
    scores = [trial["score"] and trial["score"]["value"] for trial in status["trials"]]
    found = {"task": task, "sampler": sampler, "repetition": repetition, "settings": settings,
             "best": max(score for score in scores if score is not None), "again": again,
             "scores": scores}  # fmt: skip
    file.write_text(json.dumps(found))
    print(name, f"best {found['best']:.1f}, again {np.mean(again):.1f}", flush=True)
    return found


def metta(words: Sequence[str]) -> str:
    command = python_command("metta", *words)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"metta {' '.join(words)} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def report(task: str, rows: Sequence[dict[str, object]]) -> list[str]:
    lines = [f"## {task}"]
    for name in ("best", "again"):
        by = {
            sampler: np.array([np.mean(row[name]) for row in rows if row["sampler"] == sampler])
            for sampler in SAMPLERS
        }
        for sampler, values in by.items():
            mean = estimate(mean_of_means, [values])
            lines.append(
                f"{name:5} {sampler:6} {mean.value:9.1f} ({mean.low:.1f} .. {mean.high:.1f})  "
                f"{', '.join(f'{value:.1f}' for value in values)}"
            )
        better = probability_of_improvement([by["tpe"]], [by["random"]])
        difference = estimate(mean_of_means, [by["tpe"] - by["random"]])
        lines.append(
            f"{name:5} tpe - random {difference.value:.1f} ({difference.low:.1f} .. "
            f"{difference.high:.1f}), P(tpe > random) {better.value:.2f} ({better.low:.2f} .. "
            f"{better.high:.2f})"
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
