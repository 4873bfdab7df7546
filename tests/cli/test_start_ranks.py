"""When a command starts ranks; that it does is shown in tests/ranks."""

import pytest

from metta.cli.start_ranks import start_ranks
from metta.train.train_config import SystemConfig


def test_a_command_goes_on_when_it_is_one_of_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    start_ranks(SystemConfig(num_processes=4))  # would not come back


def test_a_command_goes_on_when_one_process_is_enough() -> None:
    start_ranks(SystemConfig())
