"""`StatsReader`: reads what `StatsClient` recorded."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection

from metta.database import queries
from metta.database.connection import OpenDatabase, database_errors
from metta.database.creation import check_version

__all__ = ["StatsReader"]

P = ParamSpec("P")
Answer = TypeVar("Answer")


def _ask(
    question: Callable[Concatenate[Connection, P], Answer],
) -> "Callable[Concatenate[StatsReader, P], Answer]":
    """A function of `metta.database.queries` as a method, on a new connection."""

    @functools.wraps(question)
    def ask(reader: "StatsReader", /, *arguments: P.args, **named: P.kwargs) -> Answer:
        with reader.connect() as connection:
            return question(connection, *arguments, **named)

    return ask


class StatsReader(OpenDatabase):
    """Queries a statistics database; never writes to it.

        with StatsReader("runs/statistics.sqlite") as reader:
            for run in reader.runs():
                curve = reader.metric_curve(run.run, "overview/reward")

    Works while logs are ingested: each answer is a consistent snapshot. `connect` is for your own queries,
    with the functions of `metta.database.queries` or with SQL.
    """

    def __init__(
        self, url: str, *, wait_seconds: float = 30.0, may_be_missing: bool = False
    ) -> None:
        """Without statistics in it the database is refused, unless they `may_be_missing`."""
        super().__init__(url, writes=False, wait_seconds=wait_seconds)
        try:
            check_version(self._engine, may_be_missing=may_be_missing)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """A connection for several queries; closed at the end."""
        with database_errors(self._engine, "cannot read"), self._engine.connect() as connection:
            yield connection

    runs = _ask(queries.all_runs)
    find_run = _ask(queries.find_run)
    metric_names = _ask(queries.metric_names_of)
    metric_curve = _ask(queries.metric_curve)
    latest_metrics = _ask(queries.latest_metrics)
    episodes = _ask(queries.episodes_of)
    episode_means = _ask(queries.episode_means)
    simulation_scores = _ask(queries.simulation_scores)
    category_scores = _ask(queries.category_scores)
    suite_scores = _ask(queries.suite_scores)
    policies = _ask(queries.policies_of)
    replays = _ask(queries.replays_of)
