"""The documentation site builds without a warning, its links hold, and it asks nothing of other hosts."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import metta
from metta.cli.main import COMMANDS
from metta.train.parsing.schema import leaves_of
from metta.train.train_config import TrainingConfig
from tests.pages import ROOT

pytestmark = pytest.mark.timeout(300)  # the first test waits for the build
LOADING_LINKS = {
    "stylesheet",
    "icon",
    "preload",
    "prefetch",
    "preconnect",
    "dns-prefetch",
    "manifest",
}


class Page(HTMLParser):
    """What a page links to, what a browser loads for it, and the anchors that it has."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and LOADING_LINKS & set(given.get("rel", "").split()):
            self.loaded.append(given["href"])
        if tag != "a":
            self.loaded += [given[name] for name in ("src", "poster", "data") if given.get(name)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    # without --quiet, which hides warnings from --strict as well
    result = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    # the page of a wrong address is made for a server's root: its links are absolute
    return {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}


def test_every_link_leads_to_a_page_and_an_anchor_when_it_stays_on_the_site(
    pages: dict[Path, Page],
) -> None:
    broken = []
    for path, page in pages.items():
        for link in [*page.links, *page.loaded]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            has_anchor = not anchor or (target in pages and anchor in pages[target].anchors)
            if not target.is_file() or not has_anchor:
                broken.append(f"{path.name}: {link}")
    assert sum(len(page.links) for page in pages.values()) > 1000
    assert broken == []


def test_a_page_loads_nothing_from_another_host_when_it_is_shown(
    site: Path, pages: dict[Path, Page]
) -> None:
    loaded = [address for page in pages.values() for address in page.loaded]
    for sheet in site.rglob("*.css"):
        loaded += re.findall(r"url\([\"']?([^)\"']+)", sheet.read_text())
        loaded += re.findall(r"@import\s+[\"']([^\"']+)", sheet.read_text())
    assert any(address.endswith(".css") for address in loaded)
    assert [address for address in loaded if re.match(r"(https?:)?//", address)] == []


def test_the_reference_has_every_command_setting_and_public_name_when_one_is_added(
    site: Path, pages: dict[Path, Page]
) -> None:
    assert {f"metta-{name}" for name in COMMANDS} <= pages[site / "cli.html"].anchors
    settings = (site / "settings.html").read_text()
    for path in leaves_of(TrainingConfig):
        assert f"<code>{path.rpartition('.')[2]}</code>" in settings
    names = {name for name in metta.__all__ if not name.startswith("__")}
    shown = {anchor.rpartition(".")[2] for anchor in pages[site / "api.html"].anchors}
    assert names <= shown


def test_a_page_can_be_found_by_its_words_when_the_search_is_used(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text()
    for words in ("tutorials/recurrent-network.html", "metta certify", "trainer.ppo"):
        assert words in index
