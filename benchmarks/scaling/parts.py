"""What is measured: the variants of each part, and how a round of them becomes ratios."""

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Part", "Ratio", "Variant", "ratios_of", "sleep_for_balance", "the_parts"]

QUICK = {"hidden_size": 8, "update_epochs": 1, "num_minibatches": 1}


@dataclass(frozen=True)
class Variant:
    """One way to train; `ranks` 0: without torchrun."""

    name: str
    settings: Mapping[str, Any]
    sleep: float | None = None
    """Seconds of an environment's step; None: the environment of the settings."""
    ranks: int = 0
    is_before: bool = False
    """Whether the older checkout runs it."""


@dataclass(frozen=True)
class Part:
    """Variants that take turns; a ratio divides the time of the first by that of each other one."""

    name: str
    what: str
    variants: Sequence[Variant]
    measure: str = "epoch_seconds"
    linear: Mapping[str, int] = field(default_factory=dict)
    """By variant, the speed-up that would be linear."""

    def medians(self, rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
        """Seconds of each variant, of these runs."""
        seconds: dict[str, list[float]] = {}
        for row in rows:
            seconds.setdefault(row["variant"], []).append(row[self.measure])
        return {name: statistics.median(found) for name, found in seconds.items()}


@dataclass(frozen=True)
class Ratio:
    """How many times as fast a variant is as the first one, in each round."""

    part: str
    name: str
    median: float
    low: float
    high: float
    rounds: int


def ratios_of(part: Part, seconds: Mapping[str, Sequence[float]]) -> list[Ratio]:
    """Ratios within each round, so that what the machine did in a round hits both."""
    first, *others = part.variants
    found = []
    for variant in others:
        pairs = zip(seconds[first.name], seconds[variant.name], strict=True)
        all_rounds = [a / b / part.linear.get(variant.name, 1) for a, b in pairs]
        middle = statistics.median(all_rounds)
        found.append(
            Ratio(
                part.name, variant.name, middle, min(all_rounds), max(all_rounds), len(all_rounds)
            )
        )
    return found


def sleep_for_balance(learn_seconds: float, collect_seconds: float, steps: int) -> float:
    """Seconds to sleep in each step, so that collecting takes as long as learning; at least 0."""
    return max(learn_seconds - collect_seconds, 0.0) / steps


def the_parts(
    horizon: int,
    hidden: int,
    *,
    kinds: Sequence[str],
    wanted: Sequence[str] | None,
    has_before: bool,
    balance: Callable[[Variant], float],
) -> Iterator[Part]:
    """The parts that are wanted (None: all); `balance` gives the sleep that makes both phases equal."""
    names = wanted or ("actors", "overlap", "torchrun", "before", "ranks")
    if "actors" in names:
        yield from (_actors(kind, horizon) for kind in kinds)
    if "overlap" in names:
        yield _overlap(horizon, hidden, balance)
    yield from (
        part
        for part in _in_processes(horizon, hidden)
        if part.name in names and (has_before or part.name != "before")
    )


def _in_processes(horizon: int, hidden: int) -> Iterator[Part]:
    plain = {"env": "CartPole-v1", "num_envs": 8, "horizon": horizon, "numerics.driver": "eager"}
    yield Part(
        "torchrun", "one rank under torchrun, against none",
        [Variant("none", plain), Variant("one rank", plain, ranks=1)],
    )  # fmt: skip
    yield Part(
        "before", "a single process now, against the older checkout",
        [Variant("before", plain, is_before=True), Variant("now", plain)],
    )  # fmt: skip
    wide = {**plain, "hidden_size": hidden, "num_shards": 2}
    yield Part(
        "ranks", "two ranks, against one process, two shards",
        [Variant("1 process", wide), Variant("2 ranks", wide, ranks=2)],
    )  # fmt: skip


def _actors(kind: str, horizon: int) -> Part:
    settings = {**QUICK, "num_envs": 8, "num_shards": 8, "horizon": horizon, "collect.kind": kind}
    counts = (1, 2, 4, 8)
    return Part(
        "actors",
        f"actors of kind {kind}, 2 ms of sleep per step: speed-up of collecting / linear",
        [Variant(f"{kind} {n}", {**settings, "collect.num_actors": n}, sleep=2e-3) for n in counts],
        measure="collect_seconds",
        linear={f"{kind} {n}": n for n in counts},
    )


def _overlap(horizon: int, hidden: int, balance: Callable[[Variant], float]) -> Part:
    settings = {
        "num_envs": 8, "horizon": horizon, "hidden_size": hidden, "collect.kind": "process",
        "collect.num_actors": 1, "numerics.driver": "eager", "numerics.threads": 1,
        "update_epochs": 16,  # long enough for sleeps that the system can keep
    }  # fmt: skip
    sleep = balance(Variant("calibration", settings, sleep=0.0))
    ahead = {**settings, "collect.overlap": True}
    return Part(
        "overlap", "collecting one update ahead, against in turn; both phases equally long",
        [Variant("in turn", settings, sleep), Variant("ahead", ahead, sleep)],
    )  # fmt: skip
