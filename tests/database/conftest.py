"""Databases with statistics."""

from collections.abc import Iterator

import pytest

from metta.database import Ingester, StatsReader
from tests.databases import postgres_server, postgres_url, url

__all__ = ["postgres_server", "postgres_url", "url"]


@pytest.fixture
def ingester(url: str) -> Iterator[Ingester]:
    with Ingester(url) as opened:
        yield opened


@pytest.fixture
def reader(ingester: Ingester, url: str) -> Iterator[StatsReader]:
    """A reader of a database that has its tables."""
    ingester.prepare()
    with StatsReader(url) as opened:
        yield opened
