"""Evaluations that are still to be done: policies without scores, as files beside the checkpoints."""

import dataclasses
import os
import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors

from metta.errors import MettaWarning, PolicyError
from metta.files import remove_file
from metta.store.checkpoints.files import epoch_of
from metta.store.policies.file import FrozenPolicy, read_policy_manifest, save_policy
from metta.untrusted.json_files import brief
from metta.untrusted.paths import safe_join

__all__ = ["OWED_FOLDER", "OwedEvaluation", "OwedEvaluations"]

OWED_FOLDER = "owed"
_NAME = re.compile(r"epoch_([0-9]{6,15})\.safetensors")
_LEFTOVER = ".tmp"
"""Prefixes of files that a crash left half written, by metta or by safetensors."""


@dataclass(frozen=True)
class OwedEvaluation:
    """A policy that will be evaluated, and how."""

    epoch: int
    agent_step: int
    checkpoint: str | None = None
    """Name of its checkpoint's folder; None if this epoch is not saved."""
    is_scored: bool = True
    is_recorded: bool = False
    """Whether replays are wanted."""


class OwedEvaluations:
    """The folder ``owed/<run id>`` beside a run's checkpoints, with one policy file per evaluation.

        owed = OwedEvaluations("runs/first/checkpoints", run_id)
        owed.add(OwedEvaluation(epoch=120, agent_step=61_440), freeze_policy(policy))
        owed.list()                # after a crash: what has to be done again
        owed.remove([120])         # its score is recorded

    A file is on the disk when `add` returns. `UnsafeFileError` if the folder is a link that leads out.
    Each run has its own folder, because several may share the folder of checkpoints.
    """

    def __init__(self, checkpoint_dir: str | os.PathLike[str], run_id: str) -> None:
        self.checkpoint_dir, self.run_id = Path(checkpoint_dir), run_id

    @property
    def folder(self) -> Path:
        """Where the files are."""
        return safe_join(self.checkpoint_dir, OWED_FOLDER, self.run_id)

    def file_of(self, epoch: int) -> Path:
        """The policy of an epoch."""
        return self.folder / f"epoch_{epoch:06d}.safetensors"

    def add(self, owed: OwedEvaluation, policy: FrozenPolicy) -> Path:
        """Write the policy; one of the same epoch is replaced. A failure is an `OSError`."""
        try:
            return save_policy(self.file_of(owed.epoch), policy, dataclasses.asdict(owed))
        except safetensors.SafetensorError as error:  # a disk that is full, for one
            raise OSError(str(error)) from error

    def list(self) -> list[OwedEvaluation]:
        """Evaluations to be done, by epoch; files that cannot be read are left out with a warning."""
        found = []
        for path in sorted(self.folder.glob("*")):
            if path.name.startswith(_LEFTOVER):
                remove_file(path)
                continue
            try:
                found.append(_read(path))
            except (PolicyError, ValueError) as error:
                warnings.warn(
                    f"an evaluation that the run owes is left out, because {str(path)!r} cannot be used: "
                    f"{error}; remove the file",
                    MettaWarning,
                    stacklevel=2,
                )
        return sorted(found, key=lambda owed: owed.epoch)

    def remove(self, epochs: Iterable[int]) -> None:
        """Remove evaluations that are recorded, or will be requested again."""
        for epoch in epochs:
            remove_file(self.file_of(epoch))


def _read(path: Path) -> OwedEvaluation:
    """The content of a file; ValueError if it is of another kind."""
    match = _NAME.fullmatch(path.name)
    if match is None or path.is_symlink() or not path.is_file():
        raise ValueError("it is not a file of an owed evaluation")
    about: dict[str, Any] = read_policy_manifest(path)["metadata"]
    try:
        owed = OwedEvaluation(**about)
    except TypeError as error:
        raise ValueError(f"it holds {brief(about)}") from error
    kinds = {"epoch": int, "agent_step": int, "is_scored": bool, "is_recorded": bool}
    is_typed = all(type(getattr(owed, name)) is kind for name, kind in kinds.items())
    is_here = is_typed and owed.epoch == int(match[1]) and owed.agent_step >= 0
    if not is_here or not _is_checkpoint_of(owed.checkpoint, owed.epoch):
        raise ValueError(f"it holds {brief(about)}")
    return owed


def _is_checkpoint_of(name: Any, epoch: int) -> bool:
    if not isinstance(name, str):
        return name is None
    return Path(name).name == name and epoch_of(Path(name)) == epoch
