"""`with_variables`: environment variables for Ray, in this process and in those that it starts."""

import contextlib
import importlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["with_variables"]


@contextlib.contextmanager
def with_variables(values: Mapping[str, str], *, on_loopback: bool) -> Iterator[None]:
    """Set environment variables meanwhile; Ray goes on with them afterwards.

    Ray reads its variables when it is imported, so it is told to read them again. It takes ``127.0.0.1``
    for another address of this machine, unless it is to stay `on_loopback`.
    """
    names: Any = importlib.import_module("ray._private.ray_constants")
    before = {name: os.environ.get(name) for name in values}
    has_clusters = names.ENABLE_RAY_CLUSTER
    os.environ.update(values)
    names.ENABLE_RAY_CLUSTER = not on_loopback
    try:
        _read_variables()
        yield
    finally:
        names.ENABLE_RAY_CLUSTER = has_clusters
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _read_variables() -> None:
    private: Any = importlib.import_module("ray._raylet")
    # settings first: with the old ones, a thread of Ray could look for the old token
    private.Config.initialize("")
    private.AuthenticationTokenLoader.instance().reset_cache()
