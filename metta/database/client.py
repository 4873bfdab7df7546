"""`StatsReader`: the reading side of `StatsClient`."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection

from metta.database import queries
from metta.database.connection import OpenDatabase, database_errors
from metta.database.migrations import check_version

__all__ = ["StatsReader"]


class StatsReader(OpenDatabase):
    """Asks a statistics database; never writes to it.

        with StatsReader("runs/statistics.sqlite") as reader:
            for run in reader.runs():
                curve = reader.metric_curve(run.run, "overview/reward")

    Works while logs are ingested: each answer is of one moment. `connect` is for questions of one's own,
    with the functions of `metta.database.queries` or with SQL.
    """

    def __init__(self, url: str, *, wait_seconds: float = 30.0) -> None:
        super().__init__(url, writes=False, wait_seconds=wait_seconds)
        try:
            check_version(self._engine)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """A connection for several questions; closed at the end."""
        with database_errors(self._engine, "cannot read"), self._engine.connect() as connection:
            yield connection

    def runs(self) -> list[queries.RunRecord]:
        """All runs, in the order in which they began."""
        with self.connect() as connection:
            return queries.all_runs(connection)

    def find_run(self, text: str) -> queries.RunRecord:
        """The run of this id or name."""
        with self.connect() as connection:
            return queries.find_run(connection, text)

    def metric_names(self, run: str) -> list[str]:
        """Names of the metrics that a run has."""
        with self.connect() as connection:
            return queries.metric_names_of(connection, run)

    def metric_curve(self, run: str, name: str) -> list[queries.MetricPoint]:
        """A metric over the run's life."""
        with self.connect() as connection:
            return queries.metric_curve(connection, run, name)

    def latest_metrics(self, run: str) -> dict[str, float]:
        """The last value of every metric of a run."""
        with self.connect() as connection:
            return queries.latest_metrics(connection, run)

    def episodes(self, run: str) -> list[queries.EpisodeRecord]:
        """Episodes of a run."""
        with self.connect() as connection:
            return queries.episodes_of(connection, run)

    def episode_means(self, run: str) -> list[queries.StatisticMean]:
        """Mean of every statistic over the episodes of a run."""
        with self.connect() as connection:
            return queries.episode_means(connection, run)

    def simulation_scores(self, run: str | None = None) -> list[queries.SimulationScore]:
        """Scores by simulation, of one run or of all."""
        with self.connect() as connection:
            return queries.simulation_scores(connection, run)

    def category_scores(self, run: str | None = None) -> list[queries.CategoryScore]:
        """Scores by category, of one run or of all."""
        with self.connect() as connection:
            return queries.category_scores(connection, run)

    def suite_scores(self, run: str | None = None) -> list[queries.SuiteScore]:
        """Scores of whole evaluations, of one run or of all."""
        with self.connect() as connection:
            return queries.suite_scores(connection, run)

    def policies(self, run: str | None = None) -> list[queries.PolicyEntry]:
        """Policies that were saved, by one run or by all."""
        with self.connect() as connection:
            return queries.policies_of(connection, run)

    def replays(self, run: str | None = None) -> list[queries.ReplayEntry]:
        """Replays that were recorded, by one run or by all."""
        with self.connect() as connection:
            return queries.replays_of(connection, run)
