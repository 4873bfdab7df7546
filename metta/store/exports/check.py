"""Compares an exported policy with the policy, on random observations of several batch sizes."""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from metta.agent.actions.action_spec import ActionSpec
from metta.agent.actors.actor import EagerActor
from metta.agent.actors.check import random_mask, random_obs, same_actions
from metta.agent.evaluation_mode import evaluating
from metta.agent.output import State
from metta.agent.policy import Policy
from metta.errors import PolicyError
from metta.seeding import numpy_generator
from metta.spaces import MASK_KEY
from metta.store.exports.graph import obs_name

__all__ = ["check_exported", "example_inputs"]

_BATCHES = (1, 2, 7, 32)
_STEPS = 4
_TOLERANCE = 1e-4

Run = Callable[[Mapping[str, Tensor]], dict[str, np.ndarray]]


def example_inputs(
    policy: Policy, num_rows: int, *, with_mask: bool, seed: int = 0, state: State | None = None
) -> dict[str, Tensor]:
    """Random inputs of an exported policy, by name, on the CPU."""
    generator = numpy_generator(seed, "export")
    obs = random_obs(policy.obs_spec, generator, num_rows)
    inputs = {obs_name(policy, key): torch.from_numpy(leaf) for key, leaf in obs.items()}
    if policy.is_recurrent:
        state = policy.initial_state(num_rows) if state is None else state
        inputs |= {f"state/{part}": value.detach().cpu() for part, value in state.items()}
        inputs["starts"] = torch.from_numpy(generator.random(num_rows) < 0.2)
    if with_mask:
        mask = random_mask(policy.action_spec, generator, num_rows)
        assert mask is not None
        mask[:, generator.integers(mask.shape[1])] = True
        inputs[MASK_KEY] = torch.from_numpy(mask)
    return inputs


def check_exported(run: Run, policy: Policy, *, with_mask: bool) -> float:
    """The largest difference between the outputs of `run` and the policy; too large is a `PolicyError`.

    Numbers may differ by 1e-4 of the largest of their row. Discrete actions must be equal, unless two are
    tied within that rounding.
    """
    worst = 0.0
    with evaluating(policy):
        for num_rows in _BATCHES:
            state = policy.initial_state(num_rows)
            for step in range(_STEPS):
                inputs = example_inputs(
                    policy, num_rows, with_mask=with_mask, seed=step, state=state
                )
                try:
                    found = run(inputs)
                except Exception as error:
                    raise PolicyError(
                        f"the exported policy failed for {num_rows} rows: {type(error).__name__}: {error}"
                    ) from error
                wanted, state = _wanted(policy, inputs)
                worst = max(worst, _compare(policy.action_spec, inputs, wanted, found))
    return worst


def _wanted(policy: Policy, inputs: Mapping[str, Tensor]) -> tuple[dict[str, np.ndarray], State]:
    """The outputs of the policy itself, computed as in training and evaluation."""
    obs = {leaf.key: inputs[obs_name(policy, leaf.key)].numpy() for leaf in policy.obs_spec.leaves}
    num_rows = len(next(iter(obs.values())))
    state, starts = {}, np.zeros(num_rows, bool)
    if policy.is_recurrent:
        parts = policy.initial_state(1)
        state = {part: inputs[f"state/{part}"].to(policy.device) for part in parts}
        starts = inputs["starts"].numpy()
    noise = np.zeros((num_rows, policy.action_spec.noise_dim), np.float32)
    produced, after = EagerActor(policy).act(obs, state, starts, None, noise)
    params = produced["dist_params"].cpu()
    mode = policy.action_spec.mode(params, inputs.get(MASK_KEY))
    wanted = {
        "dist_params": params.numpy(),
        "value": produced["value"].cpu().numpy(),
        "action": policy.action_spec.to_env(mode.numpy()),
    }
    states = {f"next_state/{part}": value.detach().cpu() for part, value in after.items()}
    return wanted | {part: value.numpy() for part, value in states.items()}, after


def _compare(
    spec: ActionSpec,
    inputs: Mapping[str, Tensor],
    wanted: Mapping[str, np.ndarray],
    found: Mapping[str, np.ndarray],
) -> float:
    if found.keys() != wanted.keys():
        raise PolicyError(f"the exported policy gives {sorted(found)}, not {sorted(wanted)}")
    worst = 0.0
    for name, values in wanted.items():
        if found[name].shape != values.shape or found[name].dtype != values.dtype:
            raise PolicyError(
                f"the exported policy gives {name} as {found[name].dtype}{found[name].shape}, not as "
                f"{values.dtype}{values.shape}"
            )
        if values.dtype.kind == "f":
            worst = max(worst, _difference(name, spec, values, found[name]))
    if wanted["action"].dtype.kind != "f":
        _require_same_choice(spec, inputs, wanted, found["action"])
    return worst


def _difference(name: str, spec: ActionSpec, wanted: np.ndarray, found: np.ndarray) -> float:
    """Largest deviation, relative to the largest number of its row (of actions: or of their bounds)."""
    rows = len(wanted)
    first, second = (values.reshape(rows, -1).astype(np.float64) for values in (wanted, found))
    with np.errstate(invalid="ignore"):
        same = (first == second) | (np.isnan(first) & np.isnan(second))
        gaps = np.where(same, 0.0, np.abs(first - second))
    sizes = np.abs(first).max(-1, initial=0.0, where=np.isfinite(first))
    if name == "action":
        bounds = np.abs([getattr(spec, "low", 0.0), getattr(spec, "high", 0.0)])
        sizes = np.maximum(sizes, bounds.max(initial=0.0, where=np.isfinite(bounds)))
    worst = float((gaps.max(-1, initial=0.0) / (1.0 + sizes)).max(initial=0.0))
    if not worst <= _TOLERANCE:
        raise PolicyError(
            f"the exported policy disagrees with the policy: {name} differs by {worst:.2g} of the largest "
            f"number, more than {_TOLERANCE:g}"
        )
    return worst


def _require_same_choice(
    spec: ActionSpec,
    inputs: Mapping[str, Tensor],
    wanted: Mapping[str, np.ndarray],
    found: np.ndarray,
) -> None:
    params = torch.from_numpy(wanted["dist_params"])
    starts = np.asarray(getattr(spec, "starts", getattr(spec, "start", 0)))
    rows = found.reshape(len(found), *spec.action_shape).astype(np.int64)
    noise = torch.zeros(len(found), spec.noise_dim)
    stored = torch.from_numpy(rows - starts)
    if spec.action_shape == ():
        stored = stored.reshape(len(found))
    if not same_actions(spec, params, noise, inputs.get(MASK_KEY), stored):
        raise PolicyError(
            f"the exported policy disagrees with the policy: it chooses {found.tolist()} instead of "
            f"{wanted['action'].tolist()}"
        )
