"""The learning curve of a run: what its event log says about learning."""

from pathlib import Path

import pytest

from metta.loggers import EventLog
from metta.runs.learning_curve import LearningCurve, read_learning_curve

HORIZON = 10
ROWS = 4
EPOCH = HORIZON * ROWS


class Log:
    """An event log of epochs of 40 steps: 4 environments, 10 steps each."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "events.jsonl"
        self.log = EventLog(self.path)

    def begin(self, from_epoch: int = 0) -> None:
        about = {"attributes": {"rollout/horizon": float(HORIZON)}, "from_epoch": from_epoch}
        self.log.append("run_start", {"name": "run", **about})

    def epoch(self, number: int, *episodes: tuple[float, float]) -> None:
        stats = {"episode_return": [one[0] for one in episodes]}
        stats["episode_length"] = [one[1] for one in episodes]
        if episodes:
            self.log.append("episodes", {"epoch_id": f"x:{number - 1}-{number}", "stats": stats})
        row = {"agent_step": EPOCH * number, "epoch": number, "metrics": {}}
        self.log.append("metrics", row)

    def score(self, epoch: int, score: float) -> None:
        about = {"epoch": epoch, "agent_step": EPOCH * epoch}
        self.log.append("evaluation", {**about, "scores": {"simulation_scores": {"a/b": score}}})

    def curve(self) -> LearningCurve:
        self.log.close()
        return read_learning_curve(self.path)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def test_the_first_mean_has_long_episodes_too_when_short_ones_end_first(log: Log) -> None:
    log.begin()
    # all begin with the run; two end in its first epoch, two of 80 steps in its eighth
    log.epoch(1, (1.0, 10), (1.0, 10))
    for number in range(2, 8):
        log.epoch(number)
    log.epoch(8, (9.0, 80), (9.0, 80))
    for number in range(9, 200):
        log.epoch(number, *[(9.0, 10)] * 4)
    curve = log.curve()
    assert curve.episodes[:4] == [(0.0, 1.0), (0.0, 1.0), (0.0, 9.0), (0.0, 9.0)]
    first = curve.parts[0]
    assert (first.num_episodes, first.mean, first.std) == (
        4,
        5.0,
        4.0,
    )  # by their ends it would be 1
    assert {part.mean for part in curve.parts[1:]} == {9.0}


def test_the_mean_stops_when_episodes_may_be_unfinished(log: Log) -> None:
    log.begin()
    for number in range(1, 101):
        log.epoch(number, (1.0, 100))  # 100 steps of 4 environments are 10 epochs
    curve = log.curve()
    last = curve.parts[-1]
    width = curve.parts[1].agent_step - curve.parts[0].agent_step
    assert last.agent_step + width / 2 <= 90 * EPOCH
    assert last.agent_step + width / 2 > 80 * EPOCH
    assert curve.episodes[-1][0] == 90 * EPOCH  # points are never left out


def test_what_a_crash_took_back_does_not_count_when_a_run_continued(log: Log) -> None:
    log.begin()
    for number in range(1, 6):
        log.epoch(number, (float(number), 10))
    log.begin(from_epoch=3)
    for number in (4, 5, 6):
        log.epoch(number, (10.0 * number, 10))
    assert [one[1] for one in log.curve().episodes] == [1, 2, 3, 40, 50, 60]


def test_evaluations_are_marked_at_their_steps_when_there_are_some(log: Log) -> None:
    log.begin()
    log.epoch(1, (1.0, 10))
    log.score(1, 2.5)
    assert log.curve().evaluations == [(EPOCH, 2.5)]


def test_a_long_run_is_thinned_out_when_it_has_many_episodes(log: Log) -> None:
    log.begin()
    for number in range(1, 60):
        log.epoch(number, *[(float(number), 1)] * 400)
    curve = log.curve()
    assert 2000 < len(curve.episodes) <= 4097
    assert 20 <= len(curve.parts) <= 40
    assert sum(part.num_episodes for part in curve.parts) > 0.9 * 59 * 400


def test_the_curve_is_empty_when_no_episode_has_ended(log: Log) -> None:
    log.begin()
    log.epoch(1)
    curve = log.curve()
    assert (curve.episodes, curve.parts, curve.evaluations) == ([], [], [])
