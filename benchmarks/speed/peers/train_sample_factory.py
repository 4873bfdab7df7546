"""Sample Factory's PPO, in one process and in step with its learner."""

import tempfile
import threading
import time
from typing import Any

import gymnasium
from job_settings import read_settings, report
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner

LOOK_SECONDS = 0.05


def make_env(*_: Any, **__: Any) -> gymnasium.Env:
    """One CartPole, whatever else is asked for."""
    return gymnasium.make("CartPole-v1")


def watch(runner: Any) -> None:
    """Report whenever the runner counted more steps; it has no place to call from."""
    last = 0
    while True:
        time.sleep(LOOK_SECONDS)
        steps = sum(getattr(runner, "env_steps", {}).values())
        if steps > last:
            last = steps
            report(steps)


def options(s: Any) -> list[str]:
    """The settings of the workload by Sample Factory's names."""
    chosen = {
        "env": "CartPole-v1",
        "experiment": "bench",
        "train_dir": tempfile.mkdtemp(),
        "algo": "APPO",
        "device": "cpu",
        "serial_mode": True,
        "async_rl": False,
        "batched_sampling": False,
        "num_workers": 1,
        "num_envs_per_worker": s.num_envs,
        "worker_num_splits": 1,
        "rollout": s.horizon,
        "batch_size": s.minibatch,
        "num_batches_per_epoch": s.num_minibatches,
        "num_epochs": s.update_epochs,
        "use_rnn": False,
        "nonlinearity": "tanh",
        "actor_critic_share_weights": False,
        "normalize_input": False,
        "normalize_returns": False,
        "learning_rate": s.learning_rate,
        "gamma": s.gamma,
        "gae_lambda": s.gae_lambda,
        "ppo_clip_ratio": s.clip_coef,
        "ppo_clip_value": s.vf_clip_coef,
        "exploration_loss_coeff": s.ent_coef,
        "value_loss_coeff": s.vf_coef,
        "max_grad_norm": s.max_grad_norm,
        "with_vtrace": False,
        "with_wandb": False,
        "save_every_sec": 100_000,
        "decorrelate_envs_on_one_worker": False,
        "decorrelate_experience_max_seconds": 0,
        "train_for_env_steps": s.iterations * s.batch,
    }
    return [f"--{name}={value}" for name, value in chosen.items()] + [
        "--encoder_mlp_layers", "64", "64",
    ]  # fmt: skip


def main() -> None:
    """Train to the end."""
    words = options(read_settings())
    register_env("CartPole-v1", make_env)
    parser, _ = parse_sf_args(words)
    _, runner = make_runner(parse_full_cfg(parser, words))
    runner.init()
    threading.Thread(target=watch, args=(runner,), daemon=True).start()
    runner.run()


if __name__ == "__main__":
    main()
