"""What wrappers of a `VecEnv` have in common."""

from typing import Any, Literal

from metta.envs.vec_env import RestoreClass, RestoreSupport, VecEnv, find_support

__all__ = ["VecEnvWrapper"]


_NOT_PASSED_ON = ("inner", "run_steps", "is_fusable")
"""Fused rollouts would bypass the wrapper."""


class VecEnvWrapper:
    """Base of wrappers around `inner`; attributes that it does not define are those of `inner`."""

    def __init__(self, inner: VecEnv) -> None:
        self.inner = inner
        self.action_space, self.mask_size = inner.action_space, inner.mask_size
        self.num_groups = inner.num_groups

    def __getattr__(self, name: str) -> Any:
        """Tasks, agents, views, workers and restarts are those of the environments below."""
        if name in _NOT_PASSED_ON:
            raise AttributeError(name)
        return getattr(self.inner, name)

    @property
    def num_resets(self) -> int:
        """How often `reset` was called."""
        return self.inner.num_resets

    def prepare_restore(self, wanted: RestoreClass | Literal["auto"] = "auto") -> RestoreSupport:
        """What the environments below can do."""
        return find_support(self.inner, wanted)

    def close(self) -> None:
        """Close the environments."""
        self.inner.close()
