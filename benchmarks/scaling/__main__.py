"""Measure what several processes gain, in paired rounds, and compare it with the model.

    python -m benchmarks.scaling [--rounds 5] [--before ../older-checkout] [--out results]
    python -m benchmarks.scaling --table results/scaling.json      # the tables of docs/scaling.md

In each round every variant of a part runs once, in a process of its own, one after the other; a ratio is
taken within its round. Shown are the median and the range over the rounds. Environments sleep where they
stand for slow ones, so that two cores are enough for eight actors. Nothing else should run meanwhile.
"""

import argparse
import csv
import dataclasses
import importlib.util
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.scaling.model import (
    ASSUMED_NETWORK,
    EXAMPLE,
    compare_with_measured,
    nodes_table,
)
from benchmarks.scaling.parts import Part, Ratio, Variant, ratios_of, sleep_for_balance, the_parts

ROOT = Path(__file__).parents[2]
JOB = Path(__file__).with_name("job.py")


def run_job(variant: Variant, options: argparse.Namespace) -> dict[str, Any]:
    """Train once, in processes of its own."""
    job = {"epochs": options.epochs, "warmup": 1, "settings": variant.settings}
    if variant.sleep is not None:
        job["sleep"] = variant.sleep
    command = [str(JOB), json.dumps(job)]
    if variant.ranks:
        agent = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
        command = [*agent, str(variant.ranks), *command]
    place = options.before if variant.is_before else ROOT
    environment = {**os.environ, "PYTHONPATH": str(place), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{variant.name} failed:\n{done.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def balanced_sleep(variant: Variant, options: argparse.Namespace) -> float:
    """How long an environment must sleep to take as long as learning does here.

    A sleep takes longer than it is asked to, so the first guess is corrected by what it gave.
    """
    found = run_job(variant, options)
    learning = found["epoch_seconds"] - found["collect_seconds"]
    guess = sleep_for_balance(learning, found["collect_seconds"], found["steps"])
    longer = run_job(dataclasses.replace(variant, sleep=guess), options)
    return max(guess + (learning - longer["collect_seconds"]) / found["steps"], 0.0)


def measure(part: Part, options: argparse.Namespace) -> tuple[list[dict[str, Any]], list[Ratio]]:
    """All rounds of a part."""
    rows: list[dict[str, Any]] = []
    for number in range(options.rounds):
        turn = number % len(part.variants)  # another variant begins each time
        for variant in (*part.variants[turn:], *part.variants[:turn]):
            found = run_job(variant, options)
            rows.append({"part": part.name, "variant": variant.name, "round": number, **found})
        print(f"{part.what}: round {number + 1} of {options.rounds}", flush=True)
    seconds = {
        variant.name: [row[part.measure] for row in rows if row["variant"] == variant.name]
        for variant in part.variants
    }
    return rows, ratios_of(part, seconds)


def write(folder: Path, found: dict[str, Any]) -> Path:
    """Everything as JSON, and every single run as a line of CSV."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "scaling.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, list(found["runs"][0]))
        table.writeheader()
        table.writerows(found["runs"])
    path = folder / "scaling.json"
    path.write_text(json.dumps(found, indent=2))
    return path


def tables(found: dict[str, Any]) -> str:
    """Markdown: what was measured, the model beside it, and the model alone."""
    rounds = {ratio["rounds"] for ratio in found["ratios"]}
    measured = [("measured", "variant", f"median of {min(rounds)} rounds", "range")]
    for ratio in found["ratios"]:
        span = f"{ratio['low']:.2f} to {ratio['high']:.2f}"
        measured.append((ratio["what"], ratio["name"], f"{ratio['median']:.2f}", span))
    beside = [("speed-up", "measured", "model")]
    beside += [
        (name, f"{a:.2f}", f"{b:.2f}") for name, a, b in compare_with_measured(found["medians"])
    ]
    alone = nodes_table(EXAMPLE, ASSUMED_NETWORK)
    return "\n\n".join(map(_markdown, (measured, beside, alone)))


def _markdown(rows: list[tuple[str, ...]]) -> str:
    header, *lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([header, "|---" * len(rows[0]) + "|", *lines])


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.scaling", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=3, help="measured epochs of each run")
    parser.add_argument("--horizon", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=256, help="width of the network that learns")
    parser.add_argument("--parts", nargs="*", help="actors, overlap, torchrun, before, ranks")
    parser.add_argument("--kinds", nargs="*", help="of actors: process, ray if installed")
    parser.add_argument("--before", type=Path, help="an older checkout of metta to compare with")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--table", type=Path, metavar="JSON", help="print the tables of a result")
    options = parser.parse_args(arguments)
    if options.kinds is None:
        has_ray = importlib.util.find_spec("ray") is not None
        options.kinds = ["process", "ray"] if has_ray else ["process"]
    if options.rounds < 1 or options.epochs < 1:
        parser.error("give at least one round and one epoch")
    return options


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    if options.table is not None:
        print(tables(json.loads(options.table.read_text())))
        return
    runs: list[dict[str, Any]] = []
    ratios: list[dict[str, Any]] = []
    parts = the_parts(
        options.horizon,
        options.hidden,
        kinds=options.kinds,
        wanted=options.parts,
        has_before=options.before is not None,
        balance=lambda variant: balanced_sleep(variant, options),
    )
    medians: dict[str, dict[str, float]] = {}
    for part in parts:
        rows, found = measure(part, options)
        runs += rows
        ratios += [{"what": part.what, **dataclasses.asdict(ratio)} for ratio in found]
        medians.setdefault(part.name, {}).update(part.medians(rows))
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} processors"
    found = {"machine": machine, "runs": runs, "ratios": ratios, "medians": medians}
    print(f"\n{tables(found)}\n\nwritten to {write(options.out, found)}")


if __name__ == "__main__":
    main()
