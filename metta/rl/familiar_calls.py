"""What hands that know other libraries type: `predict`, and answers for names that are not here."""

from typing import TYPE_CHECKING, Any

from metta.agent.policy import Policy
from metta.agent.policy_record import PolicyRecord
from metta.store.loaded_policy import LoadedPolicy
from metta.train.train_config import TrainingConfig

__all__ = ["FamiliarCalls"]

_PLAYED = "metta.sim.run_episodes(trainer.policy, make_vec_env(env), 20, seed=1)"
_REPLACEMENTS = {
    "fit": "trainer.train(total_timesteps)",
    "learn_steps": "trainer.train(total_timesteps)",
    "set_env": "PPOTrainer(trainer.policy, env), which keeps the weights",
    "get_env": "trainer.env",
    "get_vec_normalize_env": "trainer.policy.obs_normalizer",
    "get_parameters": "trainer.policy.state_dict()",
    "set_parameters": "trainer.policy.load_state_dict(weights)",
    "num_timesteps": "trainer.state.agent_step",
    "n_envs": "trainer.env.num_rows",
    "n_steps": "trainer.config.trainer.rollout.horizon",
    "gamma": "trainer.config.trainer.ppo.gamma",
    "learning_rate": "trainer.config.trainer.optimizer.learning_rate",
    "rollout_buffer": "trainer.collector.experience",
    "observation_space": "trainer.policy.observation_space",
    "action_space": "trainer.policy.action_space",
    "logger": "trainer.train(hooks=[MetricsHook(...)])",
    "set_logger": "trainer.train(hooks=[MetricsHook(logger=...)])",
    "set_random_seed": "PPOTrainer(..., seed=1)",
    "evaluate": _PLAYED,
    "evaluate_policy": _PLAYED,
    "step": "trainer.train(total_timesteps), or collect_rollouts() and learn()",
    "stop": "trainer.close()",
    "save_checkpoint": "trainer.save(folder)",
    "restore": "trainer.load(folder)",
    "compute_single_action": "trainer.predict(observation)",
    "compute_actions": "trainer.predict(observations)",
    "act": "trainer.predict(observation)",
    "get_action": "trainer.predict(observation)",
    "get_policy": "trainer.policy",
    "model": "trainer.policy",
}
"""Name elsewhere -> what to write here."""


class FamiliarCalls:
    """Base of `PPOTrainer`: it plays the trainer's own policy, and never touches the training."""

    policy: Policy
    config: TrainingConfig
    _player: LoadedPolicy | None = None

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
        *,
        action_masks: Any = None,
    ) -> tuple[Any, Any]:
        """Action and next recurrent state: `LoadedPolicy.predict` with the weights of this moment.

        Random actions are drawn from a stream of their own: training does not change with calls of it.
        """
        if self._player is None or self._player.policy is not self.policy:
            record = PolicyRecord("trainer", "policy", 0, 0, policy=self.policy)
            self._player = LoadedPolicy(record)
            self._player.reset(seed=self.config.trainer.seed)
        return self._player.predict(
            observation, state, episode_start, deterministic, action_masks=action_masks
        )

    if not TYPE_CHECKING:  # or any attribute would be one for type checkers

        def __getattr__(self, name: str) -> Any:
            kind = type(self).__name__
            instead = _REPLACEMENTS.get(name)
            hint = f"; write {instead}" if instead else ""
            raise AttributeError(
                f"{kind!r} object has no attribute {name!r}{hint}", name=name, obj=self
            )
