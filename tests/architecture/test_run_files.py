"""Files that others may have written are opened by `metta.untrusted` alone, and printed by one function."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "agent", "cli", "curriculum", "database", "loggers", "profiling", "replays", "rl", "runs", "sim",
    "store", "train",
)  # fmt: skip
"""All that may read the folder of a run."""

READERS = {
    "open",
    "os.open",
    "os.fdopen",
    "io.open",
    "io.FileIO",
    "safetensors.safe_open",
    "codecs.open",
}
METHODS = {
    "open",
    "read_text",
    "read_bytes",
    "load_file",
    "fromfile",
    "genfromtxt",
    "loadtxt",
    "read_csv",
}
_WRITING = ("w", "x", "a")

REASONS = {
    ("metta/cli/lost_console.py", "os.open"): "the null device, in the place of a lost console",
    ("metta/runs/summary.py", "read_text"): "the kernel's list of locks",
    ("metta/loggers/events/append_file.py", "os.open"): "appends to files that `RunDirectory` has checked",
    ("metta/loggers/sinks/csv_repair.py", "open"): "the descriptor of a table that is written to",
    ("metta/loggers/sinks/csv_repair.py", "os.open"): "writes to a table, never through a link",
    ("metta/loggers/monitor.py", "read_text"): "what the kernel says of this process",
    ("metta/rl/components/trainer.py", "open"): "a session's own method",
    ("metta/rl/resume/conditions.py", "read_text"): "the kernel's list of processors",
    ("metta/rl/compiled/cache.py", "read_text"): "the kernel's processors, and the user's own cache",
    ("metta/rl/evaluate/process.py", "os.fdopen"): "a pipe between a trainer and its own process",
    ("metta/rl/loop.py", "open"): "the hooks' own method",
    ("metta/store/exports/policy_export.py", "read_bytes"): "what this process has just written",
    ("metta/store/rollout_file.py", "safetensors.safe_open"): "maps a rollout that was verified",
    ("metta/store/unpickling.py", "read_text"): "what the kernel says of this process",
}  # fmt: skip


def reads(source: str) -> Iterator[tuple[int, str]]:
    """Line and name of every call that opens a file to read it."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        full = ast.unparse(node.func)
        mode = _mode(node, full)
        is_method = isinstance(node.func, ast.Attribute) and node.func.attr in METHODS
        name = full.rpartition(".")[2] if is_method and full not in READERS else full
        if (full in READERS or is_method) and not (mode or "").startswith(_WRITING):
            yield node.lineno, name


def _mode(node: ast.Call, full: str) -> str | None:
    """The mode of an ``open``, where it is written there."""
    place = 1 if full in ("open", "io.open", "os.fdopen", "codecs.open") else 0
    given = [word.value for word in node.keywords if word.arg == "mode"] or node.args[
        place : place + 1
    ]
    value = given[0].value if given and isinstance(given[0], ast.Constant) else None
    return value if isinstance(value, str) else None


def modules(*packages: str) -> list[Path]:
    return [path for name in packages for path in sorted((ROOT / "metta" / name).rglob("*.py"))]


def test_run_files_are_opened_by_one_package_when_there_is_no_reason_not_to() -> None:
    found = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in modules(*PACKAGES)
        for _, name in reads(path.read_text())
    }
    assert found == REASONS.keys()


def test_commands_print_through_one_function() -> None:
    printing = [
        f"{path.name}:{node.lineno}"
        for path in modules("cli")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "print"
    ]
    assert [place.partition(":")[0] for place in printing] == ["tables.py"]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("open(path)", ["open"]),
        ("open(path, 'rb')", ["open"]),
        ("open(path, 'w')", []),
        ("path.open()", ["open"]),
        ("path.open('rb')", ["open"]),
        ("path.open(mode='r')", ["open"]),
        ("path.open('wb')", []),
        ("Path(x).read_text()", ["read_text"]),
        ("(folder / 'a').read_bytes()", ["read_bytes"]),
        ("os.open(path, os.O_RDONLY)", ["os.open"]),
        ("np.fromfile(path)", ["fromfile"]),
        ("safetensors.torch.load_file(path)", ["load_file"]),
        ("open_regular(path)\nread_json(path)\npath.write_text('x')", []),
    ],
)
def test_a_reader_is_found_when_it_is_written_in_any_way(source: str, found: list[str]) -> None:
    assert [name for _, name in reads(source)] == found
