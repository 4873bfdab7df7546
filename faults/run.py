"""Run fault campaigns and write what happened.

    python -m faults.run [--only NAME ...] [--scale 0.1] [--seed 1] [--out faults.jsonl]

Every trial becomes a line of the log (campaign, seed, point, outcome, digest); the table at the end is
also written beside it as Markdown. Exit code 1 where any trial went wrong.
"""

import argparse
import importlib
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from faults.trial import OK, Trial

CAMPAIGNS: dict[str, int] = {
    "crash_points": 0,
    "power_loss": 0,
    "disk_errors": 0,
    "splits": 0,
    "ablation": 0,
    "kills": 1000,
    "signals": 400,
    "evaluation_kills": 50,
    "queue_kills": 200,
    "worker_faults": 1000,
    "trainer_kills": 200,
    "overlap_delays": 10,
    "rank_kills": 110,
    "collector_kills": 100,
    "node_kills": 20,
    "sweep_kills": 20,
    "planted_secrets": 68,
    "planted_names": 0,
    "planted_code": 1_000,
    "server_kills": 30,
    "bad_numbers": 240,
    "soak": 20,
    "bad_files": 10_000,
    "malicious_pickles": 50,
    "hostile_configs": 2_000,
    "hostile_names": 200,
    "hostile_folders": 400,
    "racing_readers": 180,
    "damaged_runs": 0,
    "damaged_logs": 260,
    "large_logs": 1000,
}
"""Module in this package -> trials of the full suite; 0: as many as there are points."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=sorted(CAMPAIGNS), default=list(CAMPAIGNS))
    parser.add_argument(
        "--scale", type=float, default=1.0, help="share of the full number of trials"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("faults.jsonl"))
    options = parser.parse_args()
    rows, all_well = [], True
    with options.out.open("w") as log:
        for name in options.only:
            begin = time.monotonic()
            trials = run_campaign(name, options.scale, options.seed, log)
            all_well &= bool(trials) and all(trial.outcome == OK for trial in trials)
            rows.append(summary_row(name, trials, time.monotonic() - begin))
            print(rows[-1], flush=True)
    table = "\n".join(["| campaign | trials | points | wrong | at most (95 %) | seconds |",
                       "|---|---|---|---|---|---|", *rows])  # fmt: skip
    options.out.with_suffix(".md").write_text(table + "\n")
    return int(not all_well)


def run_campaign(name: str, scale: float, seed: int, log) -> list[Trial]:
    count = max(1, round(CAMPAIGNS[name] * scale)) if CAMPAIGNS[name] else 0
    campaign = importlib.import_module(f"faults.{name}").trials
    trials = []
    with tempfile.TemporaryDirectory(prefix=f"metta-{name}-") as folder:
        for trial in campaign(count, seed, Path(folder)):
            trials.append(trial)
            print(trial.to_json(), file=log, flush=True)
    return trials


def summary_row(name: str, trials: list[Trial], seconds: float) -> str:
    wrong = sum(trial.outcome != OK for trial in trials)
    points = len(Counter(trial.point for trial in trials))
    # 0 in n trials: the chance is below 1 - 0.05 ** (1 / n), which the "rule of three" puts at 3 / n
    bound = f"{1 - 0.05 ** (1 / len(trials)):.2%}" if trials and not wrong else "-"
    return f"| {name} | {len(trials)} | {points} | {wrong} | {bound} | {seconds:.0f} |"


if __name__ == "__main__":
    sys.exit(main())
