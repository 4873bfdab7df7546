"""RLlib's PPO, with its environments in the process that learns."""

import ray
from job_settings import read_settings, report
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig


def main() -> None:
    """Train to the end."""
    s = read_settings()
    ray.init(include_dashboard=False, log_to_driver=False, configure_logging=False)
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=s.num_envs,
            rollout_fragment_length=s.horizon,
        )
        .training(
            train_batch_size_per_learner=s.batch,
            minibatch_size=s.minibatch,
            num_epochs=s.update_epochs,
            lr=s.learning_rate,
            gamma=s.gamma,
            lambda_=s.gae_lambda,
            clip_param=s.clip_coef,
            entropy_coeff=s.ent_coef,
            vf_loss_coeff=s.vf_coef,
            grad_clip=s.max_grad_norm,
            use_kl_loss=False,
        )
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False
            )
        )
    )
    algorithm = config.build_algo()
    steps = 0
    while steps < s.iterations * s.batch:
        steps = int(algorithm.train()["num_env_steps_sampled_lifetime"])
        report(steps)
    algorithm.stop()
    ray.shutdown()


if __name__ == "__main__":
    main()
