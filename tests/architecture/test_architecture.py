"""Rules of the code base that no single file can keep alone."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIBRARY = sorted((ROOT / "metta").rglob("*.py"))
SCRIPTS = [ROOT / "setup.py", *sorted((ROOT / "examples").glob("*.py"))]
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tracked_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("this is not a git checkout, so there are no tracked files")
    return [path for name in listed.stdout.splitlines() if (path := ROOT / name).is_file()]


def test_imports_point_down_when_the_layers_are_checked() -> None:
    # in a process of its own: the linter reconfigures logging for all
    code = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports())"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr


def too_long(source: str) -> list[str]:
    """What is longer than allowed: the file itself, and its functions."""
    num_lines = len(source.splitlines())
    found = [f"{num_lines} lines"] if num_lines > MAX_FILE_LINES else []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                found.append(f"{node.name} has {length} lines")
    return found


def silenced_without_reason(source: str) -> list[str]:
    """Lines that silence every check, or one check without a reason beside it."""
    named = re.compile(r"#\s*(?:noqa: [A-Z0-9, ]+|type: ignore\[[\w, -]+\])(.*)$")
    found = []
    for number, line in enumerate(source.splitlines(), 1):
        if re.search(r"#\s*(noqa|type:\s*ignore)", line):
            match = named.search(line)
            if not match:
                found.append(f"line {number} silences every check; name the one that is meant")
            elif not re.search(r"\w{3,}", match[1]):
                found.append(f"line {number} gives no reason")
    return found


def test_files_and_functions_stay_short() -> None:
    found = [f"{name_of(path)}: {what}" for path in LIBRARY for what in too_long(path.read_text())]
    assert found == []
    long_function = "def f():\n" + "    pass\n" * MAX_FUNCTION_LINES
    assert too_long(long_function) == [f"f has {MAX_FUNCTION_LINES + 1} lines"]
    assert too_long("\n" * (MAX_FILE_LINES + 1)) == [f"{MAX_FILE_LINES + 1} lines"]


def test_a_check_is_silenced_only_with_a_reason_beside_it() -> None:
    found = [
        f"{name_of(path)}: {what}"
        for path in [*LIBRARY, *SCRIPTS]
        for what in silenced_without_reason(path.read_text())
    ]
    assert found == []
    assert silenced_without_reason("x = 1  # " + "noqa\ny = 1  # " + "type: ignore[arg-type]") == [
        "line 1 silences every check; name the one that is meant",
        "line 2 gives no reason",
    ]


def test_no_file_names_a_machine_or_a_registry_when_it_is_tracked() -> None:
    folders = "|".join(["home", "root", "work", "Users", "mnt", "workspace"])
    hosts = "|".join([r"pypi\.org", r"pythonhosted\.org", r"--(?:extra-)?index-url", r"npmjs\."])
    forbidden = re.compile(rf"(?<![\w.~*}})-])/(?:{folders})/\w|{hosts}")
    found = []
    for path in tracked_files():
        if path == Path(__file__) or path.suffix in (".png", ".gif", ".so"):
            continue
        text = path.read_text(errors="replace")
        found += [f"{name_of(path)}: {match[0]}" for match in forbidden.finditer(text)]
    assert found == []


def test_every_module_is_tested_when_it_exists() -> None:
    """A test file bears its name (perhaps with more words), or imports it."""
    tests = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    names = "\n".join(f"_{path.stem}_" for path in tests)
    mentioned = "\n".join(path.read_text() for path in tests)
    untested = []
    for path in LIBRARY:
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        package, _, stem = module.rpartition(".")
        imported = rf"{re.escape(module)}\b|from {re.escape(package)} import [^\n]*\b{stem}\b"
        if stem != "__init__" and f"_{stem}_" not in names and not re.search(imported, mentioned):
            untested.append(module)
    assert untested == []


def test_test_files_have_names_of_their_own_when_they_are_collected() -> None:
    stems = [path.stem for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(stems) == sorted(set(stems))


def test_actors_say_what_they_can_do_so_that_nobody_else_asks_for_their_class() -> None:
    actors = ROOT / "metta" / "agent" / "actors"
    trees = {path: ast.parse(path.read_text()) for path in LIBRARY}
    concrete = {
        node.name
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if path.is_relative_to(actors)
        and isinstance(node, ast.ClassDef)
        and any(isinstance(base, ast.Name) and base.id.endswith("Actor") for base in node.bases)
    }
    assert {"EagerActor", "TracedActor", "CActor"} <= concrete
    asked = [
        f"{name_of(path)}:{node.lineno}"
        for path, tree in trees.items()
        if not path.is_relative_to(actors)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("isinstance", "issubclass")
        and concrete & set(re.findall(r"\w+", ast.unparse(node.args[1])))
    ]
    assert asked == []
