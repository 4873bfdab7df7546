import json
import math

from metta.agent.policy_record import PolicyRecord
from metta.rl.training_state import PolicyTracker, StatsTracker, TrainerState
from metta.sim.scores import EvalRewardSummary
from metta.stateful import Stateful, digest_of


def test_both_spellings_agree_when_steps_are_counted() -> None:
    state = TrainerState(agent_step=12)
    state.agent_step += 3
    assert state.agent_steps == state.agent_step == 15


def test_the_first_reason_stays_when_a_stop_is_requested_twice() -> None:
    state = TrainerState()
    assert state.stop_reason is None
    state.request_stop("solved")
    state.request_stop("time is up")
    assert state.stop_reason == "solved"


def test_counters_return_when_state_is_loaded() -> None:
    state, other = TrainerState(agent_step=12, epoch=3, progress=0.25), TrainerState()
    assert isinstance(state, Stateful)
    other.load_state_dict(state.state_dict())
    assert (other.agent_step, other.epoch, other.progress) == (12, 3, 0.25)


def test_metrics_are_no_state_when_a_digest_is_made() -> None:
    plain, reported = TrainerState(epoch=1), TrainerState(epoch=1, metrics={"loss": 0.5})
    assert digest_of(plain.state_dict()) == digest_of(reported.state_dict())
    assert digest_of(TrainerState(epoch=2).state_dict()) != digest_of(plain.state_dict())


def test_states_are_apart_when_two_runs_begin() -> None:
    first, second = TrainerState(), TrainerState()
    first.metrics["loss"] = 1.0
    first.stats.add_returns([1.0])
    first.shared["uri"] = "x"
    assert (second.metrics, list(second.stats.recent_returns), second.shared) == ({}, [], {})


def test_means_divide_by_samples_when_rollouts_report_different_numbers() -> None:
    tracker = StatsTracker()
    tracker.add_rollout_stats({"episode_return": [1.0, 2.0, 3.0], "env/key": [10.0]})
    tracker.add_rollout_stats({"episode_return": [6.0], "env/key": []})
    assert tracker.summary() == {"episode_return": 3.0, "env/key": 10.0}
    tracker.clear_rollout_stats(next_epoch=7)
    assert (tracker.summary(), tracker.stats_epoch_start) == ({}, 7)


def test_there_is_no_mean_when_a_statistic_has_no_samples() -> None:
    tracker = StatsTracker()
    tracker.add_rollout_stats({"episode_return": []})
    assert tracker.summary() == {}
    assert math.isnan(tracker.mean_return)


def test_the_last_hundred_returns_count_when_there_are_more() -> None:
    tracker = StatsTracker()
    tracker.add_returns([1000.0] * 50)
    tracker.add_returns([float(i) for i in range(100)])
    assert tracker.mean_return == 49.5


def test_trackers_come_back_when_their_state_is_loaded() -> None:
    stats = StatsTracker(grad_stats={"norm": 1.5})
    stats.add_rollout_stats({"episode_return": [1.0]})
    stats.add_returns([1.0, 2.0])
    stats.clear_rollout_stats(3)
    stats.add_rollout_stats({"episode_length": [9.0]})
    other = StatsTracker()
    other.load_state_dict(json.loads(json.dumps(stats.state_dict())))
    assert other == stats
    assert other.recent_returns.maxlen == 100


def test_the_first_and_the_latest_policy_are_known_when_policies_are_saved() -> None:
    tracker = PolicyTracker()
    assert tracker.summary() == {"initial": None, "latest": None}
    for epoch in (1, 2, 3):
        tracker.add(PolicyRecord(f"file:{epoch}", "p", epoch, 10 * epoch, {"score": 0.5}))
    assert tracker.summary() == {"initial": "file:1", "latest": "file:3"}
    other = PolicyTracker()
    other.load_state_dict(json.loads(json.dumps(tracker.state_dict())))
    assert other == tracker
    tracker.clear()
    assert tracker == PolicyTracker()
    other.load_state_dict(tracker.state_dict())
    assert other == PolicyTracker()


def test_scores_and_the_start_of_schedules_come_back_when_state_is_loaded() -> None:
    state = TrainerState(first_step=32, eval_epoch=2)
    state.eval_scores = EvalRewardSummary({"training/x": 1.5})
    other = TrainerState()
    other.load_state_dict(json.loads(json.dumps(state.state_dict())))
    assert (other.first_step, other.eval_epoch) == (32, 2)
    assert other.eval_scores == state.eval_scores


def test_progress_counts_from_the_first_step_and_never_passes_one() -> None:
    state = TrainerState(agent_step=150, first_step=100)
    state.measure_progress(200)
    assert state.progress == 0.25
    state.measure_progress(10)
    assert state.progress == 1.0
