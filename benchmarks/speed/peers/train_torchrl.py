"""PPO of the parts of TorchRL: a collector, GAE, and its clipped loss."""

import torch
from job_settings import read_settings, report
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
from torchrl.envs import GymEnv, SerialEnv
from torchrl.modules import ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE


def mlp(outputs: int) -> nn.Sequential:
    """Two hidden layers of 64 tanh units."""
    return nn.Sequential(
        nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
    )


def make_env() -> GymEnv:
    """One CartPole with whole numbers as actions."""
    return GymEnv("CartPole-v1", categorical_action_encoding=True)


def main() -> None:
    """Train to the end."""
    s = read_settings()
    envs = SerialEnv(s.num_envs, make_env)
    logits = TensorDictModule(mlp(2), in_keys=["observation"], out_keys=["logits"])
    actor = ProbabilisticActor(
        logits,
        in_keys=["logits"],
        spec=getattr(envs, "full_action_spec_unbatched", None),
        distribution_class=torch.distributions.Categorical,
        return_log_prob=True,
    )
    critic = ValueOperator(mlp(1), in_keys=["observation"])
    collector = Collector(
        envs, actor, frames_per_batch=s.batch, total_frames=s.iterations * s.batch
    )
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(s.batch),
        sampler=SamplerWithoutReplacement(),
        batch_size=s.minibatch,
    )
    advantages = GAE(gamma=s.gamma, lmbda=s.gae_lambda, value_network=critic, average_gae=False)
    losses = ClipPPOLoss(
        actor_network=actor,
        critic_network=critic,
        clip_epsilon=s.clip_coef,
        entropy_coeff=s.ent_coef,
        critic_coeff=s.vf_coef,
        normalize_advantage=True,
        loss_critic_type="l2",
        clip_value=s.vf_clip_coef,
    )
    parameters = list(losses.parameters())
    optimizer = torch.optim.Adam(parameters, lr=s.learning_rate, eps=1e-5)
    steps = 0
    for rollout in collector:
        with torch.no_grad():
            rollout = advantages(rollout)
        for _ in range(s.update_epochs):
            buffer.empty()
            buffer.extend(rollout.reshape(-1))
            for _ in range(s.num_minibatches):
                found = losses(buffer.sample())
                loss = found["loss_objective"] + found["loss_entropy"] + found["loss_critic"]
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, s.max_grad_norm)
                optimizer.step()
        steps += rollout.numel()
        report(steps)
    collector.shutdown()


if __name__ == "__main__":
    main()
