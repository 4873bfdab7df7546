"""Writes tables, views and queries to CSV and Parquet files."""

import csv
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import JSON, Connection, Double, Integer, Select, func, inspect, select, table

from metta.database.queries import find_run
from metta.database.schema import METADATA, VIEWS
from metta.errors import ConfigError, DatabaseError, MissingExtraError, did_you_mean
from metta.files import atomic_write

__all__ = ["export_query", "export_table", "table_names", "table_sizes"]

_CHUNK = 10_000
_KINDS = (".csv", ".parquet")


def table_names() -> list[str]:
    """Tables and views that can be exported."""
    return sorted([*METADATA.tables, *VIEWS])


def table_sizes(connection: Connection) -> dict[str, int]:
    """The number of rows of each table and view that the database has, of jobs and sweeps too."""
    database = inspect(connection)
    names = sorted([*database.get_table_names(), *database.get_view_names()])
    counted = {name: select(func.count()).select_from(table(name)) for name in names}
    return {name: connection.execute(query).scalar_one() for name, query in counted.items()}


def export_table(
    connection: Connection, name: str, path: str | os.PathLike[str], *, run: str | None = None
) -> int:
    """Write a table or view to a file that is whole or absent; returns the number of its rows.

    The ending of `path` is the format: ``.csv`` or ``.parquet``. With `run`, the id of a run, only
    its rows are written. Numbers that were not finite are empty.
    """
    if name not in METADATA.tables and name not in VIEWS:
        hint = did_you_mean(name, table_names())
        raise DatabaseError(
            f"there is no table {name!r}{hint}; there are {', '.join(table_names())}"
        )
    source: Any = METADATA.tables[name] if name in METADATA.tables else VIEWS[name].subquery(name)
    query = select(source)
    if run is not None:
        find_run(connection, run)
        query = query.where(_is_of_run(source, name, run))
    keys = [column for column in source.c if column.name in ("run", "run_id", "sequence")]
    return export_query(connection, query.order_by(*keys), path)


def export_query(connection: Connection, query: Select[Any], path: str | os.PathLike[str]) -> int:
    """Write the rows of any query to a file; returns their number."""
    target = Path(path)
    if target.suffix not in _KINDS:
        raise ConfigError(f"{str(target)!r} must end with {' or '.join(_KINDS)}")
    kinds = {column.name: _kind_of(column.type) for column in query.selected_columns}
    write = _write_csv if target.suffix == ".csv" else _write_parquet
    sizes: list[int] = []
    chunks = _chunks(connection, query, kinds, sizes)
    atomic_write(target, lambda temporary: write(temporary, kinds, chunks))
    return sum(sizes)


def _is_of_run(source: Any, name: str, run: str) -> Any:
    if "run" in source.c:
        return source.c.run == run
    if "run_id" in source.c:
        table = METADATA.tables["runs"]
        return source.c.run_id == select(table.c.id).where(table.c.run == run).scalar_subquery()
    raise DatabaseError(f"rows of {name!r} do not belong to runs; export the whole table")


def _kind_of(kind: Any) -> type:
    if isinstance(kind, JSON):
        return dict
    if isinstance(kind, Integer):
        return int
    return float if isinstance(kind, Double) else str


def _chunks(
    connection: Connection, query: Select[Any], kinds: Mapping[str, type], sizes: list[int]
) -> Iterator[Sequence[Sequence[Any]]]:
    """Rows in chunks, whose sizes are added to `sizes`."""
    found = connection.execute(query, execution_options={"yield_per": _CHUNK})
    places = [place for place, kind in enumerate(kinds.values()) if kind is dict]
    for chunk in found.partitions():
        rows = [list(row) for row in chunk]
        for row in rows:
            for place in places:  # nested data is written as JSON
                row[place] = None if row[place] is None else json.dumps(row[place])
        sizes.append(len(rows))
        yield rows


def _write_csv(
    path: Path, kinds: Mapping[str, type], chunks: Iterable[Sequence[Sequence[Any]]]
) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(kinds)
        for chunk in chunks:
            writer.writerows(chunk)


def _write_parquet(
    path: Path, kinds: Mapping[str, type], chunks: Iterable[Sequence[Sequence[Any]]]
) -> None:
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "parquet", "a Parquet file") from error
    types = {int: arrow.int64(), float: arrow.float64(), str: arrow.string(), dict: arrow.string()}
    schema = arrow.schema([(name, types[kind]) for name, kind in kinds.items()])
    with parquet.ParquetWriter(path, schema) as writer:
        for chunk in chunks:
            columns = list(zip(*chunk, strict=True))
            writer.write_table(arrow.table(dict(zip(kinds, columns, strict=True)), schema))
