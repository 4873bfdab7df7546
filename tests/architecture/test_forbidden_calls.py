"""Files are data: nothing in the library runs what it reads, except where a reason is given here."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIBRARY = sorted((ROOT / "metta").rglob("*.py"))

MODULES = {
    "pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "jsonpickle", "shelve", "marshal",
    "pickletools", "runpy", "code", "codeop", "imp", "pty",
}  # fmt: skip
"""Modules that run what they read, or run text."""

NAMES = {
    "eval", "exec", "compile", "__import__",
    "builtins.eval", "builtins.exec", "builtins.compile", "builtins.__import__",
    "torch.load", "torch.jit.load", "torch.hub.load", "torch.package.PackageImporter",
    "torch.serialization.load", "torch.export.load", "torch.distributed.checkpoint.load",
    "torch.distributed.broadcast_object_list", "torch.distributed.all_gather_object",
    "torch.distributed.gather_object", "torch.distributed.scatter_object_list",
    "yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.unsafe_load_all", "yaml.full_load",
    "yaml.full_load_all", "yaml.Loader", "yaml.FullLoader", "yaml.UnsafeLoader", "yaml.CLoader",
    "yaml.CFullLoader", "yaml.CUnsafeLoader", "numpy.load", "np.load", "numpy.lib.npyio.load",
    "importlib.import_module", "importlib.util.spec_from_file_location",
    "importlib.machinery.SourceFileLoader",
    "os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput",
}  # fmt: skip
"""Functions and classes that do; however they are imported, renamed or looked up."""

REASONS = {
    ("metta/envs/workers/worker.py", "cloudpickle"): "a trainer and its own workers, over their own pipe",
    ("metta/rl/remote/own_modules.py", "cloudpickle"): "how classes are sent to a run's actors",
    ("metta/rl/compiled/cache.py", "pickle"): "a trainer and its own compiler talk over their own pipe",
    ("metta/rl/compiled/worker.py", "pickle"): "a trainer and its own compiler talk over their own pipe",
    ("metta/store/unpickling.py", "pickle"): "the name of an error, in the converter's own process",
    ("metta/store/unpickling.py", "torch.load"): "the converter's own process, when the user asks for it",
    ("metta/lazy.py", "importlib.import_module"): "metta's own modules, from tables in its source",
    ("metta/cli/main.py", "importlib.import_module"): "metta's own commands, from a table in its source",
    ("metta/envs/families/packages.py", "importlib.import_module"): "packages in its own table",
    ("metta/envs/env_ids.py", "importlib.import_module"): "`module:` before an environment's id",
    ("metta/store/exports/policy_export.py", "torch.export.load"): "bytes that this process exported",
}  # fmt: skip


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def dotted(node: ast.expr) -> str:
    """``a.b.c``, also where a part is looked up by a literal name; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    if isinstance(node, ast.Call) and dotted(node.func) == "getattr" and len(node.args) > 1:
        attribute = node.args[1]
        if isinstance(attribute, ast.Constant):
            return f"{dotted(node.args[0])}.{attribute.value}"
    return ""


def imported_names(tree: ast.AST) -> Iterator[tuple[int, str, str, str]]:
    """Line and full name of everything that is imported; its name in the file, and what that stands for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                short = (alias.asname, alias.name) if alias.asname else (top, top)
                yield node.lineno, alias.name, *short
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield node.lineno, full, alias.asname or alias.name, full


def forbidden(source: str) -> Iterator[tuple[int, str]]:
    """Line and name of whatever may run what it reads."""
    tree = ast.parse(source)
    meanings: dict[str, str] = {}
    for line, full, local, meaning in imported_names(tree):
        meanings[local] = meaning
        if full.partition(".")[0] in MODULES:
            yield line, full.partition(".")[0]
    literal_imports = {
        id(node.func)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "shell":
            yield node.value.lineno, "shell="
        if not isinstance(node, ast.Name | ast.Attribute | ast.Call):
            continue
        first, dot, rest = dotted(node).partition(".")
        full = meanings.get(first, first) + dot + rest
        is_literal = full == "importlib.import_module" and id(node) in literal_imports
        if full in NAMES and not is_literal:
            yield node.lineno, full


def test_nothing_runs_what_it_reads_when_there_is_no_reason_for_it() -> None:
    found = {(name_of(path), name) for path in LIBRARY for _, name in forbidden(path.read_text())}
    assert found == REASONS.keys()


def test_the_one_unpickler_is_restricted_when_it_is_called() -> None:
    tree = ast.parse((ROOT / "metta/store/unpickling.py").read_text())
    loads = [
        n for n in ast.walk(tree) if isinstance(n, ast.Call) and dotted(n.func) == "torch.load"
    ]
    assert len(loads) == 1
    keywords = {word.arg: ast.unparse(word.value) for word in loads[0].keywords}
    assert keywords["weights_only"] == "True"


def test_nobody_imports_the_unpickler_when_it_runs_in_its_own_process() -> None:
    importing = [
        name_of(path)
        for path in LIBRARY
        for _, full, *_ in imported_names(ast.parse(path.read_text()))
        if full.startswith("metta.store.unpickling")
    ]
    assert importing == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import torch\ntorch.load(path)", [(2, "torch.load")]),
        ("from torch import load\nload(path)", [(2, "torch.load")]),
        ("from torch import load as read\nread(path)", [(2, "torch.load")]),
        ("import torch as t\nread = t.load", [(2, "torch.load")]),
        ("import torch\ngetattr(torch, 'load')(path)", [(2, "torch.load")]),
        ("import torch.jit\ntorch.jit.load(path)", [(2, "torch.jit.load")]),
        ("import pickle", [(1, "pickle")]),
        ("def f():\n    from pickle import loads", [(2, "pickle")]),
        ("import numpy as np\nnp.load(path)", [(2, "numpy.load")]),
        ("from yaml import load as read\nread(text)", [(2, "yaml.load")]),
        ("import yaml\nyaml.load(text, Loader=yaml.SafeLoader)", [(2, "yaml.load")]),
        ("import yaml\nclass R(yaml.FullLoader): pass", [(2, "yaml.FullLoader")]),
        ("eval(text)", [(1, "eval")]),
        ("exec(text)\ncompile(text, '', 'exec')", [(1, "exec"), (2, "compile")]),
        ("run = __import__", [(1, "__import__")]),
        ("import importlib\nimportlib.import_module(name)", [(2, "importlib.import_module")]),
        ("from importlib import import_module\nimport_module(n)", [(2, "importlib.import_module")]),
        ("import importlib\nimportlib.import_module('json')", []),
        ("import subprocess\nsubprocess.run(x, shell=True)", [(2, "shell=")]),
        ("import os\nos.system(x)", [(2, "os.system")]),
        ("import re, yaml\npolicy.eval()\nself.load(x)\nre.compile(x)\nyaml.safe_load(x)", []),
    ],
)  # fmt: skip
def test_a_dangerous_name_is_found_when_it_hides(source: str, found: list) -> None:
    assert sorted(set(forbidden(source))) == found
