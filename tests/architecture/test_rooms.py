"""The architecture page agrees with the code: its folders, its path of data, its layers, its paths."""

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
MAX_MODULES = 20
"""Of one folder, its ``__init__`` included; most have a dozen at most."""


def block(kind: str) -> list[str]:
    found = re.search(rf"^```{re.escape(kind)}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"docs/architecture.md has no block {kind!r}"
    return found[1].splitlines()


def first_line(path: Path) -> str:
    return (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n")[0]


def rooms_of_page() -> dict[str, str]:
    """Path below metta -> its line; folders are nested by two spaces."""
    rooms: dict[str, str] = {}
    parents: list[str] = []
    for line in block("rooms"):
        indented, _, text = line.lstrip().partition(" ")
        depth = (len(line) - len(line.lstrip())) // 2
        path = "".join(parents[:depth]) + indented
        if indented.endswith("/"):
            parents[depth:] = [indented]
        rooms[path] = text.strip()
    return rooms


def rooms_of_code() -> dict[str, str]:
    library = ROOT / "metta"
    packages = [path.parent for path in library.rglob("__init__.py") if path.parent != library]
    rooms = {
        f"{p.relative_to(library).as_posix()}/": first_line(p / "__init__.py") for p in packages
    }
    modules = [*library.glob("*.py"), *(library / "rl").glob("*.py")]
    return rooms | {
        path.relative_to(library).as_posix(): first_line(path)
        for path in modules
        if path.name != "__init__.py"
    }


def test_every_room_is_in_the_picture_with_its_own_words() -> None:
    assert rooms_of_page() == rooms_of_code()


def test_no_room_is_crowded() -> None:
    folders = {path.parent for path in (ROOT / "metta").rglob("*.py")}
    crowded = {
        folder.relative_to(ROOT).as_posix(): count
        for folder in folders
        if (count := len(list(folder.glob("*.py")))) > MAX_MODULES
        # one module for each command, of the same name: nobody looks for anything there
        and folder != ROOT / "metta" / "cli" / "commands"
    }
    assert crowded == {}


def test_layers_are_those_that_are_enforced() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    enforced = {c["containers"][0]: c["layers"] for c in contracts if c["type"] == "layers"}
    for container in ("metta", "metta.rl"):
        assert block(f"layers {container}") == enforced[container]


def walk() -> list[tuple[str, str]]:
    section = PAGE.split("## The path of data")[1].split("\n## ")[0]
    return re.findall(r"^\| `(metta/[\w/]+\.py)` \| `([\w.]+)` \|", section, re.MULTILINE)


def test_the_walk_is_short_and_returns_to_no_file() -> None:
    files = [file for file, _ in walk()]
    assert 5 <= len(files) <= 9
    assert len(set(files)) == len(files)


def test_the_walk_names_what_the_files_define() -> None:
    for file, name in walk():
        names = set()
        for node in ast.parse((ROOT / file).read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
            if isinstance(node, ast.ClassDef):
                names |= {
                    f"{node.name}.{m.name}" for m in node.body if isinstance(m, ast.FunctionDef)
                }
        assert name in names, f"{file} does not define {name}"


def test_every_path_on_the_page_exists() -> None:
    named = re.findall(r"`((?:metta|tests|faults|docs|tools)/[\w/.]*)`", PAGE)
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []
