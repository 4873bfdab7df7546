"""Campaigns in tests start their processes from the one of all tests that has imported everything."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from faults import (
    ablation,
    bad_numbers,
    collector_kills,
    damaged_logs,
    damaged_runs,
    evaluation_kills,
    kills,
    node_kills,
    planted_names,
    planted_secrets,
    signals,
    splits,
)
from faults.zygote import Zygote

_CAMPAIGNS = (
    ablation, bad_numbers, collector_kills, damaged_logs, damaged_runs, evaluation_kills, kills, node_kills,
    planted_names, planted_secrets, signals, splits,
)  # fmt: skip


@pytest.fixture(scope="session", autouse=True)
def _one_zygote_for_all(request: pytest.FixtureRequest) -> Iterator[None]:
    def shared(*_: Any, **__: Any) -> contextlib.AbstractContextManager[Zygote]:
        return contextlib.nullcontext(request.getfixturevalue("zygote"))

    with pytest.MonkeyPatch.context() as patch:
        for campaign in _CAMPAIGNS:
            patch.setattr(campaign, "Zygote", shared)
        patch.setattr(damaged_runs, "_AT_ONCE", 1)  # a zygote answers one thread at a time
        yield
