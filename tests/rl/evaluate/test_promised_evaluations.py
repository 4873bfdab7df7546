"""What is promised is kept in files until it is recorded."""

from pathlib import Path

import pytest

from metta.agent.factory import make_policy
from metta.agent.policy import Policy
from metta.envs.toy import CorridorEnv
from metta.loggers import EventLog, StatsClient
from metta.rl.evaluate.process import EvaluationRequest
from metta.rl.evaluate.promised import PromisedEvaluations
from metta.store.checkpoints.files import new_run_id
from metta.store.checkpoints.owed_evaluations import OwedEvaluation, OwedEvaluations


@pytest.fixture
def policy() -> Policy:
    env = CorridorEnv()
    return make_policy(env.observation_space, env.action_space, seed=1)


@pytest.fixture
def store(tmp_path: Path) -> OwedEvaluations:
    return OwedEvaluations(tmp_path / "checkpoints", new_run_id())


def test_scores_stay_owed_when_replays_of_the_same_epoch_are_promised(
    policy: Policy, store: OwedEvaluations
) -> None:
    promised = PromisedEvaluations()
    uri = (store.checkpoint_dir / "epoch_000004").as_uri()
    for moment in (
        EvaluationRequest(4, 40, uri),
        EvaluationRequest(4, 40, uri, is_scored=False, replay_dir="replays"),
    ):
        assert promised.add(store, moment, policy) == store.file_of(4)
    assert store.list() == [OwedEvaluation(4, 40, "epoch_000004", is_recorded=True)]
    found = PromisedEvaluations().take_up(store, 4, None, replay_dir=Path("elsewhere"))
    assert found == [(EvaluationRequest(4, 40, uri, replay_dir="elsewhere"), store.file_of(4))]


def test_epochs_that_will_be_trained_again_are_not_owed(
    policy: Policy, store: OwedEvaluations
) -> None:
    for epoch in (2, 3, 4):
        PromisedEvaluations().add(store, EvaluationRequest(epoch, epoch), policy)
    found = PromisedEvaluations().take_up(store, 3, None, replay_dir=None)
    assert [moment for moment, _ in found] == [EvaluationRequest(2, 2), EvaluationRequest(3, 3)]
    assert [owed.epoch for owed in store.list()] == [2, 3]


def test_nothing_is_kept_where_a_run_is_not_saved(policy: Policy) -> None:
    promised = PromisedEvaluations()
    assert promised.take_up(None, 3, None, replay_dir=None) == []
    assert promised.add(None, EvaluationRequest(1, 1), policy) is None
    promised.keep_only([], None)


def test_a_file_stays_until_the_records_are_on_the_disk(
    policy: Policy, store: OwedEvaluations
) -> None:
    class Client:
        is_written = False

        def sync(self) -> bool:
            return self.is_written

    promised, client = PromisedEvaluations(), Client()
    for epoch in (1, 2):
        promised.add(store, EvaluationRequest(epoch, epoch), policy)
    promised.keep_only([1, 2], client)
    promised.keep_only([2], client)
    assert [owed.epoch for owed in store.list()] == [1, 2]
    client.is_written = True
    promised.keep_only([2], client)
    assert [owed.epoch for owed in store.list()] == [2]


@pytest.mark.parametrize("is_damaged", [False, True])
def test_what_the_log_has_is_recorded(
    policy: Policy, store: OwedEvaluations, tmp_path: Path, is_damaged: bool
) -> None:
    PromisedEvaluations().add(store, EvaluationRequest(2, 2), policy)
    with EventLog(tmp_path / "events.jsonl") as log:
        client = StatsClient(log)
        client.record_evaluation(epoch=2, agent_step=2, scores={})
        client.record_replay(epoch=2, agent_step=2, simulation="a/b", uri="file:///x")
        client.record_evaluation(epoch=3, agent_step=3, scores={})
        if is_damaged:
            with log.path.open("ab") as file:
                file.write(b"nonsense\n")
        promised = PromisedEvaluations()
        promised.take_up(store, 2, client, replay_dir=None)
    found = [
        promised.is_recorded("evaluation", 2),
        promised.is_recorded("replay", 2, "a/b"),
        promised.is_recorded("replay", 2, "a/c"),
        promised.is_recorded("evaluation", 3),
    ]
    assert found == [not is_damaged, not is_damaged, False, False]


def test_what_was_found_before_stays_known_when_another_epoch_is_looked_up(tmp_path: Path) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        client = StatsClient(log)
        client.record_evaluation(epoch=2, agent_step=2, scores={})
        promised = PromisedEvaluations()
        promised.look_up([2], client)
        promised.look_up([3], client)
    assert promised.is_recorded("evaluation", 2)
    assert not promised.is_recorded("evaluation", 3)
