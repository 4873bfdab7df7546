"""A run that is killed after epoch k and resumed in a new process equals one that was not, for every k.

Every configuration of `faults.training` and every k; digests of all components after every epoch and all
rows of metrics are compared with those of a run that was left alone.
"""

import random
from collections.abc import Iterator
from pathlib import Path

from faults.training import COMPILED, CONFIGS, EPOCHS, comparable_rows
from faults.trial import OK, Trial
from faults.zygote import Zygote
from metta.testing.digests import compare_digests, read_digests

_COMPILING_SECONDS = 900.0
"""Until a run counts as stuck; the first of its kind may compile its update."""


def trials(count: int, seed: int, folder: Path) -> Iterator[Trial]:
    """All splits, or `count` of them drawn at random (one of each configuration first).

    Those with compiled updates are among all of them only: they wait for a compiler.
    """
    names = [*CONFIGS] if count else [*CONFIGS, *COMPILED]
    points = [(name, k) for k in range(1, EPOCHS) for name in names]
    if count:
        random.Random(seed).shuffle(points)
        points = one_of_each(points, count)
    references: dict[str, Path] = {}
    with Zygote(["faults.training:warm_up"], cwd=Path(__file__).parent.parent) as zygote:
        for name, k in points:
            if name not in references:
                references[name] = folder / f"{name}-whole"
                code = zygote.start(
                    "faults.training:train", name=name, folder=str(references[name])
                ).wait(_COMPILING_SECONDS)
                assert code == 0, f"the undisturbed run {name!r} ended with code {code}"
            yield split(zygote, name, k, references[name], folder / f"{name}-{k}", seed)


def one_of_each(points: list[tuple[str, int]], count: int) -> list[tuple[str, int]]:
    """At most `count` points, of as many configurations as possible."""
    first = {name: (name, k) for name, k in reversed(points)}
    rest = [point for point in points if point not in first.values()]
    return [*first.values(), *rest][:count]


def split(zygote: Zygote, name: str, k: int, whole: Path, folder: Path, seed: int) -> Trial:
    run = {"name": name, "folder": str(folder)}
    killed = zygote.start("faults.training:train", **run, die_after=k).wait(_COMPILING_SECONDS)
    resumed = zygote.start("faults.training:train", **run).wait(_COMPILING_SECONDS)
    outcome = OK if (killed, resumed) == (-9, 0) else f"exit codes {killed} and {resumed}"
    digest = None
    if outcome == OK:
        outcome, digest = compare_runs(whole, folder)
    return Trial("splits", seed, f"{name}, epoch {k}", outcome, digest)


def compare_runs(whole: Path, folder: Path, ignored: str = "") -> tuple[str, str | None]:
    """ "ok" or the first difference between two runs, and the digest of the last epoch's policy.

    The component that is `ignored` may differ.
    """
    expected, found = (
        {
            epoch: [{k: v for k, v in one.items() if k != ignored} for one in digests]
            for epoch, digests in read_digests(run / "digests.jsonl").items()
        }
        for run in (whole, folder)
    )
    if sorted(found) != sorted(expected):
        return f"epochs {sorted(found)} instead of {sorted(expected)}", None
    difference = compare_digests(expected, found)
    if difference is not None:
        return f"epoch {difference[0]}: other {', '.join(difference[1])}", None
    rows = comparable_rows(whole), comparable_rows(folder)
    if rows[0] != rows[1]:
        return f"other rows of metrics: {first_other_row(*rows)}", None
    if csv_shape(whole) != csv_shape(folder):
        return "metrics.csv has other rows", None
    return OK, found[max(found)][-1]["policy"]


def first_other_row(expected, found) -> str:
    if [row[:2] for row in expected] != [row[:2] for row in found]:
        return f"{[row[1] for row in found]} instead of {[row[1] for row in expected]}"
    for before, after in zip(expected, found, strict=True):
        names = [n for n in {**before[2], **after[2]} if before[2].get(n) != after[2].get(n)]
        if names:
            return f"epoch {before[1]}: {names[:4]}"
    return "none"


def csv_shape(folder: Path) -> list[str]:
    """Columns, and the first two (step and epoch) of every row."""
    lines = (folder / "metrics.csv").read_text().splitlines()
    return [lines[0], *(",".join(line.split(",")[:2]) for line in lines[1:])]
