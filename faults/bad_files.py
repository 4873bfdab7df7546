"""Damaged and hostile policies, rollouts and checkpoints: each is refused by name, or is what it was.

A trial changes one sound file or folder and reads it in every way there is, in a forked child. It is well
where each way ends in an error of metta's own, or gives exactly what it gave before, and that only where
what was changed is not content (white space) or not read that way. It costs each way less than a second of
the processor, and 100 MB.
"""

import contextlib
import json
import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch

from faults import byte_damage, header_lies
from faults.checkpoint_lies import LIES
from faults.forked import Watched, most_seconds, run_forked
from faults.good_files import AGENTS, MAKERS, READERS
from faults.knowing_lies import AGENTS as AGENT_LIES
from faults.knowing_lies import WEIGHTS
from faults.trial import OK, Trial
from metta.errors import MettaError

_MAX_SECONDS, _MAX_BYTES = most_seconds(), 100 * 2**20
_CHECKPOINT_FILES = ("policy.safetensors", "state.safetensors", "state.json", "manifest.json")


class Job(NamedTuple):
    """Which file of which kind, made for which agent, is changed in which way, by which numbers."""

    kind: str
    agent: str
    file: str
    way: str
    seed: int

    @property
    def point(self) -> str:
        return f"{self.kind}, {self.file}: {self.way}" if self.file else f"{self.kind}: {self.way}"


def trials(count: int, seed: int, folder: Path) -> Iterator[Trial]:
    """Every way to lie at least once while `count` lasts, then random damage."""
    torch.set_num_threads(1)  # the child of a fork has no other threads
    originals = _make_originals(folder / "sound")
    jobs = plan(count, seed)
    watched = run_forked(
        jobs,
        partial(read_changed, originals),
        prepare=partial(prepare, folder / "work", folder / "sound", originals),
        warm_up=partial(_read_all, originals, "checkpoint", "lstm"),
    )
    for job, result in zip(jobs, watched, strict=True):
        yield Trial("bad_files", seed, job.point, verdict(result), detail=_detail(job, result))


def plan(count: int, seed: int) -> list[Job]:
    random = Random(seed)
    fixed = [job for agent in AGENTS for job in _every_lie(agent)]
    random.shuffle(fixed)
    jobs = fixed[: count // 2]
    while len(jobs) < count:
        kind = random.choice(["policy", "rollout", "checkpoint", "checkpoint"])
        file = random.choice(_files_of(kind))
        way = random.choice(list(byte_damage.RANDOM))
        jobs.append(Job(kind, random.choice(list(AGENTS)), file, way, 0))
    return [job._replace(seed=random.getrandbits(32)) for job in jobs]


def _every_lie(agent: str) -> Iterator[Job]:
    for kind in MAKERS:
        for file in _files_of(kind):
            yield from (Job(kind, agent, file, way, 0) for way in byte_damage.FIXED)
    for kind in ("policy", "rollout"):
        [file] = _files_of(kind)
        for ways in (header_lies.STRUCTURAL, header_lies.QUIET, header_lies.MANIFEST):
            yield from (Job(kind, agent, file, way, 0) for way in ways)
    yield from (Job("policy", agent, "policy.safetensors", way, 0) for way in _KNOWING)
    yield from (Job("checkpoint", agent, "", way, 0) for way in LIES)


def _files_of(kind: str) -> tuple[str, ...]:
    return _CHECKPOINT_FILES if kind == "checkpoint" else (f"{kind}.safetensors",)


def _make_originals(folder: Path) -> dict[tuple[str, str], dict[str, str]]:
    """Sound files in ``folder/kind/agent``, and what each way to read them gives."""
    found = {}
    for kind, make in MAKERS.items():
        for agent in AGENTS:
            path = make(folder / kind / agent, agent)
            readers = READERS[kind].items()
            found[kind, agent] = {"path": str(path)} | {
                name: reader.read(path, agent) for name, reader in readers
            }
    return found


def _read_all(originals: dict[tuple[str, str], dict[str, str]], kind: str, agent: str) -> None:
    path = Path(originals[kind, agent]["path"])
    for reader in READERS[kind].values():
        reader.read(path, agent)


class Prepared(NamedTuple):
    """A changed file or folder, and the names of the files in it whose content is different."""

    job: Job
    path: Path
    changed: frozenset[str]


def prepare(work: Path, sound: Path, originals: Any, job: Job) -> Prepared:
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(sound / job.kind / job.agent, work)
    path = work / Path(originals[job.kind, job.agent]["path"]).name
    before = _contents(path)
    changed = change(job, path)
    after = _contents(path)
    same = {name for name in before.keys() & after.keys() if before[name] == after[name]}
    return Prepared(job, path, frozenset(changed - same))


def read_changed(originals: Any, prepared: Prepared) -> dict[str, Any]:
    """What each way to read a changed file came to (an error, or what was wrong), and what it cost."""
    job, path, changed = prepared
    original = originals[job.kind, job.agent]
    found, slowest = {}, 0.0
    for name, reader in READERS[job.kind].items():
        if job.way in AGENT_LIES and name == "load_weights":
            continue  # where a policy is given, the settings of another do not matter
        begin = time.process_time()
        is_read = bool(changed & reader.files)
        found[name] = _outcome(reader, path, job.agent, original[name], is_read)
        slowest = max(slowest, time.process_time() - begin)
    return {"found": found, "cpu_seconds": round(slowest, 4)}


def _contents(path: Path) -> dict[str, Any]:
    """Content by file; white space around JSON does not count."""
    files = [path] if path.is_file() else [file for file in path.iterdir() if file.is_file()]
    found: dict[str, Any] = {}
    for file in files:
        if file.is_symlink():
            continue
        content: Any = file.read_bytes()
        if file.suffix == ".json":
            with contextlib.suppress(ValueError, RecursionError):
                content = json.loads(content)
        found[file.name] = content
    return found


def _outcome(reader: Any, path: Path, agent: str, original: str, is_changed: bool) -> str:
    try:
        digest = reader.read(path, agent)
    except MettaError as error:
        return (
            f"refused: {type(error).__name__}"
            if len(str(error)) < 5000
            else "WRONG: a message too long"
        )
    except Exception as error:  # noqa: BLE001  # what is looked for
        return f"WRONG: {type(error).__name__}: {str(error)[:200]}"
    if digest != original:
        return "WRONG: other content was loaded"
    return "WRONG: the change was not seen" if is_changed else "equal"


def change(job: Job, path: Path) -> set[str]:
    """Apply the job to a file or folder; returns the names of the files that it changed."""
    random = Random(job.seed)
    if not job.file:
        return LIES[job.way](path, random)
    place = path / job.file if path.is_dir() else path
    if job.way in _KNOWING and job.kind == "policy":
        _KNOWING[job.way](place, random)
        return {job.file}
    content = place.read_bytes()
    damage = byte_damage.FIXED.get(job.way) or byte_damage.RANDOM.get(job.way)
    if damage:
        place.write_bytes(damage(content, random))
    else:
        place.write_bytes(_HEADER_LIES[job.way](*header_lies.split(content), random))
    return {job.file}


_KNOWING = WEIGHTS | AGENT_LIES
_HEADER_LIES = header_lies.STRUCTURAL | header_lies.QUIET | header_lies.MANIFEST


def verdict(result: Watched) -> str:
    if result.death:
        return f"the reader's process {result.death}"
    outcomes = result.value["found"].items()
    wrong = [f"{name}: {what}" for name, what in outcomes if "WRONG" in what]
    if wrong:
        return "; ".join(wrong)
    if result.value["cpu_seconds"] > _MAX_SECONDS:
        return f"it took {result.value['cpu_seconds']} seconds"
    if result.grown_bytes > _MAX_BYTES:
        return f"it took {result.grown_bytes >> 20} MB"
    return OK


def _detail(job: Job, result: Watched) -> dict[str, Any]:
    about = {"agent": job.agent, "seed": job.seed, "grown_bytes": result.grown_bytes}
    return about | (result.value or {})
