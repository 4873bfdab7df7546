"""Reading the infos of gymnasium's vector environments.

A batch of infos is a dict of arrays with one entry per row; ``"_name"`` marks which entries of
``"name"`` are filled, and is missing where all of them are.
"""

from typing import Any

import numpy as np

from metta.envs.rows.action_masks import MaskLayout
from metta.envs.rows.gym_adapter import as_number
from metta.envs.vec_env import ObsArrays
from metta.errors import EnvError
from metta.spaces import MASK_KEY, ObsSpec

__all__ = ["final_observations", "mask_rows", "numbers_of_rows"]

_FINAL_OBS = "final_obs"
_FINAL_INFO = "final_info"


def final_observations(
    infos: dict[str, Any], rows: np.ndarray, obs_spec: ObsSpec, out: ObsArrays
) -> None:
    """Copy last observations of `rows` from ``infos["final_obs"]`` to the same rows of `out`.

    They come as one object per row, or as a batch in the form of the observations.
    """
    batch = infos.get(_FINAL_OBS)
    if batch is None:
        raise EnvError(
            f"rows {rows.tolist()} were truncated, but the infos have no {_FINAL_OBS!r}; an environment "
            "with AutoresetMode.SAME_STEP must give the last observation there"
        )
    if isinstance(batch, np.ndarray) and batch.dtype == object:
        for row in rows.tolist():
            if batch[row] is None:
                raise EnvError(f"row {row} was truncated, but infos[{_FINAL_OBS!r}][{row}] is None")
            obs_spec.write(batch[row], out, row)
    else:
        obs_spec.write(batch, out, slice(0, len(next(iter(out.values())))))


def numbers_of_rows(infos: dict[str, Any], rows: np.ndarray) -> list[tuple[int, dict[str, float]]]:
    """The numbers that `rows` reported: (row, name -> value), without rows that reported none."""
    columns = {
        name: (values, infos.get(f"_{name}"))
        for name, values in infos.items()
        if isinstance(values, np.ndarray)
        and values.ndim == 1
        and name not in (MASK_KEY, _FINAL_OBS, _FINAL_INFO)
        and not (name.startswith("_") and name[1:] in infos)
    }
    found = []
    for row in rows.tolist():
        numbers = {}
        for name, (values, filled) in columns.items():
            number = as_number(values[row]) if filled is None or filled[row] else None
            if number is not None:
                numbers[name] = number
        if numbers:
            found.append((row, numbers))
    return found


def mask_rows(
    source: Any, layout: MaskLayout, out: np.ndarray, rows: np.ndarray, *, in_obs: bool
) -> None:
    """Copy the masks of `rows` into the same rows of `out` ``[n, M]``.

    `source` is the infos, or with `in_obs` the batch of masks found in the observations.
    """
    masks = source if in_obs else source.get(MASK_KEY)
    filled = None if in_obs else source.get(f"_{MASK_KEY}")
    missing = rows if masks is None else rows[:0] if filled is None else rows[~filled[rows]]
    if missing.size:
        raise EnvError(
            f"the infos have no {MASK_KEY!r} of rows {missing.tolist()}, though the first reset had "
            "one; give it in the infos of every step() and reset()"
        )
    if isinstance(masks, np.ndarray) and masks.shape == out.shape and masks.dtype.kind in "biuf":
        out[rows] = masks[rows]
        if layout.leaves_a_choice(out[rows]).all():
            return
    for row in rows.tolist():
        try:
            layout.write(_of_row(masks, row), out[row])
        except EnvError as error:
            raise EnvError(f"row {row}: {error}") from None


def _of_row(masks: Any, row: int) -> Any:
    # a batch of a Tuple of masks is a tuple of batches
    return tuple(part[row] for part in masks) if isinstance(masks, tuple) else masks[row]
