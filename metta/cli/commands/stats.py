"""`metta stats`: loads event logs into a database, and queries it."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metta.cli.options import add_database, add_out, database_of, written_file
from metta.cli.tables import say, table
from metta.errors import ConfigError
from metta.untrusted.text import printable

if TYPE_CHECKING:
    from metta.database import Ingester, IngestReport

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Loads event logs of runs into a database (SQLite, or PostgreSQL by a URL), and queries it."
    )
    parser.epilog = "See also `metta stats ACTION --help`; `metta runs --database URL` lists runs."
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _configure_ingest(actions.add_parser("ingest", help="load event logs", allow_abbrev=False))
    own = actions.add_parser("tables", help="list tables and views", allow_abbrev=False)
    own.description = "Lists the tables and views of a database, with the number of their rows."
    add_database(own)
    own.add_argument("--json", action="store_true", help="one JSON object per table, for scripts")
    _configure_query(actions.add_parser("query", help="run a SQL query", allow_abbrev=False))
    _configure_export(actions.add_parser("export", help="write a table", allow_abbrev=False))


def _configure_ingest(own: argparse.ArgumentParser) -> None:
    own.description = (
        "Loads events that the database does not have yet; loading a log again changes nothing."
    )
    own.add_argument(
        "places",
        nargs="*",
        metavar="RUN|FOLDER",
        help="runs, folders of runs, or event logs (default: the folder of runs)",
    )
    add_database(own)
    own.add_argument(
        "--watch",
        type=float,
        metavar="SECONDS",
        help="look for new events at this interval, until Ctrl-C",
    )


def _configure_query(own: argparse.ArgumentParser) -> None:
    own.description = (
        "Prints what one SQL statement finds (SELECT, WITH, VALUES); it only reads. "
        "EXPLAIN and SHOW do not work with PostgreSQL."
    )
    own.add_argument("sql", metavar="SQL", help="e.g. 'SELECT name, outcome, epoch FROM runs'")
    add_database(own)
    own.add_argument(
        "--limit", type=int, default=1000, metavar="N", help="at most N rows (default: %(default)s)"
    )
    own.add_argument(
        "--json",
        action="store_true",
        help="one JSON object per row, for scripts; a second column `a` is named `a_2`",
    )


def _configure_export(own: argparse.ArgumentParser) -> None:
    own.description = (
        "Writes a table or view to a CSV or Parquet file (extra `parquet`), by its ending."
    )
    own.add_argument("table", metavar="TABLE", help="see `metta stats tables`")
    own.add_argument("file", nargs="?", metavar="FILE", help="ends with .csv or .parquet")
    add_out(own, "the same as FILE")
    add_database(own, writes="file")
    own.add_argument("--run", metavar="RUN", help="only rows of the run of this name or id")


def run(options: argparse.Namespace) -> int:
    """Run the action."""
    actions = {"ingest": _ingest, "tables": _tables, "query": _query, "export": _export}
    return actions[options.action](options)


def _ingest(options: argparse.Namespace) -> int:
    places = _places(options.places, Path(options.runs))
    if options.watch is not None and not options.watch > 0:
        raise ConfigError(f"--watch {options.watch:g}: give a number of seconds above 0")
    from metta.database import Ingester, IngestReport
    from metta.database.ingest import logs_below

    with Ingester(database_of(options)) as ingester:
        if options.watch is not None:
            say(f"{ingester.url}: watching {', '.join(map(str, places))}", flush=True)
            ingester.watch(places, options.watch, on_round=lambda news: _tell(news, ingester))
            return 0
        for place in places:
            if not logs_below(place):
                say(f"there are no event logs in {place}")
        report = IngestReport()
        for place in places:
            report.add(ingester.ingest_folder(place))
        say(_shown(report, ingester))
    for problem in report.problems.values():
        say(printable(f"metta: {problem}"), file=sys.stderr)
    return 1 if report.problems else 0


def _places(names: list[str], output: Path) -> list[Path]:
    """Folders and logs that exist; a name may be that of a run below `output`."""
    found = []
    for name in names or [str(output)]:
        known = [path for path in (Path(name), output / name) if path.exists()]
        if not known:
            where = repr(name) if not names else f"{name!r} or {str(output / name)!r}"
            raise ConfigError(
                f"there is no folder {where} with event logs; name a run, or a folder of runs"
            )
        found.append(known[0])
    return found


def _tell(report: "IngestReport", ingester: "Ingester") -> None:
    if report.num_events:
        say(_shown(report, ingester), flush=True)


def _shown(report: "IngestReport", ingester: "Ingester") -> str:
    text = f"{ingester.url}: {report.num_events:,} new events, {report.num_rows:,} new rows"
    if report.num_unknown:
        text += f"; {report.num_unknown:,} events are of kinds that this metta does not know"
    return text


def _tables(options: argparse.Namespace) -> int:
    from metta.database import StatsReader, table_sizes
    from metta.database.schema import VIEWS

    url = database_of(options)
    with StatsReader(url, may_be_missing=True) as reader, reader.connect() as connection:
        counts = table_sizes(connection)
    kinds = {name: "view" if name in VIEWS else "table" for name in counts}
    if options.json:
        for name, count in counts.items():
            say(json.dumps({"name": name, "kind": kinds[name], "rows": count}))
    else:
        rows = [(name, kinds[name], f"{count:,}") for name, count in counts.items()]
        say(table([("name", "kind", "rows"), *rows]))
    return 0


def _query(options: argparse.Namespace) -> int:
    from metta.database import StatsReader, run_query

    url = database_of(options)
    with StatsReader(url, may_be_missing=True) as reader, reader.connect() as connection:
        found = run_query(connection, options.sql, limit=options.limit)
    if options.json:
        names = _unique(found.columns)
        for row in found.rows:
            say(json.dumps(dict(zip(names, row, strict=True)), default=str))
    else:
        say(table([found.columns, *([_cell(value) for value in row] for row in found.rows)]))
    if found.is_cut:
        say(f"metta: there are more than {options.limit} rows; see --limit", file=sys.stderr)
    return 0


def _unique(columns: Sequence[str]) -> list[str]:
    """Names of columns, each once: of several `a`, the second becomes `a_2`, if no column is named so."""
    names: list[str] = []
    for column in columns:
        name, number = column, 1
        while name in names or (number > 1 and name in columns):
            number += 1
            name = f"{column}_{number}"
        names.append(name)
    return names


def _cell(value: Any) -> str:
    text = "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    return text.replace("\n", " ")


def _export(options: argparse.Namespace) -> int:
    from metta.database import StatsReader, export_table

    file = written_file(options.out, options.file)
    with StatsReader(database_of(options)) as reader, reader.connect() as connection:
        run_id = None if options.run is None else reader.find_run(options.run).run
        count = export_table(connection, options.table, file, run=run_id)
    say(f"wrote {count:,} rows to {file}")
    return 0
