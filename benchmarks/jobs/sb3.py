"""Stable-Baselines3's PPO at the same settings."""

from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from torch import nn

from benchmarks import settings as s

s.require_one_thread()


class Reporter(BaseCallback):
    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        if self.num_timesteps:
            s.report(self.num_timesteps)


model = PPO(
    "MlpPolicy",
    make_vec_env("CartPole-v1", n_envs=s.NUM_ENVS),
    learning_rate=s.LEARNING_RATE,
    n_steps=s.HORIZON,
    batch_size=s.BATCH // s.NUM_MINIBATCHES,
    n_epochs=s.UPDATE_EPOCHS,
    gamma=s.GAMMA,
    gae_lambda=s.GAE_LAMBDA,
    clip_range=s.CLIP,
    ent_coef=s.ENTROPY,
    vf_coef=s.VALUE,
    max_grad_norm=s.MAX_GRAD_NORM,
    policy_kwargs={
        "net_arch": {"pi": [s.HIDDEN] * 2, "vf": [s.HIDDEN] * 2},
        "activation_fn": nn.Tanh,
    },
    device="cpu",
    seed=1,
)
model.learn(s.TOTAL_STEPS, callback=Reporter(), log_interval=10**9)
s.report(model.num_timesteps)
