import pytest

from metta.envs.workers.supervision import RestartBudget


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_restarts_are_allowed_again_when_an_hour_has_passed() -> None:
    clock = Clock()
    budget = RestartBudget(2, clock)
    assert [budget.spend(), budget.spend(), budget.spend()] == [True, True, False]
    clock.now = 3600.0
    assert not budget.spend()
    clock.now = 3600.1
    assert [budget.spend(), budget.spend(), budget.spend()] == [True, True, False]


def test_a_run_goes_on_for_days_when_failures_are_rare() -> None:
    clock = Clock()
    budget = RestartBudget(3, clock)
    for _ in range(100):
        clock.now += 1300.0
        assert budget.spend()


@pytest.mark.parametrize("max_restarts", [0, 1])
def test_no_restart_is_allowed_when_there_are_none_left(max_restarts: int) -> None:
    budget = RestartBudget(max_restarts, Clock())
    assert [budget.spend() for _ in range(max_restarts)] == [True] * max_restarts
    assert not budget.spend()
