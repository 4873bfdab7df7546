"""`HeldPolicy`: a policy's file that is held open, with the record of what was found."""

from dataclasses import dataclass
from typing import Any

from gymnasium import spaces
from gymnasium.vector import VectorEnv
from torch import nn

from metta.agent.factory import as_policy, make_policy
from metta.agent.policy import Policy
from metta.agent.policy_record import PolicyRecord
from metta.envs.factory import make_vec_env
from metta.errors import PolicyError
from metta.store.policies.file import OpenPolicy, put_weights
from metta.store.policies.rebuilding import agent_settings, rebuild_policy, require_fit

__all__ = ["HeldPolicy", "spaces_of"]


@dataclass(frozen=True)
class HeldPolicy:
    """A record, and the open file that its policy is read from."""

    record: PolicyRecord
    file: OpenPolicy

    def load(self, env: Any = None, policy: nn.Module | None = None) -> PolicyRecord:
        """The record with its policy; see `PolicyStore.load`."""
        if env is None or isinstance(policy, Policy):
            self.record.policy = rebuild_policy(self.file, policy)
            return self.record
        built = self._build(env, policy)
        try:
            put_weights(self.file, built)
        except PolicyError as error:
            if policy is not None or self.record.metadata.get("agent"):
                raise
            raise PolicyError(
                f"{error}; the file does not say how its network is built, so the default agent was "
                "tried: pass yours as policy="
            ) from error
        self.record.policy = built
        return self.record

    def _build(self, env: Any, policy: nn.Module | None) -> Policy:
        settings = self.record.metadata.get("agent") or {}
        # the defaults where the file has no settings, which the weights then have to fit
        config, needed = agent_settings(self.file.path, settings), spaces_of(env)
        if policy is not None:
            return as_policy(policy, *needed, config, seed=0)
        if settings:  # the default is small
            require_fit(self.file, config, needed)
        return make_policy(*needed, config)


def spaces_of(env: Any) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    """Observation and action space of one row of whatever names or is an environment."""
    if isinstance(env, VectorEnv):
        return env.single_observation_space, env.single_action_space
    if hasattr(env, "observation_space") and not isinstance(env, type):  # a class is a factory
        return env.observation_space, env.action_space
    made = make_vec_env(env)
    made.close()
    return made.observation_space, made.action_space
