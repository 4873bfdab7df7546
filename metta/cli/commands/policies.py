"""`metta policies`: which policies are saved, and how well they did."""

import argparse
import json
import shlex
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from metta.cli.options import add_runs
from metta.cli.policy_names import run_and_epoch
from metta.cli.tables import say, shown_bytes, table
from metta.errors import CheckpointError, ConfigError, MettaWarning, UnsafeFileError
from metta.loggers.number_text import shown_number

if TYPE_CHECKING:
    from metta.agent.policy_record import PolicyRecord

__all__ = ["SavedPolicy", "configure", "run", "saved_policies"]


class SavedPolicy(NamedTuple):
    """A saved policy, as a line of the table."""

    run: str
    version: str
    """`PolicyStore` finds it by ``run:version``."""
    epoch: int
    agent_step: int
    score: float | None
    is_best: bool
    """No policy of its run has a higher score."""
    is_latest: bool
    bytes: int
    uri: str

    @property
    def marks(self) -> str:
        """What is special about it."""
        marks = {"best": self.is_best, "latest": self.is_latest}
        return " ".join(mark for mark, holds in marks.items() if holds)


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Lists the policies that runs have saved, oldest first, or those with the best scores."
    )
    parser.epilog = (
        "`metta inspect RUN:best` shows what is inside one; RUN:latest and RUN:v120 work too."
    )
    parser.add_argument(
        "place",
        nargs="?",
        metavar="RUN|FOLDER|POLICY",
        help="a run, a folder of runs, checkpoints or policies, or one policy (default: all runs)",
    )
    add_runs(parser)
    parser.add_argument("--top", type=int, metavar="N", help="only the N best scores, best first")
    parser.add_argument(
        "--json", action="store_true", help="one JSON object per policy, for scripts"
    )


def run(options: argparse.Namespace) -> int:
    """Print the table."""
    if options.top is not None and options.top < 1:
        raise ConfigError(f"--top {options.top}; how many policies? Give 1 or more")
    places, epoch = _places(options.place, Path(options.runs))
    found = [policy for name, folder in places for policy in saved_policies(name, folder)]
    found = [policy for policy in found if epoch in (None, policy.epoch)]
    if options.top is not None:
        scored = [policy for policy in found if policy.score is not None]
        found = sorted(scored, key=lambda policy: -(policy.score or 0.0))[: options.top]
    if options.json:
        for policy in found:
            say(json.dumps(policy._asdict()))
    elif found:
        say(_table(found))
    else:
        what = "policies" if options.top is None else "policies with a score"
        say(f"there are no {what} in {options.place or options.runs}")
    return 0


def _places(place: str | None, output: Path) -> tuple[list[tuple[str, Path]], int | None]:
    """Names and folders of the stores that the argument means, and the epoch if it names one policy."""
    if place is None:
        return _all_runs(output), None
    folder = Path(place)
    is_store = folder.is_dir() and not (folder / "config.yaml").is_file()
    if is_store and not (folder / "manifest.json").exists():
        return _all_runs(folder) or [(folder.resolve().name, folder)], None
    found, epoch = run_and_epoch(place, output)
    return [(found.resolve().name, _checkpoint_dir(found))], epoch


def _all_runs(output: Path) -> list[tuple[str, Path]]:
    """Runs below a folder; a warning names those whose checkpoints are not searched."""
    found = []
    for folder in sorted(file.parent for file in output.glob("*/config.yaml")):
        try:
            found.append((folder.name, _checkpoint_dir(folder)))
        except (ConfigError, UnsafeFileError) as error:
            warnings.warn(str(error), MettaWarning, stacklevel=2)
    return found


def _checkpoint_dir(run: Path) -> Path:
    """Where a run has its checkpoints."""
    from metta.store.run_directory import RunDirectory

    return RunDirectory(run).place(
        "checkpoint_dir", lambda folder: shlex.join(["metta", "policies", folder])
    )


def saved_policies(run: str, folder: Path) -> Iterator[SavedPolicy]:
    """The policies in one folder, oldest first; a warning names those that cannot be read."""
    from metta.store.checkpoints.files import score_of
    from metta.store.checkpoints.retention import best_of
    from metta.store.policy_store import PolicyStore

    try:
        records, unreadable = PolicyStore(folder).survey()
    except OSError as error:
        raise CheckpointError(
            f"{str(folder)!r} cannot be searched for policies: {error}"
        ) from error
    best = best_of(records)
    for path in unreadable:
        text = f"{str(path)!r} cannot be read; `metta inspect` shows why"
        warnings.warn(text, MettaWarning, stacklevel=2)
    for record in records:
        yield SavedPolicy(
            run=run,
            version=f"v{record.epoch}",
            epoch=record.epoch,
            agent_step=record.agent_step,
            score=score_of(record.metadata),
            is_best=best is not None and record.uri == best.uri,
            is_latest=record is records[-1],
            bytes=_size(record),
            uri=record.uri,
        )


def _size(record: "PolicyRecord") -> int:
    from metta.store.checkpoints.files import POLICY_FILE
    from metta.store.policy_store import path_of

    path = path_of(record.uri)
    try:
        return (path / POLICY_FILE if path.is_dir() else path).stat().st_size
    except OSError:  # a running trainer has just removed it
        return 0


def _table(policies: list[SavedPolicy]) -> str:
    rows = [("run", "version", "epoch", "steps", "score", "", "size", "uri")]
    rows += [
        (
            policy.run,
            policy.version,
            str(policy.epoch),
            f"{policy.agent_step:,}",
            shown_number(policy.score),
            policy.marks,
            shown_bytes(policy.bytes),
            policy.uri,
        )
        for policy in policies
    ]
    return table(rows)
