import os
import signal
import threading

import pytest

from metta.rl.stop_signals import stopping_on_signals
from metta.rl.training_state import TrainerState


@pytest.fixture(autouse=True)
def default_handlers():
    """The suite may run in the background, where SIGINT is ignored."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_is_requested_when_a_signal_comes(number: signal.Signals) -> None:
    state = TrainerState()
    with stopping_on_signals(state) as signals:
        os.kill(os.getpid(), number)
    assert state.stop_reason == f"{number.name} was received"
    assert signals.received == number
    assert signal.getsignal(number) is signal.default_int_handler


def test_the_second_signal_interrupts_when_one_came_before() -> None:
    state = TrainerState()
    with stopping_on_signals(state):
        os.kill(os.getpid(), signal.SIGINT)
        assert state.stop_reason is not None
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_an_ignored_signal_stays_ignored_when_training_begins() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    state = TrainerState()
    with stopping_on_signals(state):
        os.kill(os.getpid(), signal.SIGINT)
    assert state.stop_reason is None


def test_handlers_stay_when_training_runs_in_another_thread() -> None:
    seen = []

    def train() -> None:
        with stopping_on_signals(TrainerState()) as signals:
            seen.append((signal.getsignal(signal.SIGINT), signals.received))

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert seen == [(signal.default_int_handler, None)]
