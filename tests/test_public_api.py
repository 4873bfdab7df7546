import ast
import importlib
import importlib.metadata
import inspect
import itertools
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import metta

ROOT = Path(metta.__file__).parent
MODULES = [
    "metta",
    *(
        info.name
        for info in pkgutil.walk_packages(metta.__path__, "metta.")
        if not info.name.endswith("._native")
    ),
]
PACKAGES = [name for name in MODULES if hasattr(importlib.import_module(name), "__path__")]


def source_of(module: ModuleType) -> ast.Module:
    return ast.parse(Path(module.__file__ or "").read_text())


def described_constants(module: ModuleType) -> set[str]:
    """Names assigned at module level with a string below them."""
    body, described = source_of(module).body, set()
    for statement, below in itertools.pairwise(body):
        if isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(below, ast.Expr):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            described |= {target.id for target in targets if isinstance(target, ast.Name)}
    return described


@pytest.mark.parametrize("name", MODULES)
def test_every_name_resolves_when_a_module_lists_it(name: str) -> None:
    module = importlib.import_module(name)
    listed = getattr(module, "__all__", [])
    assert len(set(listed)) == len(listed)
    for public in listed:
        assert getattr(module, public) is not None


@pytest.mark.parametrize("name", [name for name in PACKAGES if name != "metta"])
def test_all_equals_what_is_imported_when_a_package_gathers_names(name: str) -> None:
    module = importlib.import_module(name)
    body = source_of(module).body
    # names of a lazy package are imported for type checkers
    lazy = [node for node in body if isinstance(node, ast.If)]
    statements = lazy[0].body if lazy else body
    imported = {
        alias.asname or alias.name
        for statement in statements
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert set(getattr(module, "__all__", [])) == imported


def test_the_lazy_names_equal_all_when_metta_is_imported() -> None:
    assert {*metta._HOMES, "__version__"} == set(metta.__all__)
    assert dir(metta) == sorted(metta.__all__)
    with pytest.raises(AttributeError, match="no attribute 'PPOTrainerr'"):
        metta.PPOTrainerr  # noqa: B018 (looking it up is the test)


def test_lazy_names_are_the_real_ones_when_they_are_used() -> None:
    for name, home in metta._HOMES.items():
        found = getattr(metta, name)
        assert found is getattr(importlib.import_module(home), name)
        assert found.__module__ == home


def test_types_see_the_lazy_names_when_checkers_read_the_package() -> None:
    checked = next(node for node in source_of(metta).body if isinstance(node, ast.If))
    imports = [node for node in checked.body if isinstance(node, ast.ImportFrom)]
    seen = {alias.name: node.module for node in imports for alias in node.names}
    assert seen == metta._HOMES


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_is_described_when_a_module_lists_it(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__
    for public in getattr(module, "__all__", []):
        value = getattr(module, public)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, f"{name}.{public} has no docstring"


@pytest.mark.parametrize("name", ["metta.train.settings", "metta.train.presets", "metta.spaces"])
def test_public_constants_are_described_when_they_are_data(name: str) -> None:
    module = importlib.import_module(name)
    constants = {public for public in module.__all__ if public.isupper()}
    assert constants <= described_constants(module)


@pytest.mark.parametrize(
    "statement",
    [
        "import metta",
        "import metta.train, metta.train.presets",
        "import metta.errors, metta.files, metta.seeding, metta.stateful",
        "from metta.cli.main import main; main([])",
        "from metta.cli.main import main\ntry: main(['train', '--help'])\nexcept SystemExit: pass",
    ],
)
def test_torch_stays_unloaded_when_nothing_needs_it(statement: str) -> None:
    heavy = "[m for m in ('torch', 'gymnasium', 'matplotlib', 'rich') if m in sys.modules]"
    code = f"import sys\n{statement}\nprint({heavy})"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert found.splitlines()[-1] == "[]"


def test_the_version_is_the_installed_one_when_it_is_asked_for() -> None:
    assert metta.__version__ == importlib.metadata.version("metta-rl")


def test_typing_information_is_shipped_when_the_package_is_installed() -> None:
    assert (ROOT / "py.typed").is_file()
