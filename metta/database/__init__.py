"""The statistics database: event logs of runs in SQLite or PostgreSQL. The trainer never opens it."""

try:
    import sqlalchemy as _sqlalchemy  # noqa: F401  # reason: every module of this package needs it
except ModuleNotFoundError as error:
    import metta.errors

    raise metta.errors.MissingExtraError(
        "sqlalchemy", "database", "the statistics database"
    ) from error

from metta.database.client import StatsReader
from metta.database.connection import database_url
from metta.database.export import export_query, export_table, table_names, table_sizes
from metta.database.ingest import Ingester, IngestReport
from metta.database.read_only import QueryResult, run_query

__all__ = [
    "IngestReport",
    "Ingester",
    "QueryResult",
    "StatsReader",
    "database_url",
    "export_query",
    "export_table",
    "run_query",
    "table_names",
    "table_sizes",
]
