"""Files that hold programs, offered as everything that metta reads: nothing of them ever runs.

A trial offers one payload in one place, in a forked child. It is well where that ends in an error of
metta's own and no canary was touched. Each payload is first set off where it can do no harm: one that
touches nothing proves nothing, and counts as wrong. Where metta can tell that a file is a pickle or an
archive, the error names the converter.
"""

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from faults.checkpoint_lies import reseal
from faults.forked import Watched, run_forked
from faults.good_files import make_checkpoint, policy_of
from faults.payloads import payloads
from faults.trial import OK, Trial
from metta.envs.toy import CorridorEnv
from metta.errors import MettaError
from metta.store.checkpoints.files import read_checkpoint, read_newest_checkpoint
from metta.store.policies.file import load_weights
from metta.store.policy_store import PolicyStore
from metta.store.rollout_file import load_rollout
from metta.train.train_config import TrainingConfig

_FILES = ("policy.safetensors", "state.safetensors", "state.json", "manifest.json")
_UNMARKED = (
    "behind",
    "in the data",
    "marshalled",
    "zlib",
    "YAML",
    "Python",
    "JSON",
    "a text before",
)
"""Arguments in the names of payloads that have no mark of a pickle where one is looked for."""


def trials(count: int, seed: int, folder: Path) -> Iterator[Trial]:
    """At least `count` of the payloads, each in every place; `seed` changes nothing."""
    torch.set_num_threads(1)
    checkpoint, canary = make_checkpoint(folder / "sound", "mlp"), folder / "canary"
    contents = {name: payload.content for name, payload in payloads(str(canary)).items()}
    if len(contents) < count:
        raise ValueError(f"there are {len(contents)} payloads, not {count}")
    names = list(contents)[:: len(contents) // count]
    jobs = [(name, place) for name in names for place in PLACES]
    work = partial(offer, folder / "offered", checkpoint, canary, contents)
    exploded = dict(zip(names, run_forked(names, partial(explode, folder)), strict=True))
    for (name, place), result in zip(jobs, run_forked(jobs, work), strict=True):
        outcome = verdict(exploded[name], result)
        detail = {"error": (result.value or {}).get("error")}
        yield Trial("malicious_pickles", seed, f"{name} as {place}", outcome, detail=detail)


def explode(folder: Path, name: str) -> bool:
    """Whether a payload touches its canary when it is opened the careless way."""
    canary = folder / "exploded" / name.replace(" ", "-")
    canary.parent.mkdir(exist_ok=True)
    payload = payloads(str(canary))[name]
    payload.detonate(payload.content)
    return canary.exists()


def offer(
    work: Path, checkpoint: Path, canary: Path, contents: dict[str, bytes], job: tuple[str, str]
) -> dict[str, Any]:
    """What came of opening a payload in the place of a file."""
    name, place = job
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        PLACES[place](work, checkpoint, contents[name])
        found: dict[str, Any] = {"error": None}
    except MettaError as error:
        found = {"error": type(error).__name__, "named": "metta convert" in str(error)}
    except Exception as error:  # noqa: BLE001  # what is looked for
        found = {"error": None, "wrong": f"{type(error).__name__}: {str(error)[:200]}"}
    # a pickle is distinguished from damage by its content; texts and hidden programs are refused as such
    is_marked = not any(word in name for word in _UNMARKED)
    is_alone = place in ("a policy", "a policy of a store", "a rollout")
    found |= {"ran": canary.exists(), "should_name": is_marked and is_alone}
    return found


def verdict(exploded: Watched, result: Watched) -> str:
    if exploded.death or not exploded.value:
        return f"the payload does nothing ({exploded.death})"
    if result.death:
        return f"the reader's process {result.death}"
    if result.value["ran"]:
        return "it ran"
    if result.value.get("wrong"):
        return result.value["wrong"]
    if not result.value["error"]:
        return "it was taken for what it is not"
    if result.value["should_name"] and not result.value["named"]:
        return "the error does not name the converter"
    return OK


Place = Callable[[Path, Path, bytes], Any]


def _as_policy(work: Path, _: Path, content: bytes) -> None:
    (work / "policy.safetensors").write_bytes(content)
    load_weights(work / "policy.safetensors", policy_of("mlp"))


def _in_a_store(work: Path, _: Path, content: bytes) -> None:
    (work / "policy.pt").write_bytes(content)
    store = PolicyStore(work)
    assert store.list() == []
    store.load(work / "policy.pt", CorridorEnv)


def _as_rollout(work: Path, _: Path, content: bytes) -> None:
    (work / "experience.pt").write_bytes(content)
    load_rollout(work / "experience.pt")


def _as_config(work: Path, _: Path, content: bytes) -> None:
    (work / "config.yaml").write_bytes(content)
    TrainingConfig.from_yaml(work / "config.yaml")


def _as_agent(work: Path, checkpoint: Path, content: bytes) -> None:
    """As the settings of an agent, as far as JSON takes them."""
    from faults.knowing_lies import rewrite

    path = Path(shutil.copy(checkpoint / "policy.safetensors", work))
    text = content.decode("latin-1")[:10_000]
    rewrite(path, lambda manifest, _: manifest["metadata"]["agent"].update(name=text))
    PolicyStore(work).load(path, CorridorEnv)


def _in_checkpoint(file: str, *, sealed: bool, newest: bool = False) -> Place:
    def place(work: Path, checkpoint: Path, content: bytes) -> None:
        folder = work / checkpoint.name
        shutil.copytree(checkpoint, folder)
        (folder / file).write_bytes(content)
        if sealed:
            reseal(folder)
        if newest:
            read_newest_checkpoint(work)
        else:
            read_checkpoint(folder)

    return place


PLACES: dict[str, Place] = {
    "a policy": _as_policy,
    "a policy of a store": _in_a_store,
    "a rollout": _as_rollout,
    "a config": _as_config,
    "the settings of an agent": _as_agent,
    "the newest checkpoint's policy": _in_checkpoint(
        "policy.safetensors", sealed=False, newest=True
    ),
}
PLACES |= {f"{file} of a checkpoint": _in_checkpoint(file, sealed=False) for file in _FILES}
PLACES |= {f"{file} of a sealed one": _in_checkpoint(file, sealed=True) for file in _FILES[:3]}
