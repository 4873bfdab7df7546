"""`OptimizerManager`: the optimizer of a run."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from metta.errors import StateError
from metta.rl.learn.optimizer import make_optimizer
from metta.train.train_config import OptimizerConfig

__all__ = ["OptimizerManager"]


class OptimizerManager:
    """The interface of `make_optimizer` and of what it returns."""

    def __init__(
        self, config: OptimizerConfig, optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        self.config = config
        self._optimizer = optimizer

    def create(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Make the configured optimizer for these parameters."""
        self._optimizer = make_optimizer(parameters, self.config)
        return self._optimizer

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer that was made or given."""
        if self._optimizer is None:
            raise StateError("there is no optimizer yet; call create() or Trainer.setup() first")
        return self._optimizer

    def load_state(self, checkpoint: Any) -> None:
        """Restore a state: of a checkpoint (its `optimizer_state`), or as `state_dict` returned it."""
        is_state = isinstance(checkpoint, Mapping)
        self.optimizer.load_state_dict(checkpoint if is_state else checkpoint.optimizer_state)

    @property
    def learning_rate(self) -> float:
        """Step size of the first parameter group; setting it scales the others alike.

        A linear or cosine schedule sets it again at each update.
        """
        return float(self.optimizer.param_groups[0]["lr"])

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        first = self.learning_rate
        for group in self.optimizer.param_groups:
            group["lr"] = rate * (group["lr"] / first) if first else rate
