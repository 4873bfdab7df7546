"""Secrets planted in real runs, then searched for in every byte that was written or shown.

A trial is one way to plant a secret and one shape of it: what is looked for is its core, twelve characters
of it in a row. A run in which the secret was not really in play proves nothing, and counts as wrong.
"""

import os
import random
from collections.abc import Iterator
from pathlib import Path

from faults.planted_runs import RUNS
from faults.secretive import digest
from faults.trial import OK, Trial
from faults.zygote import Zygote

SHAPES = {
    "plain": "{core}",
    "quotes": "a\"b'c\\{core}",
    "reserved": "p@ss:/{core}?x=1&y",
    "unicode": "pässwörd ☃ {core}",
    "words": "correct horse {core}",
    "lines": "-----BEGIN KEY-----\n{core}\n-----END KEY-----",
}
_WINDOW = 12
_PLAY_SECONDS = 60.0
_PRELOADED = ["faults.planted_runs", "torch._dynamo", "matplotlib.pyplot", "wandb"]
"""What runs would import one after another."""


def trials(count: int, seed: int, folder: Path) -> Iterator[Trial]:
    """`count` secrets, in turn over the ways to plant them, each time in another shape."""
    names, shapes = list(RUNS), list(SHAPES)
    plans = [
        (names[i % len(names)], shapes[(i + i // len(names)) % len(shapes)]) for i in range(count)
    ]
    yield from play_all(plans, seed, folder)


def play_all(plans: list[tuple[str, str]], seed: int, folder: Path) -> Iterator[Trial]:
    random_numbers = random.Random(seed)
    with Zygote(_PRELOADED, cwd=Path(__file__).parents[1]) as zygote:
        for number, (name, shape) in enumerate(plans):
            core = f"{random_numbers.getrandbits(96):024x}"
            secret = SHAPES[shape].format(core=core)
            place, proof = folder / f"planted-{number}", folder / f"proof-{number}"
            place.mkdir()
            child = zygote.start(
                "faults.planted_runs:play",
                name=name, secret=secret, folder=str(place), proof=str(proof),
            )  # fmt: skip
            code = child.wait(_PLAY_SECONDS)
            found, num_bytes = search(place, core)
            outcome = verdict(code, proof, secret, found, num_bytes)
            detail = {"bytes": num_bytes, "exit_code": code}
            yield Trial("planted_secrets", seed, f"{name}, {shape}", outcome, detail=detail)


def verdict(code: int, proof: Path, secret: str, found: list[str], num_bytes: int) -> str:
    if code:
        return f"the run ended with {code}"
    if not proof.exists() or proof.read_text() != digest(secret):
        return "the secret was not in play"
    if not num_bytes:
        return "nothing was written that could be searched"
    return f"leaked to {', '.join(found)}" if found else OK


def search(folder: Path, core: str) -> tuple[list[str], int]:
    """Files below a folder with a part of the core in name or content, and how many bytes there are."""
    parts = [core[i : i + _WINDOW].encode() for i in range(len(core) - _WINDOW + 1)]
    found, num_bytes = [], 0
    for path in sorted(folder.rglob("*")):
        content = os.fsencode(path.relative_to(folder)) + b"\0"
        if path.is_file():
            content += path.read_bytes()
            num_bytes += path.stat().st_size
        if any(part in content for part in parts):
            found.append(str(path.relative_to(folder)))
    return found, num_bytes
