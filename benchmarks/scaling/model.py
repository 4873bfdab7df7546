"""A model of one epoch of a run on many nodes: what each phase takes, and which one decides.

It is arithmetic, not a measurement: every number comes from a workload, which was measured or assumed, and
from a network, which is assumed. `compare_with_measured` shows how far it is off where both are known.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

__all__ = [
    "ASSUMED_NETWORK", "EXAMPLE", "Layout", "Network", "Prediction", "Workload", "predict",
]  # fmt: skip

BYTES = 4
"""Of a parameter, a gradient, and most numbers of a rollout."""


@dataclass(frozen=True)
class Workload:
    """What is trained, and what its parts take on one core."""

    parameters: int
    num_shards: int
    rows_per_shard: int
    horizon: int
    numbers_per_step: int
    """Of an observation and what is recorded with it, in a rollout."""
    step_seconds: float
    """One step of one row, acting included; the rows of a shard step one after the other."""
    learn_seconds: float
    """One sample in one pass."""
    passes: int
    minibatches: int
    """Of one pass."""

    @property
    def steps(self) -> int:
        """Of one epoch."""
        return self.num_shards * self.rows_per_shard * self.horizon


@dataclass(frozen=True)
class Network:
    """What connects nodes."""

    bytes_per_second: float
    latency_seconds: float


@dataclass(frozen=True)
class Layout:
    """Who learns and who collects."""

    ranks: int = 1
    actors: int = 1
    """Of each rank."""
    overlap: bool = False


@dataclass(frozen=True)
class Prediction:
    """Seconds of one epoch, by phase, and bytes over the network."""

    collect: float
    transfer: float
    reduce: float
    learn: float
    seconds: float
    """Of the whole epoch: with overlap the longer of collecting and learning."""
    steps_per_second: float
    weight_bytes: int
    """To the actors of one rank."""
    rollout_bytes: int
    """From them."""
    gradient_bytes: int
    """That one rank receives from the others."""

    @property
    def bottleneck(self) -> str:
        """The phase that takes longest."""
        phases = {name: getattr(self, name) for name in ("collect", "transfer", "reduce", "learn")}
        return max(phases, key=phases.__getitem__)


ASSUMED_NETWORK = Network(bytes_per_second=1.25e9, latency_seconds=100e-6)
"""Ten gigabits per second, and a tenth of a millisecond."""
EXAMPLE = Workload(
    parameters=1_000_000, num_shards=512, rows_per_shard=4, horizon=128, numbers_per_step=256,
    step_seconds=2e-3, learn_seconds=100e-6, passes=4, minibatches=4,
)  # fmt: skip
"""A million parameters, and environments that take 2 ms for a step; assumed, not measured."""


def predict(work: Workload, layout: Layout, network: Network) -> Prediction:
    """One epoch.

    A rank has ``num_shards / ranks`` shards, and each of its actors collects its share of them one after
    the other. Weights go to every actor; rollouts come back. In each minibatch a rank receives one vector
    of gradients from each other rank: ``(ranks - 1) x parameters x 4`` bytes.
    """
    if work.num_shards % layout.ranks:
        raise ValueError(f"{layout.ranks} ranks do not divide {work.num_shards} shards")
    own_shards = work.num_shards // layout.ranks
    own_steps = work.steps // layout.ranks
    shards_in_turn = math.ceil(own_shards / layout.actors)
    collect = shards_in_turn * work.rows_per_shard * work.horizon * work.step_seconds
    weight_bytes = layout.actors * work.parameters * BYTES
    rollout_bytes = own_steps * work.numbers_per_step * BYTES
    transfer = (weight_bytes + rollout_bytes) / network.bytes_per_second
    transfer += 2 * network.latency_seconds
    per_minibatch = (layout.ranks - 1) * work.parameters * BYTES
    updates, others = work.passes * work.minibatches, layout.ranks - 1
    gradient_bytes = updates * per_minibatch
    reduce = updates * others * network.latency_seconds + gradient_bytes / network.bytes_per_second
    learn = own_steps * work.passes * work.learn_seconds
    learning = learn + reduce
    seconds = transfer + (max(collect, learning) if layout.overlap else collect + learning)
    return Prediction(
        collect, transfer, reduce, learn, seconds, work.steps / seconds, weight_bytes, rollout_bytes,
        gradient_bytes,
    )  # fmt: skip


def nodes_table(work: Workload, network: Network) -> list[tuple[str, ...]]:
    """Predictions for up to 512 nodes that collect, of which some also learn, one update ahead."""
    header = (
        "nodes",
        "ranks x actors",
        "collect",
        "transfer",
        "reduce",
        "learn",
        "steps/s",
        "bottleneck",
    )
    rows = [header]
    for ranks, actors in ((1, 1), (8, 1), (64, 1), (8, 8), (512, 1), (64, 8)):
        found = predict(work, Layout(ranks, actors, overlap=True), network)
        phases = (found.collect, found.transfer, found.reduce, found.learn)
        seconds = [f"{one:,.2f} s" for one in phases]
        speed = f"{found.steps_per_second:,.0f}"
        layout = f"{ranks} x {actors}"
        rows.append((str(ranks * actors), layout, *seconds, speed, found.bottleneck))
    return rows


def compare_with_measured(
    measured: Mapping[str, Mapping[str, float]],
) -> list[tuple[str, float, float]]:
    """Speed-up that was measured and that the model gives, for actors and for ranks.

    `measured` has seconds by part and variant, as `benchmarks.scaling` writes them. The model is told the
    time of one actor, or of one process, and predicts the others; within one machine nothing is sent far.
    """
    local, found = Network(math.inf, 0.0), list[tuple[str, float, float]]()
    base = replace(EXAMPLE, num_shards=8, step_seconds=1.0, learn_seconds=0.0)
    actors = measured.get("actors", {})
    for name, seconds in actors.items():
        kind, count = name.split()
        if count != "1":
            one = predict(base, Layout(), local).collect
            more = predict(base, Layout(actors=int(count)), local).collect
            found.append((name, actors[f"{kind} 1"] / seconds, one / more))
    ranks = measured.get("ranks", {})
    if ranks:
        learning = replace(base, num_shards=2)
        one, two = (predict(learning, Layout(ranks=n), local).seconds for n in (1, 2))
        found.append(("2 ranks", ranks["1 process"] / ranks["2 ranks"], one / two))
    return found
