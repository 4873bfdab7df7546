"""Sweeps in databases of both kinds."""

from tests.databases import postgres_server, postgres_url, url

__all__ = ["postgres_server", "postgres_url", "url"]
