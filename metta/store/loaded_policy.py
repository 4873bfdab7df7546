"""`load_policy`: a saved policy that acts, from its file alone."""

import os
from collections.abc import Mapping
from typing import Any, overload

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from metta.agent.actions.action_spec import draw_noise
from metta.agent.actors.actor import EagerActor
from metta.agent.evaluation_mode import evaluating
from metta.agent.output import State
from metta.agent.policy import Policy
from metta.agent.policy_record import PolicyRecord
from metta.envs.rows.action_masks import mask_layout_of
from metta.errors import NonFiniteError, PolicyError
from metta.seeding import numpy_generator
from metta.store.policy_store import PolicyStore

__all__ = ["LoadedPolicy", "load_policy"]


def load_policy(
    uri: str | os.PathLike[str],
    policy: nn.Module | None = None,
    *,
    device: str | torch.device = "cpu",
    sha256: str | None = None,
    runs: str | os.PathLike[str] = "runs",
) -> "LoadedPolicy":
    """A saved policy that acts; needs only its file, no environment and no run.

        agent = metta.load_policy("first:best")      # or a path, file://..., first:latest, first:v120
        action = agent.act(observation)

    Pass your own network as `policy`; metta's networks are rebuilt. `sha256` pins the file.
    """
    record = PolicyStore(runs).load(uri, policy=policy, sha256=sha256)
    assert record.policy is not None, "load gives the policy"
    record.policy = record.policy.to(device)
    return LoadedPolicy(record)


class LoadedPolicy:
    """A policy with the state of the episodes it plays.

        agent = metta.load_policy("policy.safetensors")
        observation, _ = env.reset()
        agent.reset()                                     # an episode begins
        action = agent.act(observation)                   # as env.step takes it

    Actions are drawn from this object's own random stream, the same after each `load_policy`; `reset` with
    a seed begins another. The global generators are never used.
    """

    def __init__(self, record: PolicyRecord) -> None:
        if record.policy is None:
            raise PolicyError(f"the record of {record.uri!r} has no policy; load it first")
        self.record = record
        self.policy: Policy = record.policy
        self.seed = 0
        self._step = 0
        self._state: State | None = None
        self._num_rows = 0

    @property
    def metadata(self) -> dict[str, Any]:
        """What was saved beside the weights, e.g. the score."""
        return self.record.metadata

    @property
    def observation_space(self) -> spaces.Space[Any]:
        """Of one observation."""
        return self.policy.observation_space

    @property
    def action_space(self) -> spaces.Space[Any]:
        """Of one action."""
        return self.policy.action_space

    def reset(self, *, seed: int | None = None) -> None:
        """Begin new episodes in all rows; with a `seed`, begin its stream of random numbers too."""
        self._state = None
        if seed is not None:
            self.seed, self._step = seed, 0

    def initial_state(self, num_rows: int = 1) -> State:
        """A state to pass to `act` before the first observation."""
        return self.policy.initial_state(num_rows)

    @overload
    def act(
        self,
        obs: Any,
        state: None = None,
        *,
        starts: Any = None,
        greedy: bool = False,
        action_mask: Any = None,
        generator: np.random.Generator | None = None,
    ) -> Any: ...

    @overload
    def act(
        self,
        obs: Any,
        state: State,
        *,
        starts: Any = None,
        greedy: bool = False,
        action_mask: Any = None,
        generator: np.random.Generator | None = None,
    ) -> tuple[Any, State]: ...

    def act(
        self,
        obs: Any,
        state: State | None = None,
        *,
        starts: Any = None,
        greedy: bool = False,
        action_mask: Any = None,
        generator: np.random.Generator | None = None,
    ) -> Any:
        """The action for one observation, or actions ``[n, ...]`` of a batch, as environments take them.

        `obs` is what the environment returns, nested as its space is. `starts` ``[n]`` marks rows in which
        an episode begins. Without `state`, this object keeps a recurrent policy's state until `reset`; with
        one, it keeps nothing and returns (action, next state). `greedy` takes the most likely action. A
        mask inside the observation is used if `action_mask` is not given.
        """
        leaves, num_rows, is_one = self._leaves(obs)
        before, begins = self._before(state, starts, num_rows)
        mask = self._mask(obs, action_mask, num_rows, is_one)
        spec = self.policy.action_spec
        if generator is None:
            generator = numpy_generator(self.seed, "acting", index=self._step)
        noise = draw_noise(spec, generator, 1, num_rows)[0]
        with evaluating(self.policy), torch.no_grad():
            found, after = EagerActor(self.policy).act(leaves, before, begins, mask, noise)
            params, action = found["dist_params"], found["action"]
            if bool(params.isnan().any()):
                raise NonFiniteError(
                    "the policy gives NaN for this observation; check whether it holds NaN or infinity"
                )
            if greedy:
                legal = None if mask is None else torch.from_numpy(mask).to(params.device)
                action = spec.mode(params, legal)
        actions = spec.to_env(action.cpu().numpy())
        result = actions[0] if is_one else actions
        if state is not None:
            return result, after
        self._state, self._num_rows, self._step = after, num_rows, self._step + 1
        return result

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
        *,
        action_masks: Any = None,
    ) -> tuple[Any, Any]:
        """Action and next recurrent state, as Stable-Baselines3 has it; `act` is the shorter way.

            action, state = agent.predict(observation, state, episode_start, deterministic=True)

        `observation` is one or a batch; without `state` every row begins anew. The state is a dict of
        arrays, to pass to the next call, and None for policies without memory.
        """
        if isinstance(observation, tuple) and not isinstance(self.observation_space, spaces.Tuple):
            raise PolicyError(
                "predict() got a tuple, as env.reset() returns it: (observation, info); write "
                "observation, info = env.reset(), and pass the observation alone"
            )
        num_rows = self._leaves(observation)[1]
        before = self.policy.initial_state(num_rows) if state is None else _tensors(state)
        generator = numpy_generator(self.seed, "acting", index=self._step)
        self._step += 1
        starts = None if episode_start is None else np.broadcast_to(episode_start, num_rows)
        action, after = self.act(
            observation,
            before,
            starts=starts,
            greedy=deterministic,
            action_mask=action_masks,
            generator=generator,
        )
        return action, {name: part.cpu().numpy() for name, part in after.items()} or None

    def _leaves(self, obs: Any) -> tuple[dict[str, np.ndarray], int, bool]:
        """Leaves ``[n, ...]``, n, and whether it was one observation and not a batch."""
        spec = self.policy.obs_spec
        first = spec.leaves[0]
        lead = np.ndim(first.value_in(obs)) - len(first.shape)
        if lead not in (0, 1):
            raise PolicyError(
                f"observation {first.key!r} has shape {np.shape(first.value_in(obs))}; one observation has "
                f"{first.shape}, a batch has one axis before it"
            )
        num_rows = len(first.value_in(obs)) if lead else 1
        leaves = spec.zeros(num_rows)
        spec.write(obs, leaves, slice(0, num_rows) if lead else 0)
        return leaves, num_rows, not lead

    def _before(self, state: State | None, starts: Any, num_rows: int) -> tuple[State, np.ndarray]:
        """The state before this step, and in which rows an episode begins."""
        begins = np.zeros(num_rows, bool)
        if starts is not None:
            begins = np.array(starts, dtype=bool).reshape(-1)
            if len(begins) != num_rows:
                raise PolicyError(f"starts has {len(begins)} entries for {num_rows} observations")
        if state is not None:
            return self._checked(state, num_rows), begins
        if self._state is None:
            return self.policy.initial_state(num_rows), np.ones(num_rows, bool)
        if self.policy.is_recurrent and num_rows != self._num_rows:
            raise PolicyError(
                f"{num_rows} observations follow {self._num_rows}; call reset() when other episodes "
                "begin, or pass state="
            )
        return self._state, begins

    def _checked(self, state: State, num_rows: int) -> State:
        wanted = self.policy.initial_state(num_rows)
        shapes = [{k: tuple(v.shape) for k, v in part.items()} for part in (state, wanted)]
        if shapes[0] != shapes[1]:
            raise PolicyError(
                f"the state has {shapes[0]}, but {num_rows} observations need {shapes[1]}; begin with "
                "initial_state(num_rows)"
            )
        return {name: part.to(self.policy.device) for name, part in state.items()}

    def _mask(self, obs: Any, given: Any, num_rows: int, is_one: bool) -> np.ndarray | None:
        """Legal actions ``[n, M]``, given or inside the observation; None if all are legal."""
        spec = self.policy.obs_spec
        if given is None and spec.mask_path is not None:
            given = spec.mask_of(obs)
        if given is None:
            return None
        layout = mask_layout_of(self.policy.action_space)
        if layout is None:
            raise PolicyError(f"actions of {self.policy.action_space} cannot be masked")
        mask = np.zeros((num_rows, layout.size), bool)
        for row in range(num_rows):
            layout.write(given if is_one else _row_of(given, row), mask[row])
        return mask


def _row_of(masks: Any, row: int) -> Any:
    """One row of masks ``[n, M]``, or of one array ``[n, m]`` for each action part."""
    try:
        if isinstance(masks, tuple):
            return tuple(part[row] for part in masks)
        return masks[row]
    except (IndexError, TypeError) as error:
        raise PolicyError(f"there is no action mask for observation {row}: {error}") from error


def _tensors(state: Any) -> State:
    """A state that `predict` returned."""
    if not isinstance(state, Mapping):
        raise PolicyError(
            f"predict() got a {type(state).__name__} as its state; pass what the last call returned, or "
            "None where episodes begin"
        )
    return {name: torch.as_tensor(part) for name, part in state.items()}
