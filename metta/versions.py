"""Versions of the libraries that a run uses."""

import functools
import importlib.metadata
import platform
from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["library_versions"]


@functools.cache
def library_versions() -> Mapping[str, str]:
    """Versions that decide the bits of a run."""
    packages = ("metta-rl", "torch", "numpy", "gymnasium")
    return MappingProxyType(
        {"python": platform.python_version()}
        | {package: importlib.metadata.version(package) for package in packages}
    )
