"""The commands that the page of sweeps shows are read as it says; nothing is trained."""

import argparse
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from metta.cli.main import build_parser
from metta.cli.sweeping import defined
from metta.sweeps.definition import SAMPLERS, SweepDefinition
from metta.sweeps.pruning import PRUNERS
from metta.sweeps.ranges import read_range
from tests.pages import blocks_of, text_of

PAGE = "docs/sweeps.md"
_OWN_ENV = (
    "from gymnasium.envs.classic_control import CartPoleEnv\n\n\nclass Line(CartPoleEnv): ...\n"
)
COMMANDS = [
    shlex.split(line, comments=True)[1:]
    for page in (PAGE, "README.md")
    for line in "".join(
        re.findall(r"^(metta (?:sweep|seeds) .*\n)", text_of(page), re.MULTILINE)
    ).splitlines()
]


def options_of(words: list[str]) -> argparse.Namespace:
    options, rest = build_parser(words[:1]).parse_known_args(words)
    assert [word for word in rest if word.startswith("-")] == []
    options.words = [*options.words, *rest]
    return options


def definition_of(words: list[str], runs: Path) -> SweepDefinition | None:
    options = options_of(words)
    options.runs = str(runs)
    if options.words[0] in ("resume", "status", "best", "plot", "remove"):
        return None
    own = options.words[1:] if words[0] == "seeds" else options.words
    return defined(own, options, words[0])


@pytest.fixture
def own_env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The environment of the page, in the current folder."""
    (tmp_path / "my_env.py").write_text(_OWN_ENV)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("my_env", None)


@pytest.mark.usefixtures("own_env")
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_is_accepted_when_a_page_shows_it(words: list[str], tmp_path: Path) -> None:
    definition = definition_of(words, tmp_path)
    if definition is not None:
        assert bool(definition.ranges) is (words[0] == "sweep")


def test_the_page_shows_both_commands_in_full() -> None:
    shown = [words for words in COMMANDS if "CartPole-v1" in words]
    assert {words[0] for words in shown} == {"sweep", "seeds"}
    assert len(blocks_of(PAGE, "text")) == 2


def test_ranges_mean_what_the_table_says() -> None:
    rows = [
        line.split("|")[1:3]
        for line in text_of(PAGE).splitlines()
        if "=" in line.split("|")[1:2].__str__()
    ]
    words = [word for cell, _ in rows for word in re.findall(r"`([^`]+)`", cell) if "=" in word]
    assert len(words) >= 8
    kinds = {word: read_range(word).kind for word in words}
    assert kinds["lr=1e-5..1e-2:log"] == "float"
    assert kinds["n_epochs=3..10"] == "int"
    assert kinds["activation=tanh,relu"] == "choice"


def test_every_choice_of_an_option_is_on_the_page() -> None:
    for choice in (
        *SAMPLERS,
        *PRUNERS,
        "score",
        "reward",
        "steps",
        "wall",
        "cpu",
        "local",
        "queue",
        "ray",
    ):
        assert f"`{choice}`" in text_of(PAGE)
