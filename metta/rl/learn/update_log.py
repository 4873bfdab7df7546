"""What happened in an update, kept on the device and read once."""

import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from metta.errors import MettaWarning, NonFiniteError
from metta.rl.learn.custom_losses import Metrics

__all__ = ["LOSS_NAMES", "RareWarning", "UpdateLog", "UpdateReport"]

LOSS_NAMES = (
    "policy_loss",
    "value_loss",
    "entropy_loss",
    "total_loss",
    "approx_kl",
    "clipfrac",
)

_COMPUTED = 8


class UpdateLog:
    """One row per minibatch; nothing here waits for the device before `report`."""

    def __init__(self) -> None:
        self._rows: list[Tensor] = []
        self._metrics: list[tuple[int, Mapping[str, Tensor | float]]] = []
        """With the row that each belongs to."""

    def add(self, row: Tensor, metrics: Sequence[Metrics] = ()) -> None:
        """A row ``[10]`` of a minibatch, and what custom losses reported, for each piece of it.

        It holds the loss terms, the gradient norm, and whether it was finite, computed, stopped.
        """
        for values in metrics:
            plain = {k: v.detach() if isinstance(v, Tensor) else v for k, v in values.items()}
            self._metrics.append((len(self._rows), plain))
        self._rows.append(row)

    def report(self) -> "UpdateReport":
        """Everything as numbers on the host."""
        rows = torch.stack(self._rows).double()
        metrics = [
            torch.as_tensor(value, dtype=rows.dtype, device=rows.device)
            for _, values in self._metrics
            for value in values.values()
        ]
        # joined, so that the device is waited for once
        numbers = torch.cat([rows.flatten(), *(value.reshape(1) for value in metrics)]).cpu()
        table = numbers[: rows.numel()].reshape(rows.shape).numpy()
        others = iter(numbers[rows.numel() :].tolist())
        custom: dict[str, list[float]] = {}
        for number, values in self._metrics:
            for name, value in zip(values, others, strict=False):
                if table[number, _COMPUTED] > 0:
                    custom.setdefault(name, []).append(value)
        return UpdateReport(table, custom)


class UpdateReport:
    """The minibatches of an update: those computed before it stopped, and which of them were finite."""

    def __init__(self, table: np.ndarray, custom: Mapping[str, list[float]]) -> None:
        computed = table[table[:, _COMPUTED] > 0]
        self.losses, self.norms = computed[:, :6], computed[:, 6]
        self.finite, self.stopped = computed[:, 7] > 0, computed[:, 9] > 0
        self.custom = custom

    def means(self) -> dict[str, float]:
        """Means over minibatches that were computed and finite; NaN where none was."""
        used = self.losses[self.finite]
        means = used.mean(0) if len(used) else np.full(len(LOSS_NAMES), np.nan)
        stats = dict(zip(LOSS_NAMES, means.tolist(), strict=True))
        stats |= {
            "entropy": -stats["entropy_loss"],
            "grad_norm": float(self.norms[self.finite].mean()) if len(used) else float("nan"),
            "optimizer_steps": float((self.finite & ~self.stopped).sum()),
            "skipped_steps": float((~self.finite).sum()),
            "kl_stopped": float(self.stopped.any()),
        }
        return stats | {f"custom/{k}": sum(v) / len(v) for k, v in self.custom.items()}

    def check_skipped(self, in_a_row: int, limit: int) -> int:
        """Skipped steps in a row up to now; `NonFiniteError` once there are `limit` of them."""
        for finite in self.finite:
            in_a_row = 0 if finite else in_a_row + 1
            if in_a_row >= limit:
                raise NonFiniteError(
                    f"{in_a_row} optimizer steps in a row were skipped because "
                    f"{self.not_finite()} became NaN or infinite; the policy keeps its last finite "
                    "weights. Lower the learning rate, or look at custom losses and rewards"
                )
        return in_a_row

    def not_finite(self) -> str:
        """What became NaN or infinite, in words."""
        pairs = zip(LOSS_NAMES, self.losses.T, strict=True)
        bad = [name for name, column in pairs if not np.isfinite(column).all()]
        custom = self.custom.items()
        bad += [f"custom loss {k!r}" for k, v in custom if not np.isfinite(v).all()]
        return ", ".join(bad) or "the gradient"


class RareWarning:
    """Warns at the first time, the 10th, the 100th and so on."""

    def __init__(self) -> None:
        self._times, self._next = 0, 1

    def __call__(self, text: str) -> None:
        """Warn, if it is time."""
        self._times += 1
        if self._times < self._next:
            return
        self._next *= 10
        number = f"{self._times} updates of this kind so far; " if self._times > 1 else ""
        text = f"{text}; {number}the next warning comes at {self._next}"
        warnings.warn(text, MettaWarning, stacklevel=4)
