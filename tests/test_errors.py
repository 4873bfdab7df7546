import inspect
import pickle

import pytest

from metta import errors
from metta.errors import (
    ActorError,
    ConfigError,
    MettaError,
    MettaWarning,
    MissingExtraError,
    PolicyError,
    did_you_mean,
)

ERRORS = [
    kind
    for name in errors.__all__
    if inspect.isclass(kind := getattr(errors, name)) and issubclass(kind, Exception)
]


@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_is_caught_when_the_base_is_caught(kind: type[Exception]) -> None:
    assert issubclass(kind, Warning if kind is MettaWarning else MettaError)
    assert kind.__doc__


def test_all_lists_every_error_when_one_is_added() -> None:
    defined = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and value.__module__ == errors.__name__
    }
    assert defined <= set(errors.__all__)


def test_an_actor_error_is_a_policy_error_when_it_is_caught() -> None:
    assert issubclass(ActorError, PolicyError)


def test_the_message_says_how_to_install_when_an_extra_is_missing() -> None:
    message = str(MissingExtraError("matplotlib", "plot", "drawing a curve"))
    assert "drawing a curve needs the package 'matplotlib'" in message
    assert "pip install 'metta-rl[plot]'" in message


def test_the_error_survives_when_it_is_pickled_between_processes() -> None:
    error = pickle.loads(pickle.dumps(ConfigError("num_envs=0; use 1")))
    assert type(error) is ConfigError
    assert str(error) == "num_envs=0; use 1"
    extra = pickle.loads(pickle.dumps(MissingExtraError("a", "b", "c")))
    assert str(extra) == str(MissingExtraError("a", "b", "c"))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("lerning_rate", "; did you mean 'learning_rate'?"),
        ("gama", "; did you mean 'gamma'?"),
        ("zzz", ""),
        ("", ""),
    ],
)
def test_the_hint_names_the_closest_spelling_when_there_is_one(name: str, hint: str) -> None:
    assert did_you_mean(name, ["gamma", "learning_rate", "seed"]) == hint


def test_there_is_no_hint_when_nothing_is_known() -> None:
    assert did_you_mean("gamma", []) == ""
