"""A tutorial's code runs as it stands, in order, and its page leads on to others."""

import re
from pathlib import Path

import pytest

from tests.pages import all_pages, run_blocks, text_of

TUTORIALS = [
    page
    for page in all_pages()
    if page.startswith("docs/tutorials/") and not page.endswith("/index.md")
]


@pytest.mark.parametrize("page", TUTORIALS)
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
