import math
from typing import Any

import pytest

from metta.train.parsing.schema import leaves_of
from metta.train.parsing.values import Key, Text, is_nothing, plain_data, read_value
from metta.train.train_config import TrainingConfig

LEAVES = leaves_of(TrainingConfig)
SEED, GAMMA, KL = "trainer.seed", "trainer.ppo.gamma", "trainer.ppo.target_kl"
CSV, MODE, ENTITY = (
    "trainer.logging.csv",
    "trainer.logging.wandb.mode",
    "trainer.logging.wandb.entity",
)


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        (SEED, "3e8", 300_000_000), (SEED, "1_000", 1000), (SEED, "5.0", 5), (SEED, "-0", 0),
        (SEED, "1.5", "1.5"), (SEED, "x", "x"), (SEED, "1e999999999", "1e999999999"), (SEED, "nan", "nan"),
        (GAMMA, ".inf", math.inf), (GAMMA, "1e-3", "1e-3"), (GAMMA, "null", "null"),
        (KL, "None", None), (KL, "~", None), (KL, "", None), (KL, "0.1", "0.1"),
        (CSV, "off", False), (CSV, "No", False), (CSV, "YES", True), (CSV, "1", True),
        (CSV, "maybe", "maybe"),
        (MODE, "off", "off"), (MODE, "null", "null"), (ENTITY, "null", None), (ENTITY, "me", "me"),
    ],
)  # fmt: skip
def test_the_setting_decides_when_a_text_is_read(path: str, text: str, value: Any) -> None:
    read = read_value(LEAVES[path], Text(text, text, quoted=False))
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize("text", ["null", "none", "~", "", "\r"])
def test_a_text_stays_when_it_is_quoted_or_from_python(text: str) -> None:
    assert read_value(LEAVES[ENTITY], Text(text, text, quoted=True)) == text
    assert read_value(LEAVES[ENTITY], text) == text


def test_a_key_keeps_its_line_when_it_is_used_as_text() -> None:
    assert Key("lr", 7) == "lr"
    assert {Key("lr", 7): 1} == {"lr": 1}
    assert Key("lr", 7).line == 7


def test_a_group_counts_as_empty_when_nothing_stands_below_it() -> None:
    assert is_nothing(None)
    assert is_nothing(Text("", None, quoted=False))
    assert not is_nothing(Text("", "", quoted=True))
    assert not is_nothing({})


def test_only_plain_data_comes_out_when_a_config_is_written() -> None:
    data = plain_data(
        TrainingConfig.from_dict({"tags": ("a", "b"), "env_kwargs": {"x": (1, (2,))}})
    )
    assert data["trainer"]["logging"]["wandb"]["tags"] == ["a", "b"]
    assert data["trainer"]["curriculum"]["env_kwargs"] == {"x": [1, [2]]}


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (SEED, "a whole number of at least 0"),
        (GAMMA, "a number of at least 0 and at most 1"),
        (KL, "a number above 0, or null"),
        (CSV, "true or false"),
        (MODE, "'off', 'offline' or 'online'"),
        (ENTITY, "text, or null"),
        ("experiment_name", "text that is not empty"),
        ("trainer.numerics.driver", "'auto', 'eager' or 'step'"),
        ("trainer.logging.wandb.tags", "a list of texts"),
        ("trainer.curriculum.env_kwargs", "a mapping of names to values"),
        ("trainer.optimizer.beta1", "a number of at least 0 and below 1"),
    ],
)
def test_the_words_say_what_is_allowed_when_a_setting_is_described(path: str, words: str) -> None:
    assert LEAVES[path].words == words
