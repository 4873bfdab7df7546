"""Collecting ahead by processes that take random times gives the bits of the same run in one process.

Every trial draws other delays, for environments and for learning. Digests of all components after every
epoch and all rows of metrics are compared with those of a run that collects ahead in one process, without
delays.
"""

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import gymnasium

from faults.splits import compare_runs
from faults.training import CONFIGS, train
from faults.trial import OK, Trial
from faults.zygote import Zygote
from metta.loggers.events.history import metric_rows
from metta.rl.hooks.base import TrainerHook

_SECONDS = 600.0
_ENV = f"{__name__}:DelayedCartPole-v0"
_SLOWEST = "METTA_FAULTS_SLOWEST_MS"
"""Environment variable: the longest delay of a step, in milliseconds."""


class DelayedCartPole(gymnasium.Wrapper):
    """CartPole, whose steps take up to so long; how long is drawn from the system's own randomness."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1").unwrapped)
        self._slowest = float(os.environ.get(_SLOWEST, "0")) / 1e3

    def step(self, action):
        if self._slowest:
            time.sleep(random.SystemRandom().random() * self._slowest)
        return super().step(action)


gymnasium.register(
    "DelayedCartPole-v0",
    entry_point=DelayedCartPole,
    max_episode_steps=30,
    disable_env_checker=True,
)


class SlowLearning(TrainerHook):
    """Updates take longer, too."""

    def __init__(self, slowest: float) -> None:
        self._slowest = slowest

    def on_update_end(self) -> None:
        time.sleep(random.SystemRandom().random() * self._slowest)


def run(folder: str, kind: str, slowest_ms: float) -> None:
    """One run, in a process of its own."""
    os.environ[_SLOWEST] = str(slowest_ms)
    hooks = [SlowLearning(10 * slowest_ms / 1e3)] if slowest_ms else []
    train("workers-ahead", folder, hooks=hooks, env=_ENV, **{"collect.kind": kind})


def trials(count: int, seed: int, folder: Path) -> Iterator[Trial]:
    """`count` runs with delays of 0 to 20 ms."""
    assert CONFIGS["workers-ahead"]["collect.overlap"]
    choose, whole = random.Random(seed), folder / "serial"
    with Zygote(["faults.training:warm_up"], cwd=Path(__file__).parent.parent) as zygote:
        arguments = {"folder": str(whole), "kind": "here", "slowest_ms": 0.0}
        assert zygote.start("faults.overlap_delays:run", **arguments).wait(_SECONDS) == 0
        for number in range(count):
            slowest = choose.choice([1.0, 5.0, 20.0])
            own = folder / str(number)
            arguments = {"folder": str(own), "kind": "process", "slowest_ms": slowest}
            code = zygote.start("faults.overlap_delays:run", **arguments).wait(_SECONDS)
            outcome, digest = f"exit code {code}", None
            if code == 0:
                outcome, digest = compare_runs(
                    whole, own, ignored="conditions"
                )  # they name collect.kind
            lags = [
                row.metrics["experience/policy_lag"] for row in metric_rows(own / "events.jsonl")
            ]
            if outcome == OK and lags != [0.0] + [1.0] * (len(lags) - 1):
                outcome = f"rollouts were {lags} updates old"
            yield Trial("overlap_delays", seed, f"up to {slowest:g} ms", outcome, digest)
