"""Would the exactness tests notice a component that is not restored? One at a time is taken away.

`dropped`: it is missing in the checkpoint, which must be refused. `forgotten`: it is there but keeps its
initial state, which the digests of the epochs after it must show.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from faults.training import train, trainer_of
from faults.trial import OK, Trial
from faults.zygote import Zygote
from metta.errors import MettaError
from metta.stateful import StateRegistry
from metta.store.checkpoints.files import read_checkpoint, write_checkpoint
from metta.store.policies.file import freeze_policy
from metta.testing.digests import compare_digests, read_digests

CONFIGS = [
    "mlp-normalised",
    "mlp-kl",
    "lstm",
    "loss",
    "snapshot",
    "repeat",
    "workers",
    "grid-curriculum",
    "self-play",
    "shards",
    "ahead",
]
ONLY_DROPPED = ("policy_tracker", "conditions")
"""They decide no number: the one names files, the other refuses."""
AFTER = 6
REFUSED = 3
"""Exit code of a run that ended with one of metta's own errors."""


def trials(count: int, seed: int, folder: Path) -> Iterator[Trial]:
    """Every component of several configurations (of `count` configurations, if that is given)."""
    root = Path(__file__).parent.parent
    with Zygote(["faults.training:warm_up"], cwd=root) as zygote:
        for name in CONFIGS[: count or None]:
            whole, source = folder / f"{name}-whole", folder / f"{name}-source"
            assert zygote.start("faults.training:train", name=name, folder=str(whole)).wait() == 0
            start = {"name": name, "folder": str(source), "die_after": AFTER}
            assert zygote.start("faults.training:train", **start).wait() == -9
            for component in components_of(source):
                for how in ("dropped", "forgotten"):
                    if how == "forgotten" and component in ONLY_DROPPED:
                        continue
                    run = folder / f"{name}-{component.replace('/', '-')}-{how}"
                    arguments = {"name": name, "source": str(source), "folder": str(run)}
                    child = zygote.start(
                        f"faults.ablation:train_{how}", **arguments, component=component
                    )
                    outcome = verdict(child.wait(), whole, run)
                    yield Trial("ablation", seed, f"{name}: {component} {how}", outcome)


def components_of(run: Path) -> list[str]:
    checkpoint = read_checkpoint(newest_of(run))
    return list(checkpoint.snapshot)


def newest_of(run: Path) -> Path:
    return run / "checkpoints" / f"epoch_{AFTER:06d}"


def verdict(code: int, whole: Path, run: Path) -> str:
    """ "ok" if the loss was noticed: by a refusal, or by other digests."""
    if code == REFUSED:
        return OK
    if code != 0:
        return f"exit code {code}"
    found = read_digests(run / "digests.jsonl")
    difference = compare_digests(read_digests(whole / "digests.jsonl"), found)
    return OK if difference is not None else "not noticed"


def train_dropped(name: str, source: str, folder: str, component: str) -> None:
    """Continue from a checkpoint that lacks a component."""
    checkpoint = read_checkpoint(newest_of(Path(source)))
    snapshot: dict[str, Any] = dict(checkpoint.snapshot)
    with trainer_of(name, Path(folder) / "other") as other:
        frozen = freeze_policy(other.policy)
    if component != "policy":  # its tensors are in a separate file
        frozen.tensors.update(checkpoint.snapshot["policy"]["state"])
    del snapshot[component]
    about = {**checkpoint.metadata, "epoch": checkpoint.epoch, "agent_step": checkpoint.agent_step}
    write_checkpoint(Path(folder) / "checkpoints", snapshot, frozen, about)
    train_or_refuse(name, folder)


def train_forgotten(name: str, source: str, folder: str, component: str) -> None:
    """Continue from a whole checkpoint, but leave one component as it is built."""
    restore = StateRegistry.restore

    def forgetful(self: StateRegistry, snapshot: Any) -> None:
        part = self.get(component)
        if part is None:  # a registry of one shard
            restore(self, snapshot)
            return
        part_type = type(part)
        kept = part_type.load_state_dict
        part_type.load_state_dict = lambda own, state: None if own is part else kept(own, state)
        try:
            restore(self, snapshot)
        finally:
            part_type.load_state_dict = kept

    StateRegistry.restore = forgetful  # type: ignore[method-assign]  # this process is for that only
    checkpoint = read_checkpoint(newest_of(Path(source)))
    with trainer_of(name, Path(folder) / "other") as other:
        frozen = freeze_policy(other.policy)
    frozen.tensors.update(checkpoint.snapshot["policy"]["state"])
    about = {**checkpoint.metadata, "epoch": checkpoint.epoch, "agent_step": checkpoint.agent_step}
    write_checkpoint(Path(folder) / "checkpoints", checkpoint.snapshot, frozen, about)
    train_or_refuse(name, folder)


def train_or_refuse(name: str, folder: str) -> None:
    """Other errors than metta's own are no refusal."""
    try:
        train(name, folder)
    except MettaError:
        sys.exit(REFUSED)
