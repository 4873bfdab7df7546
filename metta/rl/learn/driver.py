"""Drivers run the passes over a rollout; the eager one calls `learn_minibatch` for each minibatch."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from metta.rl.collect.rollout_data import STATE_PREFIX
from metta.rl.learn.minibatch import cut_minibatch
from metta.rl.learn.optimizer import as_stepper
from metta.rl.learn.update import UpdateCoefs, UpdateRules, learn_minibatch
from metta.rl.learn.update_log import UpdateLog

__all__ = ["Driver", "EagerDriver"]


class Driver(Protocol):
    """Runs the minibatches of an update, in order, until they are done or have stopped."""

    kind: str
    needs_valid: bool
    """Whether the columns must hold `valid` also where all samples are."""

    def run(
        self,
        rules: UpdateRules,
        columns: Mapping[str, Tensor],
        passes: Iterable[Sequence[Tensor]],
        coefs: UpdateCoefs,
    ) -> UpdateLog:
        """Learn; `passes` gives the samples (or segments) of each minibatch of each pass.

        Returns what happened, still on the device.
        """
        ...

    def prepare(
        self,
        rules: UpdateRules,
        columns: Mapping[str, Tensor],
        minibatches: Sequence[Tensor],
        coefs: UpdateCoefs,
    ) -> None:
        """Do what can be done before the first such rollout is there; nothing is learned."""
        ...


class EagerDriver:
    """Torch, operation by operation; takes any network, loss and optimizer."""

    kind = "eager"
    needs_valid = False

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._stepper = as_stepper(optimizer)

    def run(
        self,
        rules: UpdateRules,
        columns: Mapping[str, Tensor],
        passes: Iterable[Sequence[Tensor]],
        coefs: UpdateCoefs,
    ) -> UpdateLog:
        """One call per minibatch; statistics stay on the device until the end."""
        log = UpdateLog()
        stopped = torch.zeros((), dtype=torch.bool, device=coefs.clip.device)
        names = [name for name in columns if not name.startswith(STATE_PREFIX)]
        for index in (index for minibatches in passes for index in minibatches):
            batch = cut_minibatch(columns, names, index, rules.policy)
            row, stopped, metrics = learn_minibatch(rules, self._stepper, batch, coefs, stopped)
            log.add(row, metrics)
            if rules.is_over(stopped):
                break
        return log

    def prepare(
        self,
        rules: UpdateRules,
        columns: Mapping[str, Tensor],
        minibatches: Sequence[Tensor],
        coefs: UpdateCoefs,
    ) -> None:
        """There is nothing to prepare."""
