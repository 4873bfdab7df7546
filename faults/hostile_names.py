"""Names and paths that try to lead elsewhere: each is refused, or stays where it was looked for.

A trial offers one name at one door, in a forked child: as a run's name, an experiment's, a policy's, in a
selector, in a URI, as a part of a path. Beside the folder of runs lies another with a policy in it. It is
well where an error of metta's own comes, or where what was made or found lies in the folder of runs; and
where nothing beside that folder changed.
"""

import contextlib
import io
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch

from faults.forked import Watched, run_forked
from faults.good_files import make_checkpoint, policy_of
from faults.trial import OK, Trial
from metta.cli.main import main
from metta.errors import MettaError
from metta.store.policy_store import PolicyStore
from metta.store.run_directory import RunDirectory
from metta.untrusted.paths import safe_join

_PIECES = [
    "..", ".", "%2e%2e", "%2E%2e", "%252e", "..%2f", "%5c", "\\", "/", "//", "\0", "%00", "~", "outside",
    "secret", "link", "checkpoints", "run", "C:", "con", "nul", "\n", "\r", "\t", " ", "-", "--output",
    "\u202e", "\uff0e\uff0e", "\u2215", "\ud800", "\xe9", "*", "?", "$HOME", "`id`", "$(id)", ";", "|", "&",
    "#", "<!--", "{0}", "%s", "\x1b[2J", "a" * 255, "b" * 4096,
]  # fmt: skip
NAMES = [
    "", ".", "..", "...", "../outside", "../../outside", "../outside/secret", "/outside", "//outside",
    "/etc/passwd", "~/x", "~root", "run/../../outside", "run/..", "./../outside", "..\\outside",
    "%2e%2e/outside", "..%2foutside", "%2e%2e%2foutside", "..%252foutside", "..%c0%afoutside",
    "outside\0", "run\0/../../outside", "link", "link/secret", "run/link", "run/checkpoints/link", "loop",
    "looping", "fifo", "file://outside", "file:///etc/passwd", "file://localhost/../outside",
    "file://evil.example/run", "file://127.0.0.1/run", "http://evil.example/x", "\\\\evil\\share", "con",
    "NUL", "aux.txt", "a" * 129, "a" * 255, "a" * 256, "a" * 4096, "a/" * 2000, "-", "--run", "-rf",
    ".hidden", ".tmp-x", " run", "run ", "run\n", "run\r\n", "run\t", "r\u0131n", "\uff52\uff55\uff4e",
    "run\u200b", "\u202erun", "..\u2215outside", "\uff0e\uff0e/outside", "\ud800", "\x7f",
    "\x1b]0;x\x07", "run:latest", "run:best:latest", "run;touch x", "$(touch x)", "`touch x`", "*", "?",
    "[a]", "{a,b}", "!", "#", "&", "|", "<x>", "'", '"', "\\", "%s%s", "{0}", "${HOME}", "0", "run",
]  # fmt: skip


def trials(count: int, seed: int, folder: Path) -> Iterator[Trial]:
    """`count` names, known ones first, then random ones, each at every door."""
    torch.set_num_threads(1)
    random = Random(seed)
    names = NAMES[:count]
    while len(names) < count:
        separators = [random.choice(["", "/", "/", "."]) for _ in range(3)]
        names.append("".join(random.choice(_PIECES) + separator for separator in separators))
    _make_world(folder)
    jobs = [(name, door) for name in names for door in DOORS]
    for (name, door), result in zip(jobs, run_forked(jobs, partial(knock, folder)), strict=True):
        detail = {"found": result.value}
        yield Trial(
            "hostile_names", seed, f"{ascii(name)[:80]} as {door}", verdict(result), detail=detail
        )


def _make_world(folder: Path) -> None:
    """A folder of runs, one sound and some with links in them; beside it what must not be reached."""
    make_checkpoint(folder / "outside" / "checkpoints", "mlp")
    make_checkpoint(folder / "outside" / "secret" / "checkpoints", "mlp")
    runs = folder / "runs"
    sound = make_checkpoint(runs / "run" / "checkpoints", "mlp")
    (runs / "link").mkdir()
    (runs / "link" / "checkpoints").symlink_to(folder / "outside" / "checkpoints")
    (runs / "looping" / "checkpoints").mkdir(parents=True)
    (runs / "looping" / "checkpoints" / sound.name).symlink_to(
        folder / "outside" / "checkpoints" / sound.name
    )
    (runs / "loop").symlink_to("loop")
    os.mkfifo(runs / "fifo")


def knock(folder: Path, job: tuple[str, str]) -> dict[str, Any]:
    """What came of a name at a door."""
    name, door = job
    before = _beside(folder)
    os.chdir(folder / "runs")
    try:
        place = DOORS[door](folder / "runs", name)
        inside = place.resolve().is_relative_to((folder / "runs").resolve())
        found: dict[str, Any] = {"place": ascii(place), "escaped": not inside}
    except MettaError as error:
        found = {"error": type(error).__name__}
    except Exception as error:  # noqa: BLE001  # what is looked for
        found = {"wrong": f"{type(error).__name__}: {ascii(error)[:200]}"}
    return found | {"changed": _beside(folder) != before}


def _beside(folder: Path) -> list[tuple[str, int]]:
    """Everything beside the folder of runs, and when it was changed last."""
    return sorted(
        (str(path), path.lstat().st_mtime_ns)
        for path in folder.rglob("*")
        if (folder / "runs") not in (path, *path.parents)
    )


def verdict(result: Watched) -> str:
    if result.death:
        return f"the process {result.death}"
    if result.value.get("wrong"):
        return result.value["wrong"]
    if result.value["changed"]:
        return "something beside the folder of runs changed"
    return "it led out of the folder of runs" if result.value.get("escaped") else OK


class _RefusedError(MettaError):
    """A command that ended with the code for wrong usage."""


def _command(arguments: list[str]) -> None:
    """Run a command of metta; wrong usage counts as a refusal."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            status = main(arguments)
        except SystemExit as end:
            status = end.code
    if status == 2:
        raise _RefusedError
    if status:
        raise RuntimeError(f"metta {arguments[0]} ended with {status}")


def _run_name(root: Path, name: str) -> Path:
    _command(["train", "cartpole", f"--run={name}", "--output", str(root), "--dry-run"])
    run = RunDirectory(root / name)
    with run.lock():
        return run.path


def _experiment_name(root: Path, name: str) -> Path:
    _command(["train", "cartpole", f"experiment_name={name}", "--output", str(root), "--dry-run"])
    run = RunDirectory(root / f"{name}-seed1")
    with run.lock():
        return run.path


def _policy_name(root: Path, name: str) -> Path:
    record = PolicyStore(root).save(policy_of("mlp"), name, 1)
    return Path(record.uri.removeprefix("file://"))


def _found(uri: str) -> Callable[[Path, str], Path]:
    def door(root: Path, name: str) -> Path:
        record = PolicyStore(root).find(uri.format(root=root, name=name))
        return Path(record.uri.removeprefix("file://"))

    return door


DOORS: dict[str, Callable[[Path, str], Path]] = {
    "a run": _run_name,
    "an experiment": _experiment_name,
    "a policy": _policy_name,
    "the latest of a run": _found("{name}:latest"),
    "the best of a run": _found("{name}:best"),
    "an epoch of a run": _found("{name}:v7"),
    "a URI": _found("file://{root}/{name}"),
    "a URI by itself": _found("file://{name}"),
    "a part of a path": safe_join,
}
