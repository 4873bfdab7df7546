"""Drivers run the passes over a rollout: cut a minibatch, learn from it, until all are done."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from metta.agent.evaluation_mode import evaluating
from metta.agent.policy import Policy
from metta.rl.collect.buffer import ROWS_PER_FORWARD, STATE_PREFIX, obs_column, split_obs
from metta.rl.learn.optimizer import as_stepper
from metta.rl.learn.update import Minibatch, UpdateCoefs, UpdateRules, learn_minibatch
from metta.rl.learn.update_log import UpdateLog

__all__ = [
    "Driver",
    "EagerDriver",
    "current_log_probs",
    "cut_minibatch",
    "gather_columns",
    "num_items",
]


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
        """Do what can be done before the first such rollout exists; nothing is learned."""
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
        """Does nothing."""


def cut_minibatch(
    columns: Mapping[str, Tensor], names: Sequence[str], index: Tensor, policy: Policy
) -> Minibatch:
    """Gather some columns at `index`: samples of the flat batch, or segments of a recurrent one."""
    gathered, state = gather_columns(columns, names, index, policy), {}
    if policy.is_recurrent:
        rows = columns["values"].shape[1]
        state = {
            name.removeprefix(STATE_PREFIX): column[index // rows, index % rows]
            for name, column in columns.items()
            if name.startswith(STATE_PREFIX)
        }
    weights = gathered["valid"].to(gathered["values"].dtype) if "valid" in gathered else None
    return Minibatch(gathered, split_obs(policy.obs_spec, gathered), state, weights)


def gather_columns(
    columns: Mapping[str, Tensor], names: Sequence[str], index: Tensor, policy: Policy
) -> dict[str, Tensor]:
    """Some columns at `index`: ``[1, B, ...]``, or segments ``[L, B, ...]``."""
    if not policy.is_recurrent:
        return {name: columns[name].flatten(0, 1).index_select(0, index)[None] for name in names}
    segments, rows = columns[STATE_PREFIX + next(iter(policy.initial_state(1)))].shape[:2]
    which, row = index // rows, index % rows
    return {
        name: columns[name].unflatten(0, (segments, -1))[which, :, row].transpose(0, 1)
        for name in names
    }


def num_items(columns: Mapping[str, Tensor], policy: Policy) -> int:
    """What a permutation runs over: samples, or segments for recurrent policies."""
    steps, rows = columns["values"].shape
    if not policy.is_recurrent:
        return steps * rows
    name = STATE_PREFIX + next(iter(policy.initial_state(1)))
    return int(columns[name].shape[0]) * rows


@torch.no_grad()
def current_log_probs(columns: Mapping[str, Tensor], policy: Policy) -> Tensor:
    """Log-probability ``[T, N]`` of each action under the policy of this moment."""
    steps = columns["values"].shape[0]
    obs = [obs_column(policy.obs_spec, leaf.key) for leaf in policy.obs_spec.leaves]
    wanted = [*obs, "actions", "values", "episode_starts", "action_masks"]
    names = [name for name in wanted if name in columns]
    items = torch.arange(num_items(columns, policy), device=policy.device)
    length = columns["values"].numel() // len(items)
    parts = []
    with evaluating(policy):
        for index in items.split(max(1, ROWS_PER_FORWARD // length)):
            batch = cut_minibatch(columns, names, index, policy)
            output = policy(batch.obs, batch.state, batch.columns.get("episode_starts"))
            actions, legal = batch.columns["actions"], batch.columns.get("action_masks")
            parts.append(policy.action_spec.log_prob(output.dist_params, actions, legal))
    found: Tensor = torch.cat(parts, 1)  # [L, S * N], with L = 1 for feed-forward policies
    if policy.is_recurrent:
        found = found.unflatten(1, (steps // length, -1)).transpose(0, 1)
    return found.reshape(columns["values"].shape)
