"""The layout of a saved vectorised environment: its class, and what that class needs."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from metta.envs.restore.env_values import UnreadableStateError
from metta.envs.restore.episode_log import EpisodeLog
from metta.errors import MettaWarning, StateError

__all__ = [
    "boundary_state",
    "class_of_state",
    "repeat_state",
    "snapshot_rows",
    "snapshot_state",
]

SavedClass = Literal["snapshot", "repeat", "boundary"]
_OLD_NAMES = {"replay": "repeat"}
"""Checkpoints of older versions are in this class; its layout is the same."""


def boundary_state() -> dict[str, Any]:
    """Holds no state of the environments: they are reset after loading."""
    return {"class": "boundary"}


def snapshot_state(read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `read` gives; a `boundary` with a warning where it cannot be read any more."""
    try:
        return {"class": "snapshot", **read()}
    except UnreadableStateError as error:
        _warn_of_boundary(str(error))
        return boundary_state()


def repeat_state(log: EpisodeLog) -> dict[str, Any]:
    """Seeds and actions of all rows; a `boundary` with a warning where some were not kept."""
    unknown = log.unknown_rows(from_start=True)
    if unknown:
        _warn_of_boundary(f"the actions of rows {unknown} since their last reset are not known")
        return boundary_state()
    return {"class": "repeat", **log.state()}


def class_of_state(state: Mapping[str, Any]) -> SavedClass:
    """The class in which environments were saved."""
    for name in get_args(SavedClass):
        if _OLD_NAMES.get(str(state.get("class")), state.get("class")) == name:
            found: SavedClass = name
            return found
    raise StateError(
        f"the saved environments are of class {state.get('class')!r}; known are "
        f"{', '.join(get_args(SavedClass))}"
    )


def snapshot_rows(state: Mapping[str, Any], num_rows: int) -> list[Mapping[str, Any]]:
    """The saved states of all rows, of which there must be as many as here."""
    rows = state.get("rows")
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise StateError("the saved environments have no list of rows")
    if len(rows) != num_rows:
        raise StateError(
            f"{len(rows)} environments were saved, but there are {num_rows} here; use the same number"
        )
    return rows


def _warn_of_boundary(reason: str) -> None:
    warnings.warn(
        f"environments are saved without their state, so a resumed run will begin fresh episodes: "
        f"{reason}",
        MettaWarning,
        stacklevel=4,
    )
