import math

import pytest

from metta.errors import RolloutError
from metta.rl.loop import run_training
from metta.rl.training_state import TrainerState


def ten_steps(state: TrainerState) -> dict[str, float]:
    state.agent_step += 10
    return {"loss": float(state.agent_step)}


def test_epochs_repeat_when_steps_are_left() -> None:
    state = TrainerState()
    history = run_training(state, ten_steps, until_step=25)
    assert history == {
        "epoch": [1.0, 2.0, 3.0],
        "agent_step": [10.0, 20.0, 30.0],
        "loss": [10.0, 20.0, 30.0],
    }
    assert (state.epoch, state.agent_step) == (3, 30)
    assert state.stats == {"loss": 30.0}


def test_counting_goes_on_when_the_state_is_not_new() -> None:
    state = TrainerState(agent_step=100, epoch=7)
    assert run_training(state, ten_steps, until_step=110)["epoch"] == [8.0]


@pytest.mark.parametrize("until_step", [0, -5, 100])
def test_nothing_runs_when_the_goal_is_reached(until_step: int) -> None:
    state = TrainerState(agent_step=100)
    assert run_training(state, ten_steps, until_step=until_step) == {}


def test_the_epoch_is_finished_when_a_stop_is_requested_in_it() -> None:
    def step(state: TrainerState) -> dict[str, float]:
        if state.epoch == 1:
            state.request_stop("solved")
        return ten_steps(state)

    assert run_training(TrainerState(), step, until_step=100)["epoch"] == [1.0, 2.0]


def test_gaps_are_nan_when_a_metric_comes_and_goes() -> None:
    def step(state: TrainerState) -> dict[str, float]:
        ten_steps(state)
        return {"always": 1.0} | ({"second": 2.0} if state.epoch == 1 else {})

    history = run_training(TrainerState(), step, until_step=30)
    assert history["always"] == [1.0, 1.0, 1.0]
    assert [math.isnan(value) for value in history["second"]] == [True, False, True]


def test_metrics_keep_their_order_when_history_is_made() -> None:
    def step(state: TrainerState) -> dict[str, float]:
        ten_steps(state)
        return dict.fromkeys("zyxabc", 0.0)

    history = run_training(TrainerState(), step, until_step=20)
    assert list(history) == ["epoch", "agent_step", *"zyxabc"]


def test_the_listener_gets_state_and_metrics_when_an_epoch_ends() -> None:
    seen: list[tuple[int, dict[str, float]]] = []
    state = TrainerState()
    run_training(
        state, ten_steps, until_step=20, on_epoch_end=lambda s, m: seen.append((s.agent_step, m))
    )
    assert seen == [
        (10, {"epoch": 1.0, "agent_step": 10.0, "loss": 10.0}),
        (20, {"epoch": 2.0, "agent_step": 20.0, "loss": 20.0}),
    ]


def test_an_error_leaves_the_loop_when_an_epoch_fails() -> None:
    def step(_: TrainerState) -> dict[str, float]:
        raise ValueError("broken")

    state = TrainerState()
    with pytest.raises(ValueError, match="broken"):
        run_training(state, step, until_step=10)
    assert state.epoch == 0


def test_idle_epochs_are_allowed_when_they_are_few() -> None:
    def step(state: TrainerState) -> dict[str, float]:
        return ten_steps(state) if state.epoch % 50 == 49 else {"loss": 0.0}

    assert len(run_training(TrainerState(), step, until_step=20)["epoch"]) == 100


def test_a_rollout_error_ends_training_when_no_epoch_takes_a_step() -> None:
    with pytest.raises(RolloutError, match="100 epochs in a row collected no step"):
        run_training(TrainerState(), lambda _: {}, until_step=10)
