"""`RunLayout`: where the shards of a run are computed, and where equal bits are not promised."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from metta.rl.ranks import Ranks
from metta.rl.resume.conditions import machine_of
from metta.train.train_config import TrainerConfig

__all__ = ["RunLayout", "layout_of"]

_PLACES = {
    "process": ("collecting process", "collecting processes"),
    "ray": ("Ray actor", "Ray actors"),
}


@dataclass(frozen=True)
class RunLayout:
    """Shards, ranks, and what collects: a run learns the same wherever these are."""

    num_shards: int = 1
    num_ranks: int = 1
    kind: str = "here"
    num_collecting: int = 0
    """Processes or actors that collect for each rank."""
    is_ahead: bool = False
    limits: tuple[str, ...] = ()
    """What keeps another layout, or another machine of this one, from giving the same bits."""

    @property
    def is_plain(self) -> bool:
        """Whether there is one shard, and this process does all."""
        return self == RunLayout(limits=self.limits)

    def describe(self) -> str:
        """One line for people."""
        parts = [_counted(self.num_shards, "shard", "shards")]
        if self.num_ranks > 1:
            parts[0] += f" on {self.num_ranks} ranks"
        if self.kind != "here":
            each = " each" if self.num_ranks > 1 else ""
            parts.append(_counted(self.num_collecting, *_PLACES[self.kind]) + each)
        if self.is_ahead:
            parts.append("one update ahead" + (", in turn" if self.kind == "here" else ""))
        return ", ".join(parts)

    def lines(self) -> list[str]:
        """What a run says at its start, if anything."""
        found = [] if self.is_plain else [self.describe()]
        if self.limits:
            found.append(f"equal bits are not promised: {'; '.join(self.limits)}")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "limits": list(self.limits)}


def layout_of(config: TrainerConfig, ranks: Ranks, device: str) -> RunLayout:
    """The layout of a run; with several ranks, all of them must call it at once."""
    collect, is_elsewhere = config.collect, config.collect.kind != "here"
    return RunLayout(
        ranks.num_shards,
        ranks.size,
        collect.kind,
        (collect.num_actors or len(ranks.shards)) if is_elsewhere else 0,
        collect.overlap,
        tuple(_limits(config, ranks, device)),
    )


def _limits(config: TrainerConfig, ranks: Ranks, device: str) -> list[str]:
    found = []
    if ranks.size > 1:
        if device.startswith("cuda"):
            found.append("on GPUs, another number of ranks may change the last bits")
        own = json.dumps(machine_of(device)).encode()
        found += _differing([json.loads(text) for text in ranks.share(own)])
    if config.collect.kind == "ray" and config.collect.address is not None:
        found.append("nodes of a cluster with other processors than this one round differently")
    return found


def _differing(machines: list[dict[str, str]]) -> list[str]:
    """In what the machines of ranks differ; they learn alike only as far as they round alike."""
    names = dict.fromkeys(name for machine in machines for name in machine)
    differing = [name for name in names if len({machine.get(name) for machine in machines}) > 1]
    return [f"ranks differ in {', '.join(differing)}"] if differing else []


def _counted(count: int, one: str, several: str) -> str:
    return f"{count} {one if count == 1 else several}"
