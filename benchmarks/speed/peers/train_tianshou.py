"""PPO of Tianshou 2, by its procedural interface."""

import gymnasium
import torch
from job_settings import read_settings, report
from tianshou.algorithm import PPO
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OnPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
from torch.distributions import Categorical


class Reporter:
    """Is called before each collection, so it reports what was done before."""

    def __init__(self) -> None:
        self.last = 0

    def __call__(self, epoch: int, env_step: int) -> None:
        """Report when steps were added."""
        del epoch
        if env_step > self.last:
            self.last = env_step
            report(env_step)


def main() -> None:
    """Train to the end."""
    s = read_settings()
    env = gymnasium.make("CartPole-v1")
    envs = DummyVectorEnv([lambda: gymnasium.make("CartPole-v1") for _ in range(s.num_envs)])

    def network() -> Net:
        shape = env.observation_space.shape
        return Net(state_shape=shape, hidden_sizes=[64, 64], activation=torch.nn.Tanh)

    policy = ProbabilisticActorPolicy(
        actor=DiscreteActor(
            preprocess_net=network(), action_shape=env.action_space.n, softmax_output=False
        ),
        dist_fn=lambda logits: Categorical(logits=logits),
        action_space=env.action_space,
        action_scaling=False,
    )
    algorithm = PPO(
        policy=policy,
        critic=DiscreteCritic(preprocess_net=network()),
        optim=AdamOptimizerFactory(lr=s.learning_rate),
        eps_clip=s.clip_coef,
        value_clip=True,
        advantage_normalization=True,
        vf_coef=s.vf_coef,
        ent_coef=s.ent_coef,
        max_grad_norm=s.max_grad_norm,
        gae_lambda=s.gae_lambda,
        gamma=s.gamma,
        max_batchsize=max(1024, s.minibatch),
    )
    collector = Collector(algorithm, envs, VectorReplayBuffer(2 * s.batch, s.num_envs))
    algorithm.run_training(
        OnPolicyTrainerParams(
            training_collector=collector,
            test_collector=None,
            max_epochs=1,
            epoch_num_steps=s.iterations * s.batch,
            collection_step_num_env_steps=s.batch,
            update_step_num_repetitions=s.update_epochs,
            batch_size=s.minibatch,
            training_fn=Reporter(),
            verbose=False,
            show_progress=False,
        )
    )


if __name__ == "__main__":
    main()
