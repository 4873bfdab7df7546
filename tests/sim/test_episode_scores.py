import json
import math

import numpy as np
import pytest

from metta.envs.vec_env import StepResult
from metta.sim.episode_scores import AgentResults, EpisodeLedger, EpisodeScores


def step(rewards: list[float], starts: list[bool], valid: list[bool] | None = None) -> StepResult:
    count = len(rewards)
    no = np.zeros(count, np.bool_)
    acted = np.ones(count, np.bool_) if valid is None else np.array(valid)
    return StepResult(np.array(rewards, np.float32), no, no, acted, np.array(starts))


def test_scores_return_when_they_go_through_json() -> None:
    agents = AgentResults(
        np.array([[1.0, 2.0]]), np.array([[3, 4]]), np.array([True, False]), [[{}, {"a": 1.0}]]
    )
    scores = EpisodeScores(np.array([1.5]), np.array([4]), 2, agents)
    again = EpisodeScores.from_dict(json.loads(json.dumps(scores.to_dict())))
    assert again.to_dict() == scores.to_dict()
    assert again.agents is not None
    assert again.agents.returns.shape == (1, 2)
    assert scores.summary() == scores.to_dict()


@pytest.mark.parametrize(
    ("num_agents", "infos", "num_episodes", "is_logged"),
    [(1, {}, 3, False), (1, {"age": 2.0}, 3, True), (2, {}, 3, True), (2, {}, 2000, False)],
)
def test_a_log_is_told_of_agents_when_that_says_more_and_is_not_much(
    num_agents: int, infos: dict[str, float], num_episodes: int, is_logged: bool
) -> None:
    shape = (num_episodes, num_agents)
    said = [[dict(infos) for _ in range(num_agents)] for _ in range(num_episodes)]
    agents = AgentResults(np.ones(shape), np.ones(shape, np.int64), np.ones(num_agents, bool), said)
    scores = EpisodeScores(np.ones(num_episodes), np.ones(num_episodes, np.int64), 0, agents)
    assert ("agents" in scores.summary()) == is_logged
    assert len(scores.summary()["returns"]) == num_episodes


def test_the_mean_is_nan_when_no_episode_ended() -> None:
    assert math.isnan(EpisodeScores(np.zeros(0), np.zeros(0, np.int64), 3).mean)


def test_the_first_that_started_count_when_later_ones_end_sooner() -> None:
    ledger = EpisodeLedger(2, 3, np.array([True]))
    # the second environment plays three short episodes while the first plays a long one
    for ends in ([False, True], [False, True], [False, True], [True, False]):
        ledger.record(0, step([1.0, 10.0], ends))
    scores = ledger.scores()
    assert scores.returns.tolist() == [4.0, 10.0, 10.0]  # the third short one started fourth
    assert scores.lengths.tolist() == [4, 1, 1]
    assert ledger.num_unfinished == 0


def test_only_evaluated_agents_who_were_there_count_when_others_play_along() -> None:
    ledger = EpisodeLedger(1, 1, np.array([True, True, False]))
    ledger.record(0, step([2.0, 9.0, 5.0], [False] * 3, [True, False, True]))
    assert ledger.scores().num_missing == 1
    ledger.record(0, step([2.0, 9.0, 5.0], [True] * 3, [True, False, True]))
    scores = ledger.scores()
    assert scores.returns.tolist() == [4.0]
    assert scores.agents is not None
    assert scores.agents.returns.tolist() == [[4.0, 0.0, 10.0]]


def test_the_fresh_episode_counts_when_one_was_lost_with_its_worker() -> None:
    ledger = EpisodeLedger(1, 1, np.array([True]))
    ledger.record(0, step([7.0], [False]))
    broken = step([0.0], [True], [False])
    broken.lost = np.array([0])
    ledger.record(0, broken)
    ledger.record(0, step([3.0], [True]))
    assert ledger.scores().returns.tolist() == [3.0]
