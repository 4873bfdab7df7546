"""How trials stand follows from the log; the best one, and those that no other one beats."""

from typing import Any

from metta.sim.statistics import Estimate
from metta.sweeps.trials import Event, Trials, best_of, pareto_front


def told(
    number: int,
    score: tuple[float, float],
    cost: float | None = None,
    *,
    seeds: int = 1,
    reward: float | None = None,
) -> list[Event]:
    value, low = score
    run = {"run": "r", "seed": 1, "score": value, "low": low, "high": value, "agent_step": 1,
           "train_seconds": 1.0, "cpu_seconds": 1.0, "reward": reward}  # fmt: skip
    payload: dict[str, Any] = {
        "state": "complete",
        "reason": "",
        "score": Estimate(value, low, value, 1).to_dict(),
        "cost": cost,
        "runs": [run] * seeds,
    }
    return [
        Event("ask", number, {"values": {"x": number}, "all_seeds": True}, 1.0),
        Event("tell", number, payload, 2.0),
    ]


def test_the_best_has_the_highest_mean_when_trials_have_one_seed() -> None:
    trials = Trials([*told(1, (5.0, 4.9)), *told(2, (6.0, 0.0)), *told(3, (6.0, 5.0))])
    best = best_of(trials)
    assert best is not None
    assert best.number == 2  # the first of equals
    assert (best.values, best.asked, best.ended) == ({"x": 2}, 1.0, 2.0)


def test_the_best_of_equal_scores_was_best_in_training() -> None:
    ties = [
        *told(1, (6.0, 6.0), reward=2.0),
        *told(2, (6.0, 6.0), reward=3.0),
        *told(3, (6.0, 6.0)),
    ]
    best = best_of(Trials([*ties, *told(4, (5.0, 5.0), reward=9.0)]))
    assert best is not None
    assert best.number == 2


def test_the_best_has_the_highest_lower_end_when_trials_have_several_seeds() -> None:
    trials = Trials([*told(1, (5.0, 4.9), seeds=2), *told(2, (6.0, 0.0), seeds=2)])
    best = best_of(trials)
    assert best is not None
    assert best.number == 1


def test_nothing_is_best_when_no_trial_is_complete() -> None:
    failed = Event("tell", 1, {"state": "failed", "reason": "it broke", "runs": []}, 3.0)
    trials = Trials([Event("ask", 1, {"values": {}, "all_seeds": False}), failed])
    assert best_of(trials) is None
    assert trials[1].reason == "it broke"
    assert [trial.number for trial in trials.in_state("failed")] == [1]
    assert not trials[1].has_all_seeds


def test_the_front_has_what_no_other_trial_beats_in_both() -> None:
    scores = {
        1: (1.0, 5.0),
        2: (2.0, 5.0),
        3: (3.0, 9.0),
        4: (2.5, 9.5),
        5: (4.0, 20.0),
        6: (0.5, 1.0),
    }
    events = [event for number, (score, cost) in scores.items()
              for event in told(number, (score, score), cost)]  # fmt: skip
    assert [trial.number for trial in pareto_front(Trials(events))] == [6, 2, 3, 5]


def test_others_are_compared_at_the_same_rung_when_they_had_a_return_there() -> None:
    events = [Event("ask", number, {"values": {}, "all_seeds": False}) for number in (1, 2, 3, 4)]
    events += [
        Event("report", 1, {"rung": 0, "value": 1.0}),
        Event("report", 2, {"rung": 0, "value": None}),
        Event("report", 3, {"rung": 1, "value": 3.0}),
        Event("report", 4, {"rung": 0, "value": 4.0}),
        Event("prune", 4, {"rung": 0, "reason": "others are better"}),
        Event("seeds", 1, {}),
    ]
    trials = Trials(events)
    assert trials.reported(0, besides=2) == [1.0, 4.0]
    assert trials.reported(0, besides=1) == [4.0]
    assert trials.reported(1, besides=1) == [3.0]
    assert trials[4].state == "pruned"
    assert trials[1].has_all_seeds
