"""Training as a function, with a step and two losses of one's own: curiosity and diversity.

python examples/functional_training_example.py [--steps N]
"""

import argparse
from functools import partial

import torch
from torch import nn

from metta import CustomLoss
from metta.curriculum import Curriculum
from metta.envs.toy import CorridorEnv
from metta.rl.functional_trainer import functional_training_loop
from metta.rl.hooks import TrainerHook
from metta.rl.loop import Collected, collect_rollout, learn_from_rollout, run_epoch
from metta.train.settings import apply_settings
from metta.train.train_config import TrainingConfig

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=16_384, help="agent steps of the run")
LENGTH = 16


class Curiosity(nn.Module):
    """Predicts the next observation; actions that led to surprises become more likely.

    A loss receives what its parameters name. One that is a module trains its own parameters too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(LENGTH + 2, 32), nn.Tanh(), nn.Linear(32, LENGTH))

    def forward(self, obs, actions, next_observations, new_log_probs, terminated, truncated):  # type: ignore[no-untyped-def]  # receives what it names
        chosen = nn.functional.one_hot(actions, 2).to(obs.dtype)
        error = (self.model(torch.cat([obs, chosen], -1)) - next_observations).square().sum(-1)
        known = ~(terminated | truncated)  # after an end comes the start of another episode
        seen = error.detach()
        surprise = (seen - seen.mean()) / (seen.std() + 1e-8)
        bonus = (surprise * new_log_probs)[known].mean()
        return error[known].mean() - 0.1 * bonus, {"error": seen[known].mean()}


def diversity_loss(output):  # type: ignore[no-untyped-def]  # receives what it names
    """Minus the entropy of the actions' shares over a whole minibatch: use both of them."""
    shares = output.dist_params.softmax(-1).flatten(0, -2).mean(0)
    return (shares * shares.log()).sum(), {"share_of_right": shares[1].detach()}


def step_with_next_observations(state, components, config, experience):  # type: ignore[no-untyped-def]  # as default_training_step
    """One epoch as `default_training_step` runs it, with one more column for the losses."""

    def collect() -> Collected:
        stats, num_steps = collect_rollout(components)
        experience.columns["next_observations"] = next(iter(experience.obs.values()))[1:].clone()
        return Collected(stats, num_steps, experience, experience)

    learn, total = partial(learn_from_rollout, components), config.total_timesteps
    return run_epoch(state, components.hooks, collect, learn, total_timesteps=total)


class Report(TrainerHook):
    def on_epoch_end(self, trainer_state, losses_stats):  # type: ignore[no-untyped-def]  # receives what it names
        print(f"{trainer_state.agent_step:>6} steps  return {losses_stats['episode_return']:6.2f}  "
              f"prediction error {losses_stats['custom/Curiosity/error']:.3f}  "
              f"share of right {losses_stats['custom/diversity_loss/share_of_right']:.2f}")  # fmt: skip


settings = {"total_timesteps": parser.parse_args().steps, "learning_rate": 1e-3, "horizon": 128}
state = functional_training_loop(
    apply_settings(TrainingConfig(), settings).trainer,
    curriculum=Curriculum(env=lambda: CorridorEnv(LENGTH)),
    step_fn=step_with_next_observations,
    custom_losses=[Curiosity(), CustomLoss(diversity_loss, weight=0.05, schedule="linear")],
    hooks=[Report()],
)
best = CorridorEnv(LENGTH).optimal_return
print(f"return of the last 100 episodes {state.stats.mean_return:.2f}, best possible {best:.2f}")
