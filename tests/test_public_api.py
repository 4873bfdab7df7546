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


def imported_by(package: ModuleType) -> set[str]:
    """Names that a package gathers from its modules."""
    body = source_of(package).body
    # names of a lazy package are imported for type checkers
    lazy = [node for node in body if isinstance(node, ast.If)]
    statements = lazy[0].body if lazy else body
    return {
        alias.asname or alias.name
        for statement in statements
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }


def test_every_name_in_all_exists_once() -> None:
    assert len(MODULES) > 200
    wrong = []
    for name in MODULES:
        module = importlib.import_module(name)
        listed = getattr(module, "__all__", [])
        wrong += [f"{name}.{public}" for public in listed if not hasattr(module, public)]
        wrong += [f"{name}.{public} twice" for public in set(listed) if listed.count(public) > 1]
    assert wrong == []


def test_all_of_a_package_equals_what_it_imports() -> None:
    different = {}
    for name in PACKAGES:
        module = importlib.import_module(name)
        public = set(getattr(module, "__all__", []))
        if name != "metta" and public != imported_by(module):
            different[name] = public ^ imported_by(module)
    assert different == {}


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


def test_every_module_and_public_name_is_described() -> None:
    silent = []
    for name in MODULES:
        module = importlib.import_module(name)
        public = {key: getattr(module, key) for key in getattr(module, "__all__", [])}
        described = {name: module} | {
            f"{name}.{key}": value
            for key, value in public.items()
            if inspect.isclass(value) or inspect.isfunction(value)
        }
        silent += [key for key, value in described.items() if not value.__doc__]
    assert silent == []


def test_public_constants_are_described() -> None:
    for name in ("metta.train.settings", "metta.train.presets", "metta.spaces"):
        module = importlib.import_module(name)
        constants = {public for public in module.__all__ if public.isupper()}
        assert constants
        assert constants - described_constants(module) == set()


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
