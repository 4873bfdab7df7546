"""Runs that are evaluated in the background are killed until they are done all the same.

SIGKILL comes at random instants, while policies wait for their scores, just when a score arrives, and while
the run waits for its last scores; some of the signals are SIGTERM, and some kill the process that plays
instead. At the end the run equals one that was left alone: every epoch is scored once, with the same
scores, and rows of metrics, both tables, late scores, the best policy and the checkpoints are the same.
The first trial compares two runs that were left alone, and whose scores arrive at other times.
"""

import csv
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from faults.kills import look_at
from faults.splits import compare_runs
from faults.training import NOT_COMPARED, Phases, read_phase, trainer_of
from faults.trial import OK, Trial
from faults.zygote import Child, Zygote
from metta.loggers.events.log import read_events
from metta.rl.hooks.base import TrainerHook
from metta.rl.hooks.evaluation import EvaluationHook
from metta.store.checkpoints.files import list_checkpoints
from metta.store.checkpoints.late_scores import read_late_scores
from metta.store.checkpoints.owed_evaluations import OwedEvaluations
from metta.store.policy_store import PolicyStore
from metta.store.run_directory import RunDirectory
from metta.testing.digests import DigestHook

_POINTS = ("any instant", "policies wait", "a score arrives", "the end")
_PACE_SECONDS = 0.4
_MAX_SECONDS = 600.0
_MAX_KILLS = 8
"""Of one run, which is then left alone: on a slow machine it would never end."""


class Pace(TrainerHook):
    """Gives the background time to play, and records which process plays."""

    def __init__(self, trainer: Any, folder: Path, seconds: float) -> None:
        self.trainer, self.file, self.seconds = trainer, folder / "judge", seconds

    def on_epoch_start(self) -> None:
        time.sleep(self.seconds)
        for hook in self.trainer.hooks:
            if isinstance(hook, EvaluationHook) and hook._elsewhere is not None:
                self.file.write_text(str(hook._elsewhere.pid or ""))


def train(folder: str, pace: float) -> None:
    """Train in a folder, or continue; as `metta train` it ends with 128 + a signal that stopped it."""
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    phases = Phases(path / "phase")
    with trainer_of("evaluated-background", path) as trainer:
        for hook in (phases, DigestHook(path / "digests.jsonl"), Pace(trainer, path, pace)):
            trainer.add_hook(hook)
        state = trainer.train()
        is_over = state.agent_step >= trainer.config.total_timesteps and not state.owes_scores
        if trainer.stop_signal is not None and not is_over:
            raise SystemExit(128 + trainer.stop_signal)


def trials(count: int, seed: int, folder: Path) -> Iterator[Trial]:
    """At least `count` kills."""
    random_numbers = random.Random(seed)
    whole, turn, done = folder / "whole", 0, 0
    with Zygote(["faults.training:warm_up"], cwd=Path(__file__).parent.parent) as zygote:
        for path, pace in ((whole, _PACE_SECONDS), (folder / "quick", 0.0)):
            code = _start(zygote, path, pace).wait(_MAX_SECONDS)
            assert code == 0, f"an undisturbed run ended with code {code}"
        yield Trial("evaluation_kills", seed, "nothing", difference(whole, folder / "quick"))
        while done < count:
            path = folder / f"run-{turn}"
            for trial in killed_run(zygote, whole, path, seed, random_numbers):
                yield trial
                done += 1
            turn += 1


def _start(zygote: Zygote, folder: Path, pace: float) -> Child:
    return zygote.start("faults.evaluation_kills:train", folder=str(folder), pace=pace)


def killed_run(
    zygote: Zygote, whole: Path, folder: Path, seed: int, random_numbers: random.Random
) -> Iterator[Trial]:
    """One run, killed until it is done; the verdict on the whole of it is in each of its trials."""
    kills: list[tuple[str, str]] = []
    newest, code, uses_signals = 0, -1, random_numbers.random() < 0.25
    while True:
        child = _start(zygote, folder, random_numbers.choice((0.0, _PACE_SECONDS)))
        if len(kills) == _MAX_KILLS:
            code = child.wait(_MAX_SECONDS)
            break
        point = random_numbers.choice(_POINTS)
        wait_for(point, child, folder, random_numbers)
        victim = "trainer"
        if random_numbers.random() < 0.1 and kill_judge(folder):
            victim = "judge"
        else:
            child.kill(signal.SIGTERM if uses_signals else signal.SIGKILL)
        code = child.wait(_MAX_SECONDS)
        if code == 0 and victim == "trainer":
            break
        outcome = OK
        if code not in (0, -signal.SIGKILL, 128 + signal.SIGTERM):
            outcome = f"exit code {code}"
        elif code:
            outcome, newest = look_at(folder, newest)
        kills.append((f"{point}: {read_phase(folder / 'phase')}, {victim}", outcome))
        if outcome != OK or code == 0:
            break
    verdict = "the run never ended"
    if code == 0:
        verdict = difference(whole, folder, saves_at_stops=uses_signals)
    for point, outcome in kills:
        yield Trial("evaluation_kills", seed, point, outcome if outcome != OK else verdict)


def wait_for(point: str, child: Child, folder: Path, random_numbers: random.Random) -> None:
    """Return a short time after this happens once more, or when the child has ended."""
    probes = {
        "policies wait": lambda: len(list((folder / "checkpoints" / "owed").rglob("epoch_*"))),
        "a score arrives": lambda: len(scored_epochs(folder)),
        "the end": lambda: read_phase(folder / "phase").startswith("ending"),
    }
    if point not in probes:
        time.sleep(random_numbers.uniform(0.0, 6.0))
        return
    probe, deadline = probes[point], time.monotonic() + 10.0
    before = probe()
    while probe() <= before and time.monotonic() < deadline:
        if child.zygote.status_of(child.pid) is not None:
            return
        time.sleep(0.001)
    time.sleep(random_numbers.choice((0.0, 0.003, 0.1, 2.0)) * random_numbers.random())


def kill_judge(folder: Path) -> bool:
    """Kill the process that plays; returns whether there was one."""
    try:
        os.kill(int((folder / "judge").read_text()), signal.SIGKILL)
    except (OSError, ValueError):
        return False
    return True


def scored_epochs(folder: Path) -> list[int]:
    """Epochs of the evaluations in a log, as often as they occur; a quick search."""
    try:
        lines = (folder / "events.jsonl").read_bytes().split(b"\n")[:-1]
    except OSError:
        return []
    found = [json.loads(line) for line in lines if b'"evaluation"' in line]
    return [event["payload"]["epoch"] for event in found if event["kind"] == "evaluation"]


def difference(whole: Path, folder: Path, *, saves_at_stops: bool = False) -> str:
    """ "ok", or the first thing in which a run differs from one that was left alone."""
    outcome, _ = compare_runs(whole, folder)
    if outcome != OK:
        return outcome
    return difference_of_scores(whole, folder, saves_at_stops=saves_at_stops)


def difference_of_scores(whole: Path, folder: Path, *, saves_at_stops: bool = False) -> str:
    """ "ok", or the first thing in which what is known of two runs' policies differs."""
    for what in (evaluations, table, late_scores, best_epoch, owed_files):
        expected, found = what(whole), what(folder)
        if expected != found:
            return f"other {what.__name__}: {found} instead of {expected}"[:600]
    # a run that a signal stops saves what it has, and keeps other checkpoints
    kept = [
        [entry.epoch for entry in list_checkpoints(one / "checkpoints")] for one in (whole, folder)
    ]
    if kept[0] != kept[1] and not saves_at_stops:
        return f"checkpoints {kept[1]} instead of {kept[0]}"
    return OK


def evaluations(folder: Path) -> list[tuple[Any, ...]]:
    """All that count, in the order in which they were recorded."""
    found: list[tuple[Any, ...]] = []
    for event in read_events(folder / "events.jsonl"):
        if event.kind in ("run_start", "rewind"):
            found = [one for one in found if one[0] <= event.payload["from_epoch"]]
        elif event.kind == "evaluation":
            about = event.payload
            policy = about["policy_uri"] and Path(about["policy_uri"]).name
            found.append((about["epoch"], about["agent_step"], policy, json.dumps(about["scores"])))
    return found


def table(folder: Path) -> list[list[str]]:
    """`metrics.csv` without what a clock decides, and `evaluations.csv`."""
    lines, scores = (
        list(csv.reader((folder / name).read_text().splitlines()))
        for name in ("metrics.csv", "evaluations.csv")
    )
    kept = [at for at, name in enumerate(lines[0]) if not name.startswith(NOT_COMPARED)]
    return [*([line[at] for at in kept] for line in lines), *scores]


def late_scores(folder: Path) -> dict[int, Any]:
    return read_late_scores(folder / "checkpoints")


def best_epoch(folder: Path) -> tuple[int, Any] | None:
    best = PolicyStore(folder / "checkpoints").best()
    return best and (best.epoch, best.metadata["score"])


def owed_files(folder: Path) -> list[int]:
    run = RunDirectory(folder)
    return [one.epoch for one in OwedEvaluations(run.checkpoint_dir, run.about()["id"]).list()]
