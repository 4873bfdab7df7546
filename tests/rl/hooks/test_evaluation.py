"""`EvaluationHook`: when policies are scored, and what a failure does."""

from typing import Any

import numpy as np
import pytest

from metta.curriculum import Curriculum
from metta.envs.toy import CorridorEnv
from metta.errors import HookError, MettaWarning
from metta.rl.evaluate.evaluator import PolicyEvaluator, Recorded
from metta.rl.evaluate.process import EvaluationRequest
from metta.rl.evaluate.promised import PromisedEvaluations
from metta.rl.hooks.evaluation import EvaluationHook
from metta.rl.hooks.evaluation_records import EvaluationRecords, services_of
from metta.rl.ppo_trainer import PPOTrainer
from metta.sim.scores import EvalRewardSummary
from metta.train.train_config import EvaluationConfig

SMALL = {"num_envs": 2, "n_steps": 8, "hidden_size": 8, "n_epochs": 1, "num_minibatches": 1}
CURRICULUM = Curriculum(env=CorridorEnv)


class Counting:
    """An evaluator that remembers which weights it saw, and fails when told to."""

    config = EvaluationConfig(eval_episodes=1, max_eval_failures=2)

    def __init__(self, failures: set[int] = frozenset()) -> None:
        self.seen: list[str] = []
        self.failures = failures

    def evaluate(self, policy: Any) -> EvalRewardSummary:
        self.seen.append(policy.parameter_hash())
        if len(self.seen) in self.failures:
            raise OSError("no display")
        return EvalRewardSummary({"training/x": float(len(self.seen))})


def run(hook: EvaluationHook, epochs: int = 5) -> PPOTrainer:
    with PPOTrainer(None, CorridorEnv, **SMALL) as trainer:
        trainer.train(16 * epochs, hooks=[hook])
        return trainer


@pytest.mark.parametrize(("interval", "times"), [(0, 1), (1, 5), (2, 3), (5, 1), (9, 1)])
def test_policies_are_scored_at_intervals_and_at_the_end_when_training_runs(
    interval: int, times: int
) -> None:
    evaluator = Counting()
    hook = EvaluationHook(EvaluationConfig(evaluate_interval=interval), evaluator=evaluator)
    trainer = run(hook)
    assert len(evaluator.seen) == times
    assert evaluator.seen[-1] == trainer.policy.parameter_hash()
    assert trainer.state.eval_epoch == 5
    assert hook.get_eval_scores().simulation_scores == {"training/x": float(times)}
    assert trainer.state.eval_scores is hook.get_eval_scores()


def test_real_episodes_are_played_when_no_evaluator_is_given() -> None:
    hook = EvaluationHook(EvaluationConfig(eval_episodes=3), CURRICULUM)
    run(hook, 1)
    assert list(hook.eval_scores.simulation_scores) == ["training/CorridorEnv"]
    assert hook.evaluator.last is not None
    assert len(hook.evaluator.last.returns) == 3


@pytest.mark.parametrize("config", [None, EvaluationConfig(eval_episodes=0, evaluate_interval=1)])
def test_nothing_is_scored_when_it_is_turned_off(config: EvaluationConfig | None) -> None:
    hook = EvaluationHook(config, CURRICULUM)
    run(hook, 2)
    assert hook.evaluator.last is None
    assert hook.eval_scores == EvalRewardSummary()


def test_a_failure_warns_and_training_goes_on_when_it_is_the_first() -> None:
    evaluator = Counting(failures={2})
    hook = EvaluationHook(EvaluationConfig(evaluate_interval=1), evaluator=evaluator)
    with pytest.warns(
        MettaWarning, match=r"evaluation failed at epoch 2 \(1 in a row, 2 stop.*OSError"
    ):
        run(hook)
    assert (len(evaluator.seen), hook.failures_in_a_row) == (5, 0)


def test_training_stops_when_evaluations_keep_failing() -> None:
    evaluator = Counting(failures={2, 3})
    hook = EvaluationHook(EvaluationConfig(evaluate_interval=1), evaluator=evaluator)
    with (
        pytest.warns(MettaWarning, match="evaluation failed"),
        pytest.raises(HookError, match=r"EvaluationHook.*epoch 3.*no display"),
    ):
        run(hook)
    assert len(evaluator.seen) == 3


class Client:
    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def record_evaluation(self, **record: Any) -> None:
        self.records.append(record)


def test_scores_are_recorded_when_there_is_a_stats_client() -> None:
    client = Client()
    with PPOTrainer(None, CorridorEnv, **SMALL) as trainer:
        trainer.components.hooks.stats_client = client
        trainer.train(16, hooks=[EvaluationHook(EvaluationConfig(), evaluator=Counting())])
    assert client.records == [
        {
            "epoch": 1,
            "agent_step": 16,
            "policy_uri": None,
            "scores": {"simulation_scores": {"training/x": 1.0}},
        }
    ]


def test_every_episode_is_recorded_when_a_real_suite_was_played() -> None:
    client = Client()
    hook = EvaluationHook(EvaluationConfig(eval_episodes=3), CURRICULUM)
    with PPOTrainer(None, CorridorEnv, **SMALL) as trainer:
        trainer.components.hooks.stats_client = client
        trainer.train(16, hooks=[hook])
    (record,) = client.records
    last = hook.evaluator.last
    assert last is not None
    told = record["scores"]["episodes"]["training/CorridorEnv"]
    assert told == last.summary()
    assert told["returns"] == last.returns.tolist()
    assert len(told["agents"]["infos"]) == 3
    mean = record["scores"]["simulation_scores"]["training/CorridorEnv"]
    assert mean == pytest.approx(np.mean(last.returns))
    assert EvalRewardSummary.from_dict(record["scores"]) == hook.eval_scores


def test_a_suite_is_played_beside_the_task_when_it_is_named() -> None:
    config = EvaluationConfig(eval_episodes=1, suite="classic")
    hook = EvaluationHook(config, Curriculum())
    with PPOTrainer(None, "CartPole-v1", **SMALL) as trainer:
        trainer.train(16, hooks=[hook])
    assert list(hook.eval_scores.category_scores) == ["training", "classic"]


def test_replays_are_reported_once_when_a_process_before_recorded_them() -> None:
    class Replays:
        told: list[tuple[int, str]] = []  # noqa: RUF012  # one test

        def record_replay(self, *, epoch: int, simulation: str, **_: Any) -> None:
            self.told.append((epoch, simulation))

        def recorded(self, epochs: Any) -> set[tuple[str, int, str]]:
            return {("replay", 1, "a/b")}

    promised = PromisedEvaluations()
    promised.look_up([1, 2], Replays())
    records = EvaluationRecords(PolicyEvaluator("CartPole-v1"), promised)
    services = services_of(None, Replays(), None)
    for epoch in (1, 2):
        recorded = Recorded({"a/b": f"/replays/{epoch}"})
        records.report_replays(EvaluationRequest(epoch, 0), recorded, services)
    assert Replays.told == [(2, "a/b")]
    assert records.replays == {"a/b": "/replays/2"}
