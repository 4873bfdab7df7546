"""When a command starts ranks; that it does is shown in tests/ranks."""

import pytest

from metta.cli.start_ranks import require_name_for_restarts, start_ranks
from metta.errors import ConfigError, RankGoneError
from metta.rl.rank_agent import exit_code_of, reason_to_restart
from metta.train.train_config import SystemConfig


def test_a_command_goes_on_when_it_is_one_of_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    start_ranks(SystemConfig(num_processes=4))  # would not come back


def test_a_command_goes_on_when_one_process_is_enough() -> None:
    start_ranks(SystemConfig())


def test_ranks_that_are_started_again_need_the_name_of_their_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require_name_for_restarts(None)
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    require_name_for_restarts("mine")
    with pytest.raises(ConfigError, match="name it with --run NAME"):
        require_name_for_restarts(None)


GONE = RankGoneError.exit_code


@pytest.mark.parametrize(
    ("codes", "reason", "code"),
    [
        ({1: -9}, "rank 1 was ended by SIGKILL", 1),
        ({0: GONE, 1: -11}, "rank 1 was ended by SIGSEGV", 1),
        ({0: 143, 1: -9}, "rank 1 was ended by SIGKILL", 1),
        ({0: GONE}, "a rank is gone", 1),
        ({0: -2, 1: -9}, "rank 1 was ended by SIGKILL", 1),
        ({1: 1, 0: -15}, None, 1),  # one failed, and the agent ended the other
        ({1: 2, 0: GONE}, None, 2),
        ({0: 143}, None, 143),  # stopped by a signal
        ({}, None, 0),
    ],
)
def test_ranks_start_again_where_one_was_lost_and_not_where_one_failed(
    codes: dict[int, int], reason: str | None, code: int
) -> None:
    assert reason_to_restart(codes) == reason
    assert exit_code_of(codes) == code
