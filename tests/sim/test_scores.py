import pytest

from metta.sim.scores import EvalRewardSummary


def test_a_category_is_the_mean_of_its_simulations_when_there_are_several() -> None:
    scores = EvalRewardSummary({"nav/a": 1.0, "nav/b": 3.0, "memory/a": 10.0})
    assert scores.category_scores == {"nav": 2.0, "memory": 10.0}
    assert scores.avg_category_score == 6.0
    assert scores.avg_simulation_score == pytest.approx(14 / 3)


def test_metrics_have_one_name_each_when_scores_are_reported() -> None:
    metrics = EvalRewardSummary({"nav/a/b": 1.0, "nav/c": 3.0}).to_metrics()
    assert metrics == {"eval_nav/score": 2.0, "eval_nav/a/b": 1.0, "eval_nav/c": 3.0}


def test_there_is_no_score_when_nothing_was_evaluated() -> None:
    empty = EvalRewardSummary()
    assert (empty.avg_category_score, empty.avg_simulation_score) == (None, None)
    assert (empty.category_scores, empty.to_metrics()) == ({}, {})


def test_scores_survive_when_they_become_plain_data() -> None:
    scores = EvalRewardSummary({"nav/a": 1.5})
    assert EvalRewardSummary.from_dict(scores.to_dict()) == scores
