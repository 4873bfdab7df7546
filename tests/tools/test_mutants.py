"""The tool that breaks code, on a package of one module and its tests."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tools.mutants import main
from tools.mutations import apply_mutation, find_mutations

MODULE = '''
def clip(value: float, low: float = -1.0) -> float:
    """A number that is at least `low`."""
    if value < low:
        return low
    return value


class Counter:
    def __init__(self) -> None:
        self.total = 0

    def add(
        self, number: int
    ) -> None:
        self.total += number
        self.note(
            number,
        )

    def note(self, number: int) -> None:
        if number > 99 and number != 1234:
            raise ValueError(f"{number + 1} is too much")


def untested() -> int:
    return 1 + 1
'''
TESTS = """
from tiny.module import Counter, clip

def test_clip_has_a_lower_bound():
    assert clip(-3.0) == -1.0
    assert clip(3.0) == 3.0

def test_counter_adds():
    counter = Counter()
    counter.add(2)
    assert counter.total == 2
"""


ADDED = "self.total += number  ->  self.total -= number"
RETURNED = "return value  ->  return None"
FILES = {
    "tiny/__init__.py": "",
    "tiny/module.py": MODULE,
    "tests/test_it.py": TESTS,
    "pytest.ini": "[pytest]\naddopts = -p pytest_cov\n",
}


@pytest.fixture(scope="module", autouse=True)
def _no_other_plugins() -> Iterator[None]:
    """They take seconds to import, in every process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        yield


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("project"), FILES)


@pytest.fixture(scope="module")
def results(project: Path) -> list[dict[str, Any]]:
    return run(project, project.with_suffix(".jsonl"))


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def run(root: Path, out: Path, *more: str) -> list[dict[str, Any]]:
    words = ["--root", str(root), "--package", "tiny", "--out", str(out), "--count", "99", *more]
    main(words)
    return [json.loads(line) for line in out.read_text().splitlines()]


def outcomes(records: list[dict[str, Any]]) -> dict[str, str]:
    return {record["change"]: record["outcome"] for record in records}


def test_changes_of_every_kind_are_found() -> None:
    changes = {mutation.change for mutation in find_mutations(MODULE)}
    assert changes == {
        "if value < low  ->  if not (value < low)",
        "value < low  ->  (value <= low)",
        "return low  ->  return None",
        "return value  ->  return None",
        "0  ->  1",
        "self.total += number  ->  self.total -= number",
        "self.note(number)  ->  pass",
        "if number > 99 and number != 1234  ->  if not (number > 99 and number != 1234)",
        "number > 99 and number != 1234  ->  (number > 99 or number != 1234)",
        "number > 99  ->  (number >= 99)",
        "number != 1234  ->  (number == 1234)",
        "99  ->  100",
        "1234  ->  1235",
        "return 1 + 1  ->  return None",
        "1 + 1  ->  (1 - 1)",
        "1  ->  2",
    }


def test_one_place_changes_and_lines_keep_their_numbers_in_a_broken_source() -> None:
    for mutation in find_mutations(MODULE):
        broken = apply_mutation(MODULE, mutation)
        ast.parse(broken)
        old, new = MODULE.splitlines(), broken.splitlines()
        assert len(new) == len(old)
        changed = [
            number
            for number, pair in enumerate(zip(old, new, strict=True), 1)
            if pair[0] != pair[1]
        ]
        assert changed[0] == mutation.line


def test_breaks_are_caught_or_survive_as_the_tests_decide(
    project: Path, results: list[dict[str, Any]]
) -> None:
    assert (project / "tiny/module.py").read_text() == MODULE
    caught = {one["change"]: one["by"] for one in results if one["outcome"] == "caught"}
    assert caught[RETURNED] == "tests/test_it.py::test_clip_has_a_lower_bound"
    assert caught[ADDED] == "tests/test_it.py::test_counter_adds"
    # no test notices that, and lines that no test executes are not tried
    assert outcomes(results)["self.note(number)  ->  pass"] == "survived"
    assert "return 1 + 1  ->  return None" not in outcomes(results)


def test_the_same_breaks_are_tried_after_code_has_moved(
    project: Path, results: list[dict[str, Any]], tmp_path: Path
) -> None:
    module = MODULE.replace("Counter", "Sum").replace("return low", "return 0.0 + low")
    tests = TESTS.replace("tiny.module", "tiny.sums").replace("Counter", "Sum")
    weaker = tests.replace("counter.total == 2", "counter.total")
    moved = {
        "tiny/module.py": "",
        "tiny/sums.py": f"import os\n{module}",
        "tests/test_it.py": weaker,
    }
    other = write(tmp_path / "other", FILES | moved)
    after = run(other, tmp_path / "after.jsonl", "--replay", str(project.with_suffix(".jsonl")))
    assert len(after) == len(results)
    assert (outcomes(results)[ADDED], outcomes(after)[ADDED]) == ("caught", "survived")
    assert outcomes(after)[RETURNED] == "caught"
    gone = [record["change"] for record in after if record["outcome"] == "missing"]
    assert gone == ["return low  ->  return None"]


def test_a_break_that_never_ends_is_a_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "def fill(items: list) -> None:\n    while not items:\n        items.append(items)\n"
    tests = "from tiny.module import fill\ndef test_it():\n    fill([])\n"
    root = write(tmp_path / "loop", FILES | {"tiny/module.py": module, "tests/test_it.py": tests})
    monkeypatch.setattr("tools.mutants.PATIENCE", 2.0)
    found = run(root, tmp_path / "out.jsonl")
    assert outcomes(found) == {"items.append(items)  ->  pass": "timeout"}
