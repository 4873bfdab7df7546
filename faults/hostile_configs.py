"""Hostile and broken configuration files: each ends in an error that names the file, or is a configuration.

A trial writes one file and reads it as `metta train FILE` does, in a forked child. Nothing of it may run,
no other error may come, and it costs less than a second of the processor and 100 MB. A misspelt setting is
named together with the one that was meant.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from faults.config_texts import ANY, REFUSED
from faults.forked import Watched, most_seconds, run_forked
from faults.trial import OK, Trial
from metta.errors import ConfigError
from metta.train.layers import resolve
from metta.train.train_config import TrainingConfig

_MAX_SECONDS, _MAX_BYTES, _MAX_MESSAGE = most_seconds(), 100 * 2**20, 20_000


def trials(count: int, seed: int, folder: Path) -> Iterator[Trial]:
    """Every kind of bad file in turn, and between them files of chance."""
    random = Random(seed)
    kinds = [*REFUSED, *list(ANY) * (len(REFUSED) // len(ANY))]
    jobs = [(kinds[number % len(kinds)], random.getrandbits(32)) for number in range(count)]
    canary, path, sound = (folder / name for name in ("canary", "hostile.yaml", "sound.yaml"))
    sound.write_text("seed: 1")
    watched = run_forked(
        jobs,
        partial(offer, path, canary),
        prepare=partial(_write, path, canary),
        warm_up=partial(_read, sound),
    )
    for (kind, number), result in zip(jobs, watched, strict=True):
        outcome = verdict(kind, result)
        detail = {"seed": number, "cpu_seconds": round(result.cpu_seconds, 4), "found": result.value,
                  "grown_bytes": result.grown_bytes}  # fmt: skip
        yield Trial("hostile_configs", seed, kind, outcome, detail=detail)


def _write(path: Path, canary: Path, job: tuple[str, int]) -> str:
    kind, number = job
    path.write_bytes((REFUSED | ANY)[kind](Random(number), str(canary)))
    return kind


def offer(path: Path, canary: Path, kind: str) -> dict[str, Any]:
    try:
        config = _read(path)
        found: dict[str, Any] = {"taken": isinstance(config, TrainingConfig)}
    except ConfigError as error:
        message = str(error)
        found = {"message": message[:300], "length": len(message)}
        found["wrong"] = _missing_in(message, path, kind)
    except BaseException as error:  # noqa: BLE001  # what is looked for
        found = {"wrong": f"{type(error).__name__}: {str(error)[:200]}"}
    return found | {"ran": canary.exists()}


def _read(path: Path) -> TrainingConfig:
    return resolve(None, [path]).config


def _missing_in(message: str, path: Path, kind: str) -> str | None:
    if str(path) not in message:
        return "the error does not name the file"
    if kind == "misspelt" and "did you mean" not in message:
        return "the error does not say what was meant"
    return "the error is too long" if len(message) > _MAX_MESSAGE else None


def verdict(kind: str, result: Watched) -> str:
    if result.death:
        return f"the reader's process {result.death}"
    if result.value["ran"]:
        return "it ran"
    if result.value.get("wrong"):
        return result.value["wrong"]
    if kind in REFUSED and "taken" in result.value:
        return "it was taken for a configuration"
    if result.cpu_seconds > _MAX_SECONDS:
        return f"it took {result.cpu_seconds:.1f} seconds"
    if result.grown_bytes > _MAX_BYTES:
        return f"it took {result.grown_bytes >> 20} MB"
    return OK
