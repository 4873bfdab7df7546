import gymnasium
import torch

from metta.agent.factory import make_policy
from metta.agent.policy import Policy
from metta.curriculum import Curriculum, Task
from metta.envs.toy import CorridorEnv, CountdownEnv
from metta.rl.evaluator import PolicyEvaluator
from metta.train.train_config import CurriculumConfig, EvaluationConfig


def policy_for(env: gymnasium.Env) -> Policy:
    return make_policy(env.observation_space, env.action_space)


def test_the_score_is_the_mean_return_when_episodes_are_played() -> None:
    policy = policy_for(CountdownEnv())
    evaluator = PolicyEvaluator(CountdownEnv, EvaluationConfig(eval_episodes=5, eval_envs=2))
    scores = evaluator.evaluate(policy)
    assert evaluator.last is not None
    assert len(evaluator.last.returns) == 5
    assert scores.simulation_scores == {"training/CountdownEnv": evaluator.last.mean}


def test_the_same_episodes_are_played_when_a_policy_is_scored_twice() -> None:
    policy, config = policy_for(CorridorEnv()), EvaluationConfig(eval_episodes=6)
    first = PolicyEvaluator(CorridorEnv, config, seed=3)
    assert first.evaluate(policy) == first.evaluate(policy)
    other = PolicyEvaluator(CorridorEnv, config, seed=4)
    other.evaluate(policy)
    assert first.last is not None
    assert other.last is not None
    assert first.last.lengths.tolist() != other.last.lengths.tolist()


def test_arguments_reach_the_environment_when_the_task_has_some() -> None:
    config = CurriculumConfig(env="CartPole-v1", env_kwargs={"max_episode_steps": 3})
    policy = policy_for(gymnasium.make("CartPole-v1"))
    scores = PolicyEvaluator(Curriculum(config).task, EvaluationConfig(eval_episodes=2)).evaluate(
        policy
    )
    assert scores.simulation_scores == {"training/CartPole-v1": 3.0}


def test_nothing_is_played_when_no_episodes_are_asked_for() -> None:
    evaluator = PolicyEvaluator(Task("Unknown-v0"), EvaluationConfig(eval_episodes=0))
    assert evaluator.evaluate(policy_for(CorridorEnv())).simulation_scores == {}


def test_the_policy_and_its_mode_stay_when_it_is_scored() -> None:
    policy = policy_for(CorridorEnv()).train()
    before = policy.parameter_hash()
    PolicyEvaluator(CorridorEnv, EvaluationConfig(eval_episodes=3)).evaluate(policy)
    assert (policy.parameter_hash(), policy.training) == (before, True)
    assert torch.is_grad_enabled()
