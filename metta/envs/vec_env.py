"""The interface of environments to the rest of metta: rows of arrays, stepped in groups.

A *row* is one agent in one environment. Rows are split into `num_groups` contiguous groups of equal size;
`send` starts a step of one group and `recv` ends it, so that with two groups one can step while the
policy acts for the other. Every backend splits and numbers rows in the same way, so backends agree to
the bit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast, runtime_checkable

import numpy as np
from gymnasium import spaces

from metta.errors import ConfigError
from metta.spaces import ObsSpec

__all__ = [
    "EPISODE_RETURN",
    "LIFE_LOST",
    "FinalRows",
    "FusedVecEnv",
    "ObsArrays",
    "RestorableVecEnv",
    "RestoreClass",
    "RestoreSupport",
    "RolloutArrays",
    "StepResult",
    "TaskedVecEnv",
    "VecEnv",
    "agents_per_env",
    "find_support",
    "fused_env_of",
    "gives_finite",
    "group_slices",
]

ObsArrays = Mapping[str, np.ndarray]
"""One array ``[n, ...]`` per observation leaf."""
EPISODE_RETURN = "metta/return"
"""Among the numbers of an ended episode: its return, where rewards are not in the units of the score."""
LIFE_LOST = "metta/life_lost"
"""Among the numbers of a step that ends no episode: a life was lost in it, and the game goes on."""


@dataclass(slots=True)
class FinalRows:
    """Last observations of episodes that were cut short, before their reset: a sparse set of rows."""

    rows: np.ndarray
    """``[K]`` int64, counted from the first row of the group."""
    obs: ObsArrays
    """``[K, ...]`` per leaf."""


@dataclass(slots=True)
class StepResult:
    """What one step of a group of ``n`` rows gave.

    Arrays belong to the environment and are valid until the next `send` of the same group: copy what
    you keep.
    """

    rewards: np.ndarray
    """``[n]`` float32, in the environment's own units."""
    terminated: np.ndarray
    """``[n]`` bool: the episode reached a terminal state in this step."""
    truncated: np.ndarray
    """``[n]`` bool: the episode was cut short in this step (time limit)."""
    valid: np.ndarray
    """``[n]`` bool: the action was really taken; False for dead agents and autoreset-only steps."""
    starts: np.ndarray
    """``[n]`` bool: the observation now in place is the first of an episode."""
    action_mask: np.ndarray | None = None
    """``[n, M]`` bool, True where an action is legal for the observation now in place."""
    final: FinalRows | None = None
    """True last observations of the rows with `truncated` set (and not `terminated`)."""
    infos: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    """Numbers that environments reported at the end of an episode, or `LIFE_LOST` within it: (row in
    group, name -> value)."""
    lost: np.ndarray | None = None
    """``[K]`` int64 rows whose worker died before this step was taken and which are now at the start of
    a fresh episode: `valid` is False and `starts` True there; the episode before it is not counted."""


RestoreClass = Literal["snapshot", "repeat", "sync_reset", "boundary"]
"""How environments come back: by their state, by repeating an episode's actions, by beginning anew after
every checkpoint in every run alike (the trainer does that), or not at all."""


@dataclass(frozen=True)
class RestoreSupport:
    """What a resumed run may expect of its environments, found by trying it on a throwaway instance."""

    restore_class: RestoreClass
    reason: str
    """Why it is not a better one; empty for `snapshot`."""

    def describe(self) -> str:
        """One line for people."""
        expected = {
            "snapshot": "a resumed run is equal to the bit",
            "repeat": "a resumed run is equal to the bit, after repeating unfinished episodes",
            "sync_reset": "a resumed run is equal to the bit, because every run begins fresh episodes "
            "after each checkpoint",
            "boundary": "a resumed run begins fresh episodes, and differs from an uninterrupted one",
        }[self.restore_class]
        return f"environments are of class {self.restore_class}: {expected}" + (
            f" (because {self.reason})" if self.reason else ""
        )


@runtime_checkable
class VecEnv(Protocol):
    """Many rows, one interface: in-process, in worker processes, or natively vectorised."""

    observation_space: spaces.Space[Any]
    """Space of one row."""
    action_space: spaces.Space[Any]
    """Space of one row."""
    obs_spec: ObsSpec
    num_rows: int
    num_groups: int
    mask_size: int
    """Number of entries of an action mask, 0 where the environment has none."""

    @property
    def num_resets(self) -> int:
        """How often `reset` was called: holders of observations can see a reset by other code."""
        ...

    def reset(self, seeds: Sequence[int], obs_out: ObsArrays) -> StepResult:
        """Begin an episode in every row (one seed each) and write observations ``[num_rows, ...]``.

        The result covers all rows: rewards are 0, `valid` and `starts` are True. Steps under way are
        dropped. The seed of a row's k-th episode after this is a function of its seed and k alone
        (`row_spec.episode_seed`), except for vector environments, which reset themselves.
        """
        ...

    def send(self, group: int, actions: np.ndarray) -> None:
        """Start a step of one group with actions ``[n, ...]`` in the action space's own units."""
        ...

    def recv(self, group: int, obs_out: ObsArrays) -> StepResult:
        """Finish that step; observations are written to `obs_out` ``[n, ...]``, the one copy made."""
        ...

    def close(self) -> None:
        """Release environments and workers; may be called more than once."""
        ...


@runtime_checkable
class RestorableVecEnv(VecEnv, Protocol):
    """A `VecEnv` whose environments can be part of a checkpoint."""

    def prepare_restore(self, wanted: RestoreClass | Literal["auto"] = "auto") -> RestoreSupport:
        """Find the best class available, or check that the `wanted` one works, and keep what it needs.

        Without this call environments are of class `boundary`. A wanted class that fails its test is a
        `ConfigError`.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """A copy of every environment's state: ``{"class": ...}`` and what that class needs.

        Only between steps: `EnvError` while one is under way.
        """
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> ObsArrays | None:
        """Restore every environment; not a reset, and steps may follow at once.

        After a state of class `boundary`, which restores nothing, `reset` comes next.
        Returns observations ``[num_rows, ...]`` where they were seen again (`repeat`), for the caller to
        compare with those it holds; None where there is nothing to compare. `StateError` where the state
        does not fit.
        """
        ...


@runtime_checkable
class TaskedVecEnv(VecEnv, Protocol):
    """A `VecEnv` whose environments play tasks of a table; see `agents_per_env` for its rows."""

    num_tasks: int

    @property
    def tasks(self) -> np.ndarray:
        """``[num_envs]`` int32: what each environment plays now."""
        ...

    @property
    def next_tasks(self) -> np.ndarray:
        """``[num_envs]`` int32: the task of its next episode, at a reset too.

        Write to it between steps. A scheduler sets an environment's next task when its
        episode has begun (`starts`).
        """
        ...


@dataclass(frozen=True, slots=True)
class RolloutArrays:
    """Columns of a rollout of T steps and N rows, which a `FusedVecEnv` reads and writes."""

    obs: np.ndarray
    """``[T + 1, N, ...]`` of the only leaf."""
    noise: np.ndarray
    """``[T, N, num_actions]`` float32, only read."""
    actions: np.ndarray
    """``[T, N]`` int64."""
    rewards: np.ndarray
    """``[T, N]`` float32."""
    terminated: np.ndarray
    """``[T, N]`` bool."""
    truncated: np.ndarray
    """``[T, N]`` bool."""
    starts: np.ndarray
    """``[T + 1, N]`` bool."""
    params: np.ndarray
    """``[T, N, num_actions]`` float32: the logits of the actions."""

    def in_order(self) -> tuple[np.ndarray, ...]:
        """All arrays, as the C kernels take them."""
        return (
            self.obs,
            self.noise,
            self.actions,
            self.rewards,
            self.terminated,
            self.truncated,
            self.starts,
            self.params,
        )


@runtime_checkable
class FusedVecEnv(VecEnv, Protocol):
    """A `VecEnv` in C that steps without Python as long as an actor in C chooses its actions.

    Of one observation array, with actions ``Discrete`` from 0 on and without masks; every step is valid.
    Use `fused_env_of` to find one: a wrapper or a subclass may have changed what a step is.
    """

    @property
    def is_fusable(self) -> bool:
        """Whether the kernels that this needs were built."""
        ...

    def run_steps(
        self, actor: object, rollout: RolloutArrays, first_step: int
    ) -> tuple[int, StepResult | None]:
        """Act and step in all rows from `first_step` on, until something happens or the rollout ends.

        `actor` is a capsule such as `CActor.fused_actor`. Returns the step that comes next, and the result
        of the last step taken where it holds more than the arrays do: last observations of episodes that
        were cut short, or numbers of episodes that ended.
        """
        ...


_STEPPING = ("send", "recv", "run_steps")


def fused_env_of(env: VecEnv) -> FusedVecEnv | None:
    """The environment if it can step without Python, and nothing overrides its steps."""
    owner = next((kind for kind in type(env).__mro__ if "run_steps" in vars(kind)), None)
    if owner is None or env.mask_size or any(name in vars(env) for name in _STEPPING):
        return None
    if any(getattr(type(env), name, None) is not vars(owner).get(name) for name in _STEPPING):
        return None
    # owning all three, it is one: asking the protocol takes longer than some rollouts
    fused = cast("FusedVecEnv", env)
    return fused if fused.is_fusable else None


def find_support(env: VecEnv, wanted: RestoreClass | Literal["auto"] = "auto") -> RestoreSupport:
    """How environments can be restored; those without their own state only by fresh episodes."""
    if isinstance(env, RestorableVecEnv):
        return env.prepare_restore(wanted)
    if wanted == "sync_reset":
        return RestoreSupport("sync_reset", "")
    if wanted in ("snapshot", "repeat"):
        raise ConfigError(
            f"env_restore={wanted!r} needs an environment with prepare_restore, state_dict and "
            f"load_state_dict, which {type(env).__name__} lacks; use 'auto' or 'sync_reset'"
        )
    return RestoreSupport("boundary", f"{type(env).__name__} has no state_dict")


def gives_finite(vec_env: VecEnv) -> bool:
    """Whether it declares (``gives_finite = True``) that it refuses NaN and infinity, as all of metta's do.

    Its reader looks for them in all others. A subclass or wrapper that changes numbers sets False.
    """
    return bool(getattr(vec_env, "gives_finite", False))


def agents_per_env(vec_env: VecEnv) -> int:
    """How many neighbouring rows belong to one environment: 1 if it does not declare it."""
    return int(getattr(vec_env, "agents_per_env", 1))


def group_slices(num_rows: int, num_groups: int) -> list[slice]:
    """The rows of each group: contiguous and of equal size."""
    if num_groups < 1 or num_rows % num_groups:
        legal = max(1, num_groups) * max(1, round(num_rows / max(1, num_groups)))
        raise ConfigError(
            f"{num_rows} environments do not split into num_groups={num_groups} equal groups; "
            f"try num_envs={legal} or num_groups=1"
        )
    size = num_rows // num_groups
    return [slice(group * size, (group + 1) * size) for group in range(num_groups)]
