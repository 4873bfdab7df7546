"""What the documentation site has beyond `docs/`: pages of the root, examples, generated lists.

mkdocs calls the functions ``on_*``. A page says by a comment, ``<!-- generated: commands -->``, where a
list goes that is made from the code itself, so that it cannot be out of date.
"""

import argparse
import ast
import functools
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from metta.cli.main import build_parser
from metta.train.parsing.field_docs import setting_docs
from metta.train.parsing.schema import groups_of, leaves_of
from metta.train.train_config import TrainingConfig

ROOT = Path(__file__).parents[1]
ROOT_PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
_LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
_HELP = functools.partial(argparse.HelpFormatter, width=88)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not below `docs/`."""
    scripts = sorted((ROOT / "examples").glob("*.py"))
    pages = {name: (ROOT / name).read_text() for name in ROOT_PAGES}
    pages["examples/index.md"] = _list_of_examples(scripts)
    for script in scripts:
        pages[_example_page(script.name)] = (
            f"# {script.name}\n\n```python\n{script.read_text()}```\n"
        )
    for file in sorted((ROOT / "examples" / "cluster").iterdir()):
        pages[f"examples/cluster/{file.name}"] = file.read_text()  # to be downloaded
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001  # mkdocs passes them
    """Fill in generated lists, and let links inside the repository lead to pages of the site."""
    if page.parent is None:  # a tab of its own: there is nothing to list beside it
        page.meta["hide"] = ["navigation"]
    text = re.sub(r"<!-- generated: (\w+) -->", lambda found: _GENERATED[found[1]](), markdown)
    text = re.sub(r"\[([\w-]+\.md)\]\(", lambda found: f"[{_title(found[1])}](", text)
    name = page.file.src_uri
    return _LINK.sub(lambda found: f"]({_site_link(found[1], name)}{found[2] or ''})", text)


def _site_link(target: str, page: str) -> str:
    """A link that is right in the repository, as it must be on the site."""
    folder = posixpath.dirname(page)
    home = "" if page in ROOT_PAGES else posixpath.join("docs", folder)
    place = posixpath.normpath(posixpath.join(home, target)).removeprefix("docs/")
    if place == "examples":
        place = "examples/index.md"
    elif place.startswith("examples/") and place.endswith(".py"):
        place = _example_page(place)
    return posixpath.relpath(place, folder or ".")


def _title(name: str) -> str:
    """What a page calls itself: on the site, nobody sees its file name."""
    path = ROOT / ("" if name in ROOT_PAGES else "docs") / name
    return path.read_text().partition("\n")[0].lstrip("# ") if path.exists() else name


def _example_page(script: str) -> str:
    return f"examples/{Path(script).stem}.md"


def _list_of_examples(scripts: list[Path]) -> str:
    rows = [f"| [{path.name}]({path.stem}.md) | {_first_words(path)} |\n" for path in scripts]
    head = "# Examples\n\nScripts of the folder `examples`; a test runs each of them.\n\n"
    return f"{head}| script | |\n|---|---|\n{''.join(rows)}"


def _first_words(script: Path) -> str:
    doc = ast.get_docstring(ast.parse(script.read_text())) or ""
    return " ".join(doc.partition("\n\n")[0].split())


def _commands() -> str:
    parts = []
    for depth, parser in _parsers(build_parser()):
        parser.formatter_class = _HELP
        parts.append(f"{'#' * depth} {parser.prog}\n\n```text\n{parser.format_help()}```\n")
    return "\n".join(parts)


def _parsers(
    parser: argparse.ArgumentParser, depth: int = 2
) -> Iterator[tuple[int, argparse.ArgumentParser]]:
    """The parser of every command, and of the actions below it."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in dict.fromkeys(action.choices.values()):
                yield depth, below
                yield from _parsers(below, depth + 1)


def _settings() -> str:
    docs, parts = setting_docs(TrainingConfig), []
    for group in ("", *groups_of(TrainingConfig)):
        rows = [
            f"| `{leaf.path.rpartition('.')[2]}` | {_default(leaf.default)} "
            f"| {leaf.words} | {_cell(docs.get(leaf.path, ''))} |\n"
            for leaf in leaves_of(TrainingConfig).values()
            if leaf.path.rpartition(".")[0] == group
        ]
        if rows:
            head = f"## `{group}`\n\n{docs.get(group, '')}\n\n" if group else ""
            table = f"| setting | default | allowed | meaning |\n|---|---|---|---|\n{''.join(rows)}"
            parts.append(head + table)
    return "\n".join(parts)


def _default(value: Any) -> str:
    return "" if value in (None, "", (), {}) else f"`{value}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


_GENERATED = {"commands": _commands, "settings": _settings}
"""Name in the comment -> the text that takes its place."""
