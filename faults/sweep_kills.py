"""Sweeps are killed until they are done all the same.

SIGKILL comes at random instants to the command itself, or to any process below it: a worker, the trainer
of a run, a fork server, a guardian. Some signals to the command are SIGTERM. It is resumed each time. At
the end no job is held, no trial runs, no process is left, and each run was trained once to its last step.
With one worker all suggestions, results, weights and decisions to prune are those of a sweep that was left
alone; with two, the suggestions are those that follow from the logged order.
"""

import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from faults.trial import OK, Trial
from faults.zygote import Child, Zygote
from metta.cli.main import main
from metta.loggers.events.reader import read_events
from metta.store.policies.file import read_policy_manifest
from metta.sweeps.definition import SweepDefinition, run_name
from metta.sweeps.ledger import SweepLedger
from metta.sweeps.suggestions import replayed
from metta.sweeps.trials import Event, Trials

STEPS = 1280
_NAME = "swept"
_MAX_SECONDS, _END_SECONDS = 600.0, 15.0
_MAX_KILLS = 8
"""Of one sweep, which is then left alone: on a slow machine it would never end."""
_TINY = ["num_envs=2", "horizon=16", "hidden_size=8", "update_epochs=1", "num_minibatches=1",
         "monitor_seconds=0", "verbose=false", "eval_episodes=5", "final_replay=false",
         "checkpoint_interval=5", f"total_timesteps={STEPS}"]  # fmt: skip
_RANGES = ["lr=1e-5..1e-1:log", "gamma=0.5..0.999", "clip_coef=0.1,0.2,0.4"]


def words_of(trials: int, workers: int) -> list[str]:
    """The sweep as a command."""
    settings = ["CartPole-v1", *_TINY, *_RANGES, "--seeds", "2", "--pruner", "median"]
    return ["sweep", *settings, "--trials", str(trials), "--workers", str(workers), "--name", _NAME]


def command(words: Sequence[str], folder: str) -> None:
    """A command in a folder, in this process; what it says goes to a file."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    output = os.open("said.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.exit(main(list(words)))


def trials(count: int, seed: int, folder: Path) -> Iterator[Trial]:
    """At least `count` kills; of three sweeps, two have one worker."""
    random_numbers = random.Random(seed)
    size = 12 if count > 3 else 5
    with Zygote(["faults.sweep_kills", "optuna"], cwd=Path(__file__).parent.parent) as zygote:
        whole, turn, done = folder / "whole", 0, 0
        code = start(zygote, words_of(size, 1), whole).wait(_MAX_SECONDS)
        assert code == 0, f"an undisturbed sweep ended with code {code}"
        while done < count:
            workers, path = 2 if turn % 3 == 2 else 1, folder / f"sweep-{turn}"
            kills = killed_sweep(zygote, path, words_of(size, workers), random_numbers)
            verdict = difference(whole, path, is_sequential=workers == 1)
            for point, outcome in kills:
                detail = {"workers": workers, "sweep": turn}
                yield Trial("sweep_kills", seed, point, outcome or verdict, detail=detail)
            turn, done = turn + 1, done + len(kills)


def start(zygote: Zygote, words: Sequence[str], folder: Path) -> Child:
    return zygote.start("faults.sweep_kills:command", words=list(words), folder=str(folder))


def killed_sweep(
    zygote: Zygote, folder: Path, words: list[str], random_numbers: random.Random
) -> list[tuple[str, str]]:
    """Kill a sweep until it is done; each kill with what was wrong about it, if anything was."""
    kills: list[tuple[str, str]] = []
    while True:
        child = start(zygote, words, folder)
        while len(kills) < _MAX_KILLS and is_at_work(child, random_numbers.uniform(0.2, 4.0)):
            point = strike(child, random_numbers)
            kills += [(point, "")] if point else []
        code = child.wait(_MAX_SECONDS)
        if code == 0:
            return kills or [("nothing was hit", "no kill fell into the sweep")]
        if code not in (-signal.SIGKILL, 128 + signal.SIGTERM):
            return [*kills, ("exit", f"exit code {code}")]
        if begun(folder):
            words = ["sweep", "resume", _NAME, "--workers", words[words.index("--workers") + 1]]


def is_at_work(child: Child, seconds: float) -> bool:
    """Whether it still runs after some time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if child.zygote.status_of(child.pid) is not None:
            return False
        time.sleep(0.01)
    return True


def strike(child: Child, random_numbers: random.Random) -> str:
    """Send one signal to the command or to a process below it; returns what was hit."""
    below = []
    with contextlib.suppress(psutil.Error):
        below = psutil.Process(child.pid).children(recursive=True)
    chance = random_numbers.random()
    if chance < 0.35 or not below:
        child.kill(signal.SIGKILL)
        return "the command"
    if chance < 0.5:
        child.kill(signal.SIGTERM)
        return "the command, by SIGTERM"
    victim = random_numbers.choice(below)
    try:
        depth = len(victim.parents()) - len(psutil.Process(child.pid).parents())
        victim.kill()
    except psutil.Error:  # it has just ended
        return ""
    return f"a process {depth} below the command"


def begun(folder: Path) -> bool:
    """Whether the sweep is in the database."""
    if not (folder / "runs" / "stats.db").exists():
        return False
    with SweepLedger(str(folder / "runs" / "stats.db")) as ledger:
        return _NAME in ledger.names()


def difference(whole: Path, folder: Path, *, is_sequential: bool) -> str:
    """ "ok", or the first thing that is wrong with a sweep."""
    problem = left_over(folder)
    if problem:
        return problem
    definition, events = read(folder)
    _, note = replayed(definition, events)
    if note:
        return note
    if not is_sequential:
        return OK
    expected = [known(event) for event in read(whole)[1]]
    found = [known(event) for event in events]
    for number, (one, other) in enumerate(zip(expected, found, strict=False)):
        if one != other:
            return f"event {number} is {other} instead of {one}"[:600]
    if len(expected) != len(found):
        return f"{len(found)} events instead of {len(expected)}"
    for name in names_of_runs(definition, events):
        if weights(whole, name) != weights(folder, name):
            return f"the run {name} has other weights"
    return OK


def left_over(folder: Path) -> str:
    """What must not be left when a sweep is done; empty if there is nothing of the kind."""
    definition, events = read(folder)
    found = Trials(events)
    if len(found) != definition.trials or found.in_state("running", "failed"):
        return f"trials are {[(one.number, one.state) for one in found.values()]}"
    asked = [event.trial for event in events if event.kind == "ask"]
    if asked != sorted(set(asked)):
        return f"trials were begun twice: {asked}"
    with SweepLedger(str(folder / "runs" / "stats.db")) as ledger:
        records = ledger.records(group=definition.group)
    if odd := [one.key for one in records if one.state not in ("done", "cancelled")]:
        return f"jobs did not end: {odd}"
    for record in records:
        run = folder / "runs" / record.payload["run"]
        if record.state == "done" and (problem := not_trained_once(run)):
            return f"{record.key}: {problem}"
    deadline = time.monotonic() + _END_SECONDS  # what a worker started ends a moment after it
    while left := [one.pid for one in psutil.process_iter() if is_in(one, folder)]:
        if time.monotonic() > deadline:
            return f"processes are left: {left}"
        time.sleep(0.1)
    return ""


def is_in(process: psutil.Process, folder: Path) -> bool:
    """Whether a process works in the folder."""
    try:
        return process.cwd() == str(folder) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def not_trained_once(run: Path) -> str:
    """Empty if each epoch of a run was trained and logged once, without those that a kill took back."""
    steps: list[int] = []
    for event in read_events(run / "events.jsonl"):
        if event.kind in ("run_start", "rewind"):
            steps = [step for step in steps if step <= event.payload["from_epoch"] * 32]
        elif event.kind == "metrics":
            steps.append(event.payload["agent_step"])
    if steps[-1:] == steps[-2:-1]:  # the record of the last scores
        steps.pop()
    wanted = sorted(set(steps))
    if steps != wanted or steps[-1] != STEPS:
        return f"its records are at the steps {steps}"
    return ""


def read(folder: Path) -> tuple[SweepDefinition, list[Event]]:
    with SweepLedger(str(folder / "runs" / "stats.db")) as ledger:
        return ledger.definition(_NAME), list(ledger.events(_NAME))


def known(event: Event) -> dict[str, Any]:
    """An event without what a clock decides."""
    payload = dict(event.payload)
    runs = [
        {k: v for k, v in run.items() if not k.endswith("_seconds")}
        for run in payload.pop("runs", ())
    ]
    return {"kind": event.kind, "trial": event.trial, **payload, "runs": runs}


def names_of_runs(definition: SweepDefinition, events: Sequence[Event]) -> list[str]:
    """Runs of the trials that are complete; one that was pruned stops when its worker notices."""
    complete = Trials(events).in_state("complete")
    return [run_name(definition, one.number, place) for one in complete for place in range(2)]


def weights(folder: Path, name: str) -> str:
    newest = max((folder / "runs" / name / "checkpoints").glob("epoch_*"))
    return str(read_policy_manifest(newest / "policy.safetensors")["policy_hash"])
