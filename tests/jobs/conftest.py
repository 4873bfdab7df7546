"""Ledgers in databases of both kinds."""

from collections.abc import Iterator

import pytest

from metta.jobs.ledger import JobLedger
from tests.databases import postgres_server, postgres_url, url

__all__ = ["postgres_server", "postgres_url", "url"]


@pytest.fixture
def ledger(url: str) -> Iterator[JobLedger]:
    with JobLedger(url) as opened:
        yield opened
