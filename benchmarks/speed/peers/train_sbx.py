"""SBX, Stable-Baselines3's PPO in JAX."""

import flax.linen as nn
from job_settings import read_settings, report
from sbx import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env


class Reporter(BaseCallback):
    """Reports whenever an update is over."""

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        if self.num_timesteps:
            report(self.num_timesteps)


def main() -> None:
    """Train to the end."""
    s = read_settings()
    model = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=s.num_envs),
        learning_rate=s.learning_rate,
        n_steps=s.horizon,
        batch_size=s.minibatch,
        n_epochs=s.update_epochs,
        gamma=s.gamma,
        gae_lambda=s.gae_lambda,
        clip_range=s.clip_coef,
        ent_coef=s.ent_coef,
        vf_coef=s.vf_coef,
        max_grad_norm=s.max_grad_norm,
        policy_kwargs={"net_arch": {"pi": [64, 64], "vf": [64, 64]}, "activation_fn": nn.tanh},
        seed=1,
    )
    model.learn(s.iterations * s.batch, callback=Reporter(), log_interval=10**9)
    report(model.num_timesteps)


if __name__ == "__main__":
    main()
