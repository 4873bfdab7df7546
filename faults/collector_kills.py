"""Kills of what collects, collecting processes and Ray actors, at random instants of a run.

In each run one of two collecting processes (or actors of a Ray that the run starts) gets a signal every
few epochs: SIGKILL, or SIGSTOP and a moment later SIGCONT, which is no reason to replace it. Each signal
that was sent is a trial. The run must give what an undisturbed one in one process gives: the samples of
every rollout, each of them once, digests of all components after every epoch, and all rows of metrics.
"""

import contextlib
import hashlib
import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from faults.splits import compare_runs
from faults.training import STEPS_PER_EPOCH, trainer_of
from faults.trial import Trial
from faults.zygote import Zygote
from metta.rl.hooks.base import TrainerHook
from metta.rl.remote.process_pool import ProcessPool
from metta.testing.digests import DigestHook

EPOCHS, EVERY = 25, 2
"""Epochs of a run, and of each fault."""
_SECONDS = 900.0
_LONGEST_WAIT = 0.15
"""Until the signal is sent, from the beginning of the epoch; about as long as an epoch."""
_LONGEST_STOP = 1.0


class Samples(TrainerHook):
    """Writes a digest of the samples of every rollout, and how many rollouts each shard has given."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def on_rollout_end(self, trainer_state, experience) -> None:
        found = hashlib.sha256()
        for name, column in sorted(experience.columns.items()):
            found.update(name.encode() + column.cpu().numpy().tobytes())
        with self._path.open("a") as file:
            file.write(f"{trainer_state.epoch} {found.hexdigest()}\n")


class Disturbing(TrainerHook):
    """Sends signals, each a random while after the beginning of an epoch, and notes what was sent."""

    def __init__(self, pool, seed: int, path: Path) -> None:
        self._pool, self._path = pool, path
        self._chance = random.Random(seed)
        self._thread: threading.Thread | None = None

    def on_epoch_start(self, trainer_state) -> None:
        if trainer_state.epoch % EVERY == 1:
            self._join()
            wait = self._chance.uniform(0.0, _LONGEST_WAIT)
            number = self._chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP])
            arguments = (wait, number, self._chance.random())
            self._thread = threading.Thread(target=self._disturb, args=arguments)
            self._thread.start()

    def on_training_end(self) -> None:
        self._join()

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _disturb(self, wait: float, number: signal.Signals, which: float) -> None:
        time.sleep(wait)
        pids = collecting(self._pool)
        if not pids:
            return
        pid = pids[int(which * len(pids))]
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            with self._path.open("a") as file:
                file.write(json.dumps({"signal": number.name, "after": round(wait, 4)}) + "\n")
            if number == signal.SIGSTOP:
                time.sleep(which * _LONGEST_STOP)
                os.kill(pid, signal.SIGCONT)


def collecting(pool) -> list[int]:
    """Processes that collect now."""
    if isinstance(pool, ProcessPool):
        return pool.pids
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.name().startswith("ray::RayCollect"):
                found.append(process.pid)
    return sorted(found)


def run(folder: str, kind: str, seed: int | None) -> None:
    """One run, in a process of its own; without a seed nothing happens to it."""
    path = Path(folder)
    path.mkdir()
    settings = {
        "collect.kind": kind, "collect.num_actors": 2 if kind != "here" else 0, "core": "lstm",
        "collect.max_actor_restarts": 1000, "total_timesteps": EPOCHS * STEPS_PER_EPOCH,
        "checkpoint_interval": 5,
    }  # fmt: skip
    with trainer_of("workers-ahead", path, **settings) as trainer:
        trainer.add_hook(DigestHook(path / "digests.jsonl"))
        trainer.add_hook(Samples(path / "samples"))
        if seed is not None:
            pool = trainer.components.collector.pool
            trainer.add_hook(Disturbing(pool, seed, path / "sent"))
        trainer.train()


def compare(whole: Path, own: Path, code: int) -> tuple[str, str | None]:
    """ "ok" or what went wrong, and the digest of the policy."""
    if code != 0:
        return f"exit code {code}", None
    if (whole / "samples").read_text() != (own / "samples").read_text():
        return "other samples", None
    return compare_runs(whole, own, ignored="conditions")  # they name collect.kind


def trials(count: int, seed: int, folder: Path) -> Iterator[Trial]:
    """At least `count` signals, two thirds of them to processes, the others to actors."""
    choose, whole = random.Random(seed), folder / "whole"
    with Zygote(["faults.training:warm_up"], cwd=Path(__file__).parent.parent) as zygote:
        arguments = {"folder": str(whole), "kind": "here", "seed": None}
        assert zygote.start("faults.collector_kills:run", **arguments).wait(_SECONDS) == 0
        assert len((whole / "samples").read_text().split()) == 2 * EPOCHS
        of_processes = max(1, 2 * count // 3)
        for kind, goal in (("process", of_processes), ("ray", max(1, count - of_processes))):
            made = 0
            while made < goal:
                own = folder / f"{kind}-{made}"
                arguments = {"folder": str(own), "kind": kind, "seed": choose.getrandbits(32)}
                code = zygote.start("faults.collector_kills:run", **arguments).wait(_SECONDS)
                outcome, digest = compare(whole, own, code)
                sent = (own / "sent").read_text().splitlines() if (own / "sent").exists() else []
                if not sent:
                    outcome = f"nothing was sent ({outcome})"
                for line in sent or ["{}"]:
                    detail = json.loads(line)
                    point = f"{kind}, {detail.get('signal', 'none')}"
                    yield Trial("collector_kills", seed, point, outcome, digest, detail)
                made += max(1, len(sent))
