"""PPO of skrl, on torch."""

import tempfile
from typing import Any

import gymnasium
from job_settings import read_settings, report
from skrl.agents.torch.ppo import PPO
from skrl.agents.torch.ppo.ppo_cfg import PPO_CFG
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import CategoricalMixin, DeterministicMixin, Model
from skrl.trainers.torch import SequentialTrainer
from torch import nn


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    """Two hidden layers of 64 tanh units."""
    return nn.Sequential(
        nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
    )


class Actor(CategoricalMixin, Model):
    """Logits."""

    def __init__(self, env: Any) -> None:
        Model.__init__(
            self,
            observation_space=env.observation_space,
            action_space=env.action_space,
            device="cpu",
        )
        CategoricalMixin.__init__(self, unnormalized_log_prob=True)
        self.layers = mlp(self.num_observations, self.num_actions)

    def compute(self, inputs: Any, role: str) -> Any:  # noqa: ARG002  # skrl's signature
        """One forward."""
        return self.layers(inputs["observations"]), {}


class Critic(DeterministicMixin, Model):
    """Values."""

    def __init__(self, env: Any) -> None:
        Model.__init__(
            self,
            observation_space=env.observation_space,
            action_space=env.action_space,
            device="cpu",
        )
        DeterministicMixin.__init__(self)
        self.layers = mlp(self.num_observations, 1)

    def compute(self, inputs: Any, role: str) -> Any:  # noqa: ARG002  # skrl's signature
        """One forward."""
        return self.layers(inputs["observations"]), {}


class ReportingPPO(PPO):
    """Reports after every update."""

    updates = 0

    def update(self, *args: Any, **kwargs: Any) -> Any:
        """Learn, then report."""
        result = super().update(*args, **kwargs)
        self.updates += 1
        report(self.updates * s.batch)
        return result


def config() -> PPO_CFG:
    """The settings of the workload by skrl's names."""
    made = PPO_CFG()
    made.rollouts = s.horizon
    made.learning_epochs = s.update_epochs
    made.mini_batches = s.num_minibatches
    made.discount_factor = s.gamma
    made.gae_lambda = s.gae_lambda
    made.learning_rate = s.learning_rate
    made.grad_norm_clip = s.max_grad_norm
    made.ratio_clip = s.clip_coef
    made.value_clip = s.vf_clip_coef
    made.entropy_loss_scale = s.ent_coef
    made.value_loss_scale = s.vf_coef
    made.experiment.directory = tempfile.mkdtemp()
    made.experiment.write_interval = 0
    made.experiment.checkpoint_interval = 0
    return made


def main() -> None:
    """Train to the end."""
    mode = "vector_entry_point" if s.vector else "sync"
    env = wrap_env(gymnasium.make_vec("CartPole-v1", num_envs=s.num_envs, vectorization_mode=mode))
    agent = ReportingPPO(
        models={"policy": Actor(env), "value": Critic(env)},
        memory=RandomMemory(memory_size=s.horizon, num_envs=s.num_envs, device="cpu"),
        cfg=config(),
        observation_space=env.observation_space,
        action_space=env.action_space,
        device="cpu",
    )
    options = {
        "timesteps": s.iterations * s.horizon,
        "headless": True,
        "disable_progressbar": True,
    }
    SequentialTrainer(env=env, agents=agent, cfg=options).train()


if __name__ == "__main__":
    s = read_settings()
    main()
