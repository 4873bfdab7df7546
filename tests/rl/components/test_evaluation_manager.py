"""`EvaluationManager`: suites, scores and statistics as a part of a run."""

import pytest

from metta.agent.factory import make_policy
from metta.curriculum import Task
from metta.envs.toy import CountdownEnv
from metta.rl.components.evaluation_manager import EvaluationManager
from metta.rl.evaluate.evaluator import PolicyEvaluator
from metta.rl.training_state import TrainerState
from metta.train.sim_config import SimulationConfig, SimulationSuiteConfig
from metta.train.train_config import EvaluationConfig


class Counting(PolicyEvaluator):
    times = 0

    def evaluate(self, policy):
        self.times += 1
        return super().evaluate(policy)


def manager_of() -> EvaluationManager:
    suite = SimulationSuiteConfig(
        simulations={
            "count/three": SimulationConfig(env_kwargs={"length": 3}),
            "count/five": SimulationConfig(num_episodes=2),
        }
    )
    config = EvaluationConfig(eval_episodes=4)
    evaluator = Counting(suite, config, training_task=Task(CountdownEnv))
    return EvaluationManager(evaluator, TrainerState(epoch=7))


def test_scores_and_intervals_are_there_when_a_suite_was_played() -> None:
    manager = manager_of()
    env = CountdownEnv()
    scores = manager.evaluate(make_policy(env.observation_space, env.action_space))
    assert scores.simulation_scores == {"count/three": 6.0, "count/five": 15.0}
    assert manager.scores is scores
    assert manager.state.eval_epoch == 7
    assert [len(one.returns) for one in manager.results.episodes.values()] == [4, 2]
    assert manager.episodes is manager.results.episodes["count/three"]
    found = manager.statistics()
    assert (found["count"].value, found["count"].low, found["count"].count) == (10.5, 10.5, 6)
    assert found["count/five"].value == pytest.approx(15.0)


def test_the_last_epoch_is_scored_once_when_a_run_ends() -> None:
    manager = manager_of()
    env = CountdownEnv()
    policy = make_policy(env.observation_space, env.action_space)
    first = manager.finish(policy)
    assert manager.finish(policy) is first
    assert manager.evaluator.times == 1
    manager.state.epoch += 1
    assert manager.finish(policy) == first
    assert manager.evaluator.times == 2
