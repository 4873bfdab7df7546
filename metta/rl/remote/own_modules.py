"""Your own modules on other machines: what is not installed there goes along as code."""

import contextlib
import importlib.util
import site
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from metta.envs.workers.worker import pack, unpack
from metta.errors import ConfigError
from metta.rl.remote.tasks import CollectSetup

__all__ = ["pack_with_modules", "unpack_with_modules"]

_INSTALLED_KINDS = ("stdlib", "platstdlib", "purelib", "platlib")


def pack_with_modules(setup: CollectSetup) -> bytes:
    """As `pack`; classes and functions of modules that are not installed go along by value.

    So does the module that an environment's id names, if its globals can be sent.
    """
    with _by_value():
        try:
            module = pack(_module_of(setup))
        except ConfigError:  # then it has to be importable there
            module = pack(None)
        return pack((module, pack(setup)))


def unpack_with_modules(message: bytes) -> CollectSetup:
    """What `pack_with_modules` packed, in a process that may not find these modules."""
    module, setup = unpack(message)
    found = unpack(module)
    if isinstance(found, ModuleType) and not _is_found(found.__name__):
        sys.modules[found.__name__] = found
    result: CollectSetup = unpack(setup)
    return result


def _module_of(setup: CollectSetup) -> ModuleType | None:
    env = setup.source.env
    name = env.rpartition(":")[0] if isinstance(env, str) else ""
    module = sys.modules.get(name)
    return module if module is not None and _is_own(module) else None


def _is_found(name: str) -> bool:
    with contextlib.suppress(ImportError, ValueError):
        return importlib.util.find_spec(name) is not None
    return False


@contextlib.contextmanager
def _by_value() -> Iterator[None]:
    own = [module for module in list(sys.modules.values()) if _is_own(module)]
    before = set(cloudpickle.list_registry_pickle_by_value())
    new = [module for module in own if module.__name__ not in before]
    for module in new:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in new:
            cloudpickle.unregister_pickle_by_value(module)


def _is_own(module: Any) -> bool:
    """Whether it is a file of the user's, and not installed."""
    file = getattr(module, "__file__", None)
    name = str(getattr(module, "__name__", ""))
    if not isinstance(file, str) or not file.endswith(".py") or sys.modules.get(name) is not module:
        return False
    if name.partition(".")[0] in ("metta", "__main__"):
        return False
    return not any(Path(file).is_relative_to(place) for place in _installed())


def _installed() -> list[str]:
    return [
        *(sysconfig.get_path(kind) for kind in _INSTALLED_KINDS),
        *(site.getsitepackages()), site.getusersitepackages(),
    ]  # fmt: skip
