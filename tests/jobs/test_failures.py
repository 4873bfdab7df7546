"""Which failures another attempt can mend."""

import pytest

from metta.errors import ConfigError, EnvError, RunLockedError, UnsafeFileError
from metta.jobs.failures import JobFailedError, is_final, shown_error


@pytest.mark.parametrize(
    "error", [ConfigError("x"), UnsafeFileError("x"), JobFailedError("x", is_final=True)]
)
def test_what_was_asked_for_wrongly_fails_for_good(error: Exception) -> None:
    assert is_final(error)


@pytest.mark.parametrize(
    "error", [EnvError("x"), RunLockedError("x"), OSError("x"), JobFailedError("x")]
)
def test_what_happened_on_the_way_is_tried_again(error: Exception) -> None:
    assert not is_final(error)


def test_an_error_is_shown_with_its_kind_once() -> None:
    assert shown_error(ConfigError("x")) == "ConfigError: x"
    assert shown_error(JobFailedError("ConfigError: x")) == "ConfigError: x"
