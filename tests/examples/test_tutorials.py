"""A tutorial's code runs as it stands, in order, and its page leads on to others."""

import re
import shlex
from pathlib import Path

import pytest

from metta.cli.main import build_parser, main
from tests.pages import all_pages, blocks_of, run_blocks, text_of

TUTORIALS = [
    page
    for page in all_pages()
    if page.startswith("docs/tutorials/") and not page.endswith("/index.md")
]
IN_FULL = "docs/tutorials/own-environment.md"
"""Run together with its commands."""


@pytest.mark.parametrize("page", [page for page in TUTORIALS if page != IN_FULL])
def test_code_blocks_run_when_taken_in_order(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_blocks(page, tmp_path, monkeypatch)


@pytest.mark.parametrize("page", TUTORIALS)
def test_a_tutorial_says_what_comes_next_when_it_ends(page: str) -> None:
    title, *_ = text_of(page).splitlines()
    assert title.startswith("# ")
    (*_, last) = re.split(r"^## ", text_of(page), flags=re.MULTILINE)
    assert last.startswith("What next\n")
    assert re.search(r"\]\([^)]+\.md", last)


def test_every_tutorial_is_listed_when_one_is_added() -> None:
    listed = re.findall(r"\]\(([\w-]+\.md)\)", text_of("docs/tutorials/index.md"))
    assert sorted(listed) == sorted(Path(page).name for page in TUTORIALS)


def commands_of(page: str) -> list[list[str]]:
    lines = "".join(blocks_of(page, "sh")).splitlines()
    return [shlex.split(line)[1:] for line in lines if re.match(r"metta \w", line)]


@pytest.mark.parametrize("page", ["docs/index.md", *TUTORIALS])
def test_every_command_is_one_of_the_program_when_a_page_shows_it(page: str) -> None:
    for words in commands_of(page):
        options, rest = build_parser(words[:1]).parse_known_args(words)
        assert [word for word in rest if word.startswith("-")] == []
        assert options.command == words[0]


def test_the_environment_trains_from_the_shell_when_the_tutorial_has_been_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_blocks(IN_FULL, tmp_path, monkeypatch)
    commands = commands_of(IN_FULL)
    assert len(commands) == 2
    for words in commands:
        assert main([word.replace("=20_000", "=2048") for word in words]) == 0
    assert "delivery" in capsys.readouterr().out
