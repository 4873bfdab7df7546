"""`MettaAgent`: a built-in agent made for an environment."""

from collections.abc import Mapping
from typing import Any

from metta.agent.factory import build_network
from metta.agent.policy import Policy
from metta.errors import ConfigError, PolicyError
from metta.train.train_config import AgentConfig, TrainerConfig, TrainingConfig

__all__ = ["MettaAgent", "PolicyAgent"]

PolicyAgent = Policy
"""Anything that trains and acts."""


class MettaAgent(Policy):
    """The agent that `agent_cfg` names, for the spaces of `env`, on the device of `system_cfg`.

        policy = MettaAgent(env, system_cfg, agent_cfg)

    `env` is a gymnasium environment (single or vector) or a `VecEnv`. `system_cfg` is a `TrainerConfig`
    or a mapping, of which `seed` and `device` count; `agent_cfg` is an `AgentConfig` or a mapping. A whole
    `TrainingConfig` may be either, or both if only one is given.
    """

    def __init__(
        self,
        env: Any,
        system_cfg: TrainerConfig | TrainingConfig | Mapping[str, Any] | None = None,
        agent_cfg: AgentConfig | TrainingConfig | Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(system_cfg, TrainingConfig):
            agent_cfg = system_cfg.agent if agent_cfg is None else agent_cfg
            system_cfg = system_cfg.trainer
        if isinstance(agent_cfg, TrainingConfig):
            system_cfg = agent_cfg.trainer if system_cfg is None else system_cfg
            agent_cfg = agent_cfg.agent
        if isinstance(agent_cfg, Mapping):
            agent_cfg = TrainingConfig.from_dict({"agent": dict(agent_cfg)}).agent
        if isinstance(system_cfg, Mapping):
            known = {k: v for k, v in system_cfg.items() if k in ("seed", "device")}
            system_cfg = TrainerConfig(**known)
        for given, kind in ((system_cfg, TrainerConfig), (agent_cfg, AgentConfig)):
            if not isinstance(given, kind | None):
                raise ConfigError(
                    f"MettaAgent(env, system_cfg, agent_cfg): found a {type(given).__name__} where a "
                    f"{kind.__name__}, a TrainingConfig or a mapping of settings is wanted"
                )
        agent, system = agent_cfg or AgentConfig(), system_cfg or TrainerConfig()
        # a gymnasium vector environment keeps the space of one row apart
        observation_space, action_space = (
            getattr(env, f"single_{name}", None) or getattr(env, name, None)
            for name in ("observation_space", "action_space")
        )
        if observation_space is None or action_space is None:
            raise PolicyError(
                f"{type(env).__name__} has no observation_space and action_space; give an environment"
            )
        module = build_network(observation_space, action_space, agent, seed=system.seed)
        super().__init__(module, observation_space, action_space, agent)
        if system.device != "auto":
            self.to(system.device)
