"""Known answers for what curricula conclude from scores."""

from typing import Any

import numpy as np
import pytest

from metta.curriculum import Curriculum
from metta.curriculum.samplers import ScoreTable
from metta.errors import StateError
from metta.train.train_config import CurriculumConfig

THREE: dict[str, Any] = {"tasks": {"a": {}, "b": {}, "c": {}}}


def curriculum(kind: Any, **settings: Any) -> Curriculum:
    return Curriculum(CurriculumConfig(kind=kind, **{**THREE, **settings}))


def play(one: Curriculum, task: int, scores: list[float]) -> None:
    for score in scores:
        one.complete(task, score)


def test_averages_follow_scores_fast_and_slowly_when_episodes_end() -> None:
    table = ScoreTable(2, smoothing=0.5)
    for score in (4.0, 8.0, 2.0):
        table.record(1, score)
    assert table.counts.tolist() == [0, 3]
    assert table.fast.tolist() == [0.0, 4.0]  # 4, 6, 4
    assert table.peak.tolist() == [0.0, 6.0]
    assert table.slow[1] == pytest.approx(4.0 + 0.05 * 4.0 + 0.05 * (2.0 - 4.2))


@pytest.mark.parametrize("kind", ["random", "bucketed"])
def test_shares_are_those_given_when_tasks_are_drawn_by_fixed_weights(kind: Any) -> None:
    one = curriculum(kind, task_weights={"b": 2.0, "c": 0.0}, min_share=0.5)
    play(one, 0, [1.0] * 20)
    assert one.probabilities == pytest.approx([1 / 3, 2 / 3, 0.0])


def test_tasks_whose_scores_move_come_more_often_when_progress_counts() -> None:
    one = curriculum("learning_progress", min_share=0.3, score_smoothing=0.5)
    assert one.probabilities == pytest.approx([1 / 3] * 3)  # nothing is known yet
    play(one, 0, [1.0] * 10)  # learned: it does not move
    play(one, 1, [0.0] * 10)  # out of reach
    play(one, 2, [0.1 * n for n in range(10)])
    assert one.probabilities == pytest.approx([0.1, 0.1, 0.8])
    # falling counts as moving: what is forgotten comes back
    play(one, 0, [0.9, 0.5, 0.2, 0.0])
    assert one.probabilities[0] > 0.25
    assert one.probabilities.sum() == pytest.approx(1.0)


def test_unknown_tasks_come_as_often_as_the_liveliest_when_progress_counts() -> None:
    one = curriculum("learning_progress", min_share=0.0)
    play(one, 0, [0.0] * 10)
    play(one, 1, [0.1 * n for n in range(10)])
    assert one.probabilities == pytest.approx([0.0, 0.5, 0.5])


def test_scale_does_not_matter_when_all_scores_are_in_another_unit() -> None:
    shares = []
    for unit, shift in ((1.0, 0.0), (1000.0, -500.0)):
        one = curriculum("learning_progress")
        for task in range(3):
            play(one, task, [shift + unit * 0.1 * n * task for n in range(10)])
        shares.append(one.probabilities)
    assert shares[0] == pytest.approx(shares[1])


def test_tasks_that_got_worse_come_more_often_when_regressions_count() -> None:
    one = curriculum("prioritize_regressed", min_share=0.0, score_smoothing=1.0)
    play(one, 0, [0.0, 0.5, 1.0, 1.0, 1.0])
    play(one, 1, [1.0, 1.0, 1.0, 1.0, 0.4])
    play(one, 2, [0.2, 1.0, 1.0, 1.0, 0.8])
    assert one.probabilities == pytest.approx([0.0, 0.75, 0.25])


def test_unknown_tasks_come_as_often_as_the_furthest_fallen() -> None:
    one = curriculum("prioritize_regressed", min_share=0.0, score_smoothing=1.0)
    assert one.probabilities == pytest.approx([1 / 3] * 3)  # nothing is known yet
    play(one, 0, [0.0] * 5)
    play(one, 1, [1.0, 1.0, 1.0, 1.0, 0.5])
    assert one.probabilities == pytest.approx([0.0, 0.5, 0.5])


def test_tasks_open_one_after_the_other_when_they_are_mastered() -> None:
    one = curriculum("progressive", mastery_score=0.8, min_share=0.2, score_smoothing=1.0)
    assert one.probabilities == pytest.approx([1.0, 0.0, 0.0])
    play(one, 0, [0.9] * 4)
    assert one.probabilities == pytest.approx([1.0, 0.0, 0.0])  # too few episodes to conclude from
    play(one, 0, [0.9])
    assert one.probabilities == pytest.approx([0.1, 0.9, 0.0])
    play(one, 0, [0.1] * 10)  # what was open stays open
    assert one.probabilities == pytest.approx([0.1, 0.9, 0.0])
    play(one, 1, [0.8] * 5)
    play(one, 2, [1.0] * 5)
    assert one.probabilities == pytest.approx([0.2 / 3, 0.2 / 3, 0.8 + 0.2 / 3])


@pytest.mark.parametrize("kind", ["learning_progress", "prioritize_regressed"])
def test_shares_are_even_when_nothing_speaks_for_any_task(kind: Any) -> None:
    one = curriculum(kind)
    for task in range(3):
        play(one, task, [0.5] * 10)
    assert one.probabilities == pytest.approx([1 / 3] * 3)


def test_draws_follow_the_shares_when_there_are_many() -> None:
    one = curriculum("random", task_weights={"a": 1.0, "b": 6.0, "c": 3.0})
    generator = np.random.default_rng(0)
    counts = np.bincount([one.draw(generator) for _ in range(5000)], minlength=3)
    assert counts / 5000 == pytest.approx([0.1, 0.6, 0.3], abs=0.02)


def test_a_table_is_refused_when_it_is_of_other_tasks() -> None:
    with pytest.raises(StateError, match="has 3 tasks"):
        ScoreTable(3, 0.1).load_state_dict(ScoreTable(2, 0.1).state_dict())
