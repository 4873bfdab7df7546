"""`RolloutBuffer`: where a rollout is written, step by step, and completed."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metta.agent.actors.protocol import ValueSource
from metta.agent.output import Obs, State
from metta.agent.policy import Policy
from metta.envs.vec_env import FinalRows, RolloutArrays, StepResult, VecEnv
from metta.errors import ConfigError, NonFiniteError
from metta.ops.diagnostics import all_finite
from metta.spaces import ObsSpec
from metta.train.machine import require_memory

__all__ = [
    "FLOAT_COLUMNS",
    "STATE_PREFIX",
    "Experience",
    "RolloutBuffer",
    "checked_columns",
    "obs_column",
    "split_obs",
]

STATE_PREFIX = "recurrent_state/"
FLOAT_COLUMNS = ("values", "log_probs", "advantages", "returns", "rewards", "next_values")

ROWS_PER_FORWARD = 8192
"""Limit on rows of the batched forward in `finalize`, for the memory of convolutions."""


def obs_column(spec: ObsSpec, key: str) -> str:
    """Name of a leaf's column: ``observations``, or ``observations/<leaf>`` for nested spaces."""
    return "observations" if spec.is_plain else f"observations/{key}"


def split_obs(spec: ObsSpec, columns: Mapping[str, Tensor]) -> Obs:
    """The observation leaves among the columns of a rollout."""
    return {leaf.key: columns[obs_column(spec, leaf.key)] for leaf in spec.leaves}


class RolloutBuffer:
    """A rollout ``[T, N, ...]`` in memory that is reused from epoch to epoch.

        buffer = RolloutBuffer.for_env(policy, vec_env, horizon=128)
        RolloutCollector(vec_env, policy, buffer, "cpu").collect()
        buffer.columns["rewards"]                                   # [T, N], shares the buffer's memory

    Row ``[t, n]`` holds the observation before step t, the action taken on it, and what that step gave.
    Observations are raw (uint8 stays uint8) and have one entry more, ``[T + 1, N]``. Rewards are the
    environment's own. True last observations of truncated episodes are kept sparsely, with the recurrent
    state they were reached in. Arrays lie in host memory; `finalize` makes one transfer to the device.
    """

    def __init__(
        self,
        policy: Policy,
        num_rows: int,
        horizon: int,
        *,
        mask_size: int = 0,
        bptt_horizon: int | None = None,
    ) -> None:
        self.horizon, self.num_rows = horizon, num_rows
        self.policy_lag: int | None = None
        """Updates between the policy that collected and the one that learns; None: not measured."""
        self.obs_spec, self.action_spec = policy.obs_spec, policy.action_spec
        self.device, self.dtype = policy.device, policy.dtype
        state = policy.initial_state(num_rows)
        self.segment_length = min(bptt_horizon or horizon, horizon) if state else horizon
        if horizon % self.segment_length:
            raise ConfigError(
                f"bptt_horizon={self.segment_length} does not divide the horizon of {horizon}; "
                f"try horizon={horizon - horizon % self.segment_length} or a divisor of {horizon}"
            )
        lead = (horizon, num_rows)
        pin = self.device.type == "cuda"

        def make(shape: tuple[int, ...], kind: torch.dtype) -> Tensor:
            return torch.zeros(shape, dtype=kind, pin_memory=pin)

        self.obs: Obs = {
            leaf.key: make((horizon + 1, num_rows, *leaf.shape), _torch_dtype(leaf.dtype))
            for leaf in self.obs_spec.leaves
        }
        action_dtype = (
            self.dtype if self.action_spec.action_dtype.is_floating_point else torch.int64
        )
        self.actions = make((*lead, *self.action_spec.action_shape), action_dtype)
        self.rewards = make(lead, self.dtype)
        self.terminated, self.truncated = make(lead, torch.bool), make(lead, torch.bool)
        self.valid, self.starts = make(lead, torch.bool), make((horizon + 1, num_rows), torch.bool)
        self.masks = make((horizon + 1, num_rows, mask_size), torch.bool) if mask_size else None
        # what an actor may produce, on the device where it produces it; slot S holds the carry
        segments = horizon // self.segment_length
        self.states: State = {
            key: part.new_zeros((segments + 1, num_rows, *part.shape[1:]), device=self.device)
            for key, part in state.items()
        }
        self.values = torch.zeros(lead, dtype=self.dtype, device=self.device)
        self.dist_params = torch.zeros(
            (*lead, self.action_spec.num_params), dtype=self.dtype, device=self.device
        )
        self.columns: dict[str, Tensor] = {}
        self._finals: list[tuple[int, np.ndarray, Mapping[str, np.ndarray], State]] = []
        self.lost: list[tuple[int, int]] = []
        """(step, row) at which an episode broke off because its worker died; -1: before the rollout."""
        self._arrays()

    @classmethod
    def for_env(
        cls, policy: Policy, vec_env: VecEnv, horizon: int, *, bptt_horizon: int | None = None
    ) -> "RolloutBuffer":
        """A buffer that fits a policy and an environment."""
        rows, masks = vec_env.num_rows, vec_env.mask_size
        width = policy.obs_spec.nbytes + masks + 4 * (policy.action_spec.num_params + 2)
        require_memory(
            rows * horizon * width,
            f"a rollout of {horizon:,} steps x {rows:,} rows",
            "lower horizon (n_steps) or num_envs",
        )
        return cls(policy, rows, horizon, mask_size=masks, bptt_horizon=bptt_horizon)

    def _arrays(self) -> None:
        """NumPy views of host tensors, made once: the hot loop never builds one."""
        self._obs_arrays = {key: leaf.numpy() for key, leaf in self.obs.items()}
        self._reward_array, self._valid_array = self.rewards.numpy(), self.valid.numpy()
        self._terminated_array = self.terminated.numpy()
        self._truncated_array = self.truncated.numpy()
        self._action_array = self.actions.numpy()
        self._param_array = self.dist_params.numpy() if self.device.type == "cpu" else np.empty(0)
        self.start_array = self.starts.numpy()
        self.mask_array = None if self.masks is None else self.masks.numpy()

    def obs_slots(self, rows: slice) -> list[dict[str, np.ndarray]]:
        """For each t in 0..T, views ``[n, ...]`` of the observation leaves of some rows."""
        arrays = self._obs_arrays
        return [
            {key: leaf[t, rows] for key, leaf in arrays.items()} for t in range(self.horizon + 1)
        ]

    def rollout_arrays(self, noise: np.ndarray) -> RolloutArrays:
        """The columns that a `FusedVecEnv` fills, of observations with one leaf."""
        ((_, obs),) = self._obs_arrays.items()
        return RolloutArrays(
            obs=obs,
            noise=noise,
            actions=self._action_array,
            rewards=self._reward_array,
            terminated=self._terminated_array,
            truncated=self._truncated_array,
            starts=self.start_array,
            params=self._param_array,
        )

    @property
    def run_columns(self) -> dict[str, Tensor]:
        """What is measured of a rollout: here, all columns."""
        return self.columns

    def begin(self) -> None:
        """Forget the last rollout's sparse entries and columns."""
        if self.device.type == "cuda":  # its transfer may still be reading this memory
            torch.cuda.current_stream(self.device).synchronize()
        self._finals.clear()
        self.lost.clear()
        self.columns = {}

    def action_slots(self, step: int, rows: slice) -> tuple[np.ndarray, np.ndarray]:
        """Where an actor on the CPU writes the actions and distribution parameters of some rows."""
        return self._action_array[step, rows], self._param_array[step, rows]

    def store_action(self, step: int, rows: slice, produced: Mapping[str, Tensor]) -> np.ndarray:
        """Write what the actor produced; returns the stored actions ``[n, ...]`` of these rows."""
        stored: np.ndarray = self._action_array[step, rows]
        stored[...] = produced["action"].numpy(force=True)
        if "value" in produced:
            self.values[step, rows] = produced["value"]
        if "dist_params" in produced:
            self.dist_params[step, rows] = produced["dist_params"]
        return stored

    def store_state(self, step: int, rows: slice, state: State) -> None:
        """Keep the recurrent state at segment starts and, at step T, the carry."""
        if state and step % self.segment_length == 0:
            for key, part in state.items():
                self.states[key][step // self.segment_length, rows] = part

    def store_step(self, step: int, rows: slice, result: StepResult, state: State) -> None:
        """Write what the environment gave; `state` is the recurrent state before any reset."""
        self._reward_array[step, rows] = result.rewards
        self._terminated_array[step, rows] = result.terminated
        self._truncated_array[step, rows] = result.truncated
        self._valid_array[step, rows] = result.valid
        self.start_array[step + 1, rows] = result.starts
        if self.mask_array is not None:
            self.mask_array[step + 1, rows] = result.action_mask
        if result.final is not None:
            self._store_finals(step, rows, result.final, state)
        if result.lost is not None:
            self._store_lost(step, result.lost + rows.start)

    def _store_lost(self, step: int, rows: np.ndarray) -> None:
        """Truncate episodes whose step `step` was never taken at the step before, which bootstraps."""
        for row in rows.tolist():
            if step > 0 and bool(self.terminated[step - 1, row] | self.truncated[step - 1, row]):
                continue  # it had already ended
            self.lost.append((step - 1, row))
            if step > 0:
                self.truncated[step - 1, row] = True

    def _store_finals(self, step: int, rows: slice, final: FinalRows, state: State) -> None:
        local = torch.from_numpy(final.rows)
        kept = {key: part[local.to(part.device)].clone() for key, part in state.items()}
        obs = {key: leaf.copy() for key, leaf in final.obs.items()}
        self._finals.append((step, final.rows + rows.start, obs, kept))

    @torch.no_grad()
    def finalize(
        self, policy: Policy, produced: frozenset[str], value_source: ValueSource | None = None
    ) -> None:
        """Fill `columns`: what the actor did not produce comes from one batched forward.

        A `value_source` gives the values in place of the policy, where the actor gave all but them.

        Values, log-probabilities and ``next_values[t]`` (the value of the state that step t reached,
        before any reset) are the policy's own, in raw reward units. `NonFiniteError` names the column, step
        and row where they are not finite; what environments gave was checked when it came in.
        """
        horizon = self.horizon
        columns: dict[str, Tensor] = {
            obs_column(self.obs_spec, key): self._to_device(leaf[:horizon])
            for key, leaf in self.obs.items()
        }
        for name in ("actions", "rewards", "terminated", "truncated", "valid"):
            columns[name] = self._to_device(getattr(self, name))
        columns["episode_starts"] = self._to_device(self.starts[:horizon])
        if self.masks is not None:
            columns["action_masks"] = self._to_device(self.masks[:horizon])
        for key, part in self.states.items():
            columns[STATE_PREFIX + key] = part[:-1]
        if value_source is None:
            params, values = self._evaluate(policy, produced)
        else:
            params, values = self.dist_params, self._evaluate_with(value_source)
        columns["values"] = values[:horizon]
        columns["log_probs"] = self.action_spec.log_prob(
            params, columns["actions"], columns.get("action_masks")
        )
        columns["next_values"] = self._next_values(policy, values, value_source)
        self.columns = checked_columns(columns, ("values", "log_probs", "next_values"))

    def _evaluate(self, policy: Policy, produced: frozenset[str]) -> tuple[Tensor, Tensor]:
        """Distribution parameters ``[T, N, P]`` and values ``[T + 1, N]``."""
        horizon = self.horizon
        first = horizon if "value" in produced else 0
        state = {key: part[-1 if first else 0] for key, part in self.states.items()}
        span = horizon + 1 - first
        if not policy.is_recurrent:
            span = max(1, ROWS_PER_FORWARD // self.num_rows)
        parts = []
        for begin in range(first, horizon + 1, span):
            steps = slice(begin, begin + span)
            obs = {key: self._to_device(leaf[steps]) for key, leaf in self.obs.items()}
            parts.append(policy(obs, state, self._to_device(self.starts[steps])))
        values = torch.cat([part.value for part in parts])
        params = torch.cat([part.dist_params for part in parts])
        if first:
            return self.dist_params, torch.cat([self.values, values])
        return params[:horizon], values

    def _evaluate_with(self, value_source: ValueSource) -> Tensor:
        """Values ``[T + 1, N]`` of a feed-forward policy, in host memory."""
        flat = {key: leaf.reshape(-1, *leaf.shape[2:]) for key, leaf in self._obs_arrays.items()}
        return torch.from_numpy(value_source.values_of(flat)).view(self.starts.shape)

    def _next_values(
        self, policy: Policy, values: Tensor, value_source: ValueSource | None
    ) -> Tensor:
        next_values = values[1:].clone()
        if not self._finals:
            return next_values
        joined = {
            key: np.concatenate([obs[key] for _, _, obs, _ in self._finals]) for key in self.obs
        }
        state = {key: torch.cat([kept[key] for *_, kept in self._finals]) for key in self.states}
        steps = np.concatenate([np.full(len(rows), step) for step, rows, _, _ in self._finals])
        rows = np.concatenate([rows for _, rows, _, _ in self._finals])
        index = (torch.from_numpy(steps).to(self.device), torch.from_numpy(rows).to(self.device))
        if value_source is not None:
            next_values[index] = torch.from_numpy(value_source.values_of(joined))
            return next_values
        obs = {key: torch.from_numpy(leaf).to(self.device)[None] for key, leaf in joined.items()}
        next_values[index] = policy(obs, state).value[0]
        return next_values

    def _to_device(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, non_blocking=True)


Experience = RolloutBuffer


def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.zeros(0, dtype)).dtype


def checked_columns(columns: dict[str, Tensor], checked: Sequence[str]) -> dict[str, Tensor]:
    """The columns with invalid rows cleared; `NonFiniteError` where a valid row holds NaN or infinity.

    Waits for the device once, unless something is wrong.
    """
    names = [name for name in checked if columns[name].dtype.is_floating_point]
    kind = columns["values"].dtype
    sums = [columns[name].sum(dtype=kind) for name in names]
    *found, all_valid = torch.stack([*sums, columns["valid"].all().to(kind)]).tolist()
    # a sum of finite numbers may be too large
    suspects = [name for name, total in zip(names, found, strict=True) if not math.isfinite(total)]
    _check_finite(columns, suspects)
    return columns if all_valid else _without_invalid(columns)


def _check_finite(columns: Mapping[str, Tensor], names: Sequence[str]) -> None:
    valid = columns["valid"]
    for name in names:
        column = columns[name]
        if not all_finite(column):
            bad = ~column.isfinite().flatten(2).all(-1) if column.dim() > 2 else ~column.isfinite()
            places = (bad & valid).nonzero()
            if len(places):
                step, row = places[0].tolist()
                raise NonFiniteError(
                    f"column {name!r} is not finite at step {step}, row {row} (and "
                    f"{len(places) - 1} more places); look at the environment and the policy there"
                )


def _without_invalid(columns: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies in which no value of an invalid row can spoil a product: 0 * NaN is NaN.

    Finite observations stay, since a recurrent policy has seen them.
    """
    invalid = ~columns["valid"]
    cleared = {name: columns[name] for name in (*FLOAT_COLUMNS, "actions") if name in columns}
    for name, column in cleared.items():
        cleared[name] = column.masked_fill(_match(invalid, column), 0)
    for name, column in columns.items():
        if name.startswith("observations") and column.dtype.is_floating_point:
            cleared[name] = column.masked_fill(_match(invalid, column) & ~column.isfinite(), 0)
    return columns | cleared


def _match(flags: Tensor, column: Tensor) -> Tensor:
    """``[T, N]`` flags with as many axes as a column."""
    return flags.reshape(*flags.shape, *(1,) * (column.dim() - 2))
