"""NaN, infinity and absurd numbers at random epochs of `metta train`, in every place they can come from.

After each the process must have ended with a typed error that names what was wrong, or gone on where
that is the promise; every checkpoint that was ever written must be whole and finite, the newest of the
last healthy epoch or of the interval before it; and the event log must say how the run ended.
"""

import math
import random
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from faults.bad_number_sites import EPOCHS, SITES, Site
from faults.trial import OK, Trial
from faults.zygote import Zygote
from metta.errors import MettaError
from metta.loggers.events.history import metric_rows
from metta.loggers.events.log import read_events
from metta.store.checkpoints.files import Checkpoint, checkpoint_folders, read_checkpoint

_SKIPPED = "losses/skipped_steps"
_LEARNER = ("policy", "optimizer")


def trials(count: int, seed: int, folder: Path) -> Iterator[Trial]:
    """At least one trial per site, `count` in all, in turn over the sites."""
    random_numbers = random.Random(seed)
    root = Path(__file__).parent.parent
    with Zygote(["faults.bad_number_sites:warm_up"], cwd=root) as zygote:
        for turn in range(max(count, len(SITES))):
            name = list(SITES)[turn % len(SITES)]
            yield spoil(zygote, name, seed, folder / f"run-{turn}", random_numbers)


def spoil(
    zygote: Zygote, name: str, seed: int, folder: Path, random_numbers: random.Random
) -> Trial:
    """One run with one bad number in it."""
    site = SITES[name]
    plan = {
        "number": random_numbers.choice(site.numbers),
        "event": random_numbers.choice(site.events),
        "epoch": random_numbers.randrange(2, EPOCHS - 3),
        "interval": random_numbers.choice((1, 1, 3)),
    }
    code = zygote.start(
        "faults.bad_number_sites:train", site=name, folder=str(folder), **plan
    ).wait()
    said = (folder / "output.txt").read_text(errors="replace")
    outcome, digest, found = judge(site, code, said, folder, plan["interval"])
    detail = {**plan, "number": str(plan["number"]), "code": code, **found}
    return Trial("bad_numbers", seed, name, outcome, digest, detail)


def judge(
    site: Site, code: int, said: str, folder: Path, interval: int
) -> tuple[str, str | None, dict[str, Any]]:
    """ "ok" or what is wrong, the digest of the newest policy, and what there was to count."""
    if not (folder / "healthy").exists():
        return f"nothing was injected: {said[-300:]}", None, {}
    healthy, rows = int((folder / "healthy").read_text()), metric_rows(folder / "events.jsonl")
    try:
        saved = [read_checkpoint(path) for path in checkpoint_folders(folder / "checkpoints")]
    except MettaError as error:
        return f"a checkpoint is damaged: {error}", None, {}
    newest = saved[-1].epoch if saved else 0
    found = {"healthy": healthy, "newest": newest, "checkpoints": len(saved)}
    problem = (
        wrong_numbers(saved)
        or wrong_end(site, code, said, rows, folder)
        or wrong_newest(site, healthy, newest, rows[-1].epoch, interval)
    )
    return problem or OK, saved[-1].metadata.get("policy_hash") if saved else None, found


def wrong_numbers(saved: list[Checkpoint]) -> str:
    """Where a checkpoint holds NaN or infinity; empty where none does."""
    for checkpoint in saved:
        for name, part in checkpoint.snapshot.items():
            learns = name in _LEARNER or name.startswith("loss/")
            # absurd numbers may have been learned from; what is saved must be finite
            if learns or name == "collector":
                for where in bad_numbers(part["state"], name, math.inf):
                    return f"epoch {checkpoint.epoch} was saved with a bad number in {where}"
    return ""


def bad_numbers(value: Any, where: str, limit: float) -> Iterator[str]:
    """Places of numbers in a tree whose size is not below `limit`."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from bad_numbers(item, f"{where}/{key}", limit)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from bad_numbers(item, f"{where}/{index}", limit)
    elif isinstance(value, torch.Tensor | np.ndarray | np.generic | float):
        numbers = torch.as_tensor(value)
        if numbers.is_floating_point() and not bool((numbers.abs() < limit).all()):
            yield where


def wrong_end(site: Site, code: int, said: str, rows: list[Any], folder: Path) -> str:
    """What is wrong with the exit code, the last line or the event log; empty where nothing is."""
    ends = [
        e.payload["outcome"] for e in read_events(folder / "events.jsonl") if e.kind == "run_end"
    ]
    if code == 0 and (site.may_go_on or not site.says):
        skipped = sum(row.metrics.get(_SKIPPED, 0.0) for row in rows)
        if rows[-1].epoch != EPOCHS or ends != ["done"]:
            return f"continued to epoch {rows[-1].epoch} and ended with {ends}"
        return "" if skipped > 0 else "no step was skipped"
    if code != 1 or not site.says:
        return f"exit code {code}: {said[-300:]}"
    if "Traceback" in said or not re.search(site.says, said.splitlines()[-1]):
        return f"said {said[-400:]}"
    return "" if ends == ["failed"] else f"the event log ends with {ends}"


def wrong_newest(site: Site, healthy: int, newest: int, last_row: int, interval: int) -> str:
    """What is wrong with the age of the newest checkpoint; empty where nothing is."""
    if site.stays_healthy:
        # whatever was skipped, the state stayed whole: what was due to be saved is not lost
        is_right = last_row - interval < newest <= last_row
        return "" if is_right else f"newest is {newest}, the last row of epoch {last_row}"
    if healthy - interval <= newest <= healthy:
        return ""
    return f"newest is {newest}, epoch {healthy} was healthy (interval {interval})"
