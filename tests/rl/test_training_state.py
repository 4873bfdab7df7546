from metta.rl.training_state import TrainerState
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
