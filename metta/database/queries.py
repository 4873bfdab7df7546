"""Queries of the statistics database, with typed results. A number that was not finite is NaN."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, Table, func, select

from metta.database.schema import (
    VIEWS,
    episode_values,
    episodes,
    metric_names,
    metric_values,
    policies,
    replays,
    runs,
)
from metta.errors import DatabaseError, did_you_mean

__all__ = [
    "CategoryScore",
    "EpisodeRecord",
    "MetricPoint",
    "PolicyEntry",
    "ReplayEntry",
    "RunRecord",
    "SimulationScore",
    "StatisticMean",
    "SuiteScore",
    "all_runs",
    "category_scores",
    "episode_means",
    "episodes_of",
    "find_run",
    "latest_metrics",
    "metric_curve",
    "metric_names_of",
    "policies_of",
    "replays_of",
    "simulation_scores",
    "suite_scores",
]


@dataclass(frozen=True)
class RunRecord:
    """The status of a run; times are seconds since 1970."""

    run: str
    name: str
    attributes: dict[str, Any]
    starts: int
    started: float | None
    ended: float | None
    outcome: str | None
    """``done``, ``stopped`` or ``failed``; None while it runs, or if it ended without logging that."""
    reason: str | None
    last_event: float
    last_heartbeat: float | None
    epoch: int | None
    agent_step: int | None


@dataclass(frozen=True)
class MetricPoint:
    """One point of a curve."""

    epoch: int
    agent_step: int
    value: float


@dataclass(frozen=True)
class EpisodeRecord:
    """An episode that ended in epochs ``start_epoch <= e < end_epoch``."""

    start_epoch: int | None
    end_epoch: int | None
    episode_return: float
    episode_length: float


@dataclass(frozen=True)
class StatisticMean:
    """Mean of a statistic over the episodes of a run that reported it."""

    name: str
    mean: float
    """Sum / `samples`, as in the trainer's own metrics; NaN if there are none. Numbers that were not
    finite are left out here, but make the trainer's record NaN."""
    samples: int
    """Finite numbers that were reported."""
    episodes: int
    """All episodes of the run, whether they reported it or not."""


@dataclass(frozen=True)
class SimulationScore:
    """Score of one simulation in one evaluation."""

    run: str
    epoch: int
    agent_step: int
    policy_uri: str | None
    suite: str
    category: str
    simulation: str
    score: float


@dataclass(frozen=True)
class CategoryScore:
    """Mean of a category's simulations in one evaluation."""

    run: str
    epoch: int
    agent_step: int
    policy_uri: str | None
    suite: str
    category: str
    score: float
    num_simulations: int


@dataclass(frozen=True)
class SuiteScore:
    """Mean of a suite's categories in one evaluation."""

    run: str
    epoch: int
    agent_step: int
    policy_uri: str | None
    suite: str
    score: float
    num_categories: int


@dataclass(frozen=True)
class PolicyEntry:
    """A policy that a run saved."""

    run: str
    epoch: int
    agent_step: int
    uri: str
    time: float


@dataclass(frozen=True)
class ReplayEntry:
    """A recorded episode of a simulation."""

    run: str
    epoch: int
    agent_step: int
    simulation: str
    uri: str
    policy_uri: str | None
    time: float


def all_runs(connection: Connection) -> list[RunRecord]:
    """All runs, in the order in which they began."""
    columns = [column for column in runs.c if column.name != "id"]
    order = func.coalesce(runs.c.started, runs.c.last_event), runs.c.id
    rows = connection.execute(select(*columns).order_by(*order)).mappings()
    return [RunRecord(**row) for row in rows]


def find_run(connection: Connection, text: str) -> RunRecord:
    """The run of this id, or of this name if only one run has it."""
    found = all_runs(connection)
    matching = [run for run in found if run.run == text]
    matching = matching or [run for run in found if run.name == text]
    if len(matching) == 1:
        return matching[0]
    if matching:
        ids = ", ".join(run.run for run in matching)
        raise DatabaseError(f"{len(matching)} runs are named {text!r}; give the id of one: {ids}")
    hint = did_you_mean(text, [run.name for run in found])
    raise DatabaseError(f"there is no run {text!r} in the database{hint}")


def metric_names_of(connection: Connection, run: str) -> list[str]:
    """Names of the metrics that a run has."""
    # one lookup in the key per name, instead of a scan of all values
    has_any = (
        select(1)
        .where(
            metric_values.c.run_id == _id_of(connection, run),
            metric_values.c.name_id == metric_names.c.id,
        )
        .exists()
    )
    query = select(metric_names.c.name).where(has_any).order_by(metric_names.c.name)
    return list(connection.execute(query).scalars())


def metric_curve(connection: Connection, run: str, name: str) -> list[MetricPoint]:
    """A metric over the whole run, in order."""
    query = select(metric_values.c.epoch, metric_values.c.agent_step, metric_values.c.value)
    query = query.where(
        metric_values.c.run_id == _id_of(connection, run),
        metric_values.c.name_id
        == select(metric_names.c.id).where(metric_names.c.name == name).scalar_subquery(),
    ).order_by(metric_values.c.sequence)
    return [
        MetricPoint(epoch, step, _nan(value)) for epoch, step, value in connection.execute(query)
    ]


def latest_metrics(connection: Connection, run: str) -> dict[str, float]:
    """The last value of every metric of a run."""
    last = (
        select(metric_values.c.value)
        .where(
            metric_values.c.run_id == _id_of(connection, run),
            metric_values.c.name_id == metric_names.c.id,
        )
        .order_by(metric_values.c.sequence.desc())
        .limit(1)
        .scalar_subquery()
    )
    found = connection.execute(select(metric_names.c.name, last)).all()
    present = set(metric_names_of(connection, run))
    return {name: _nan(value) for name, value in found if name in present}


def episodes_of(connection: Connection, run: str) -> list[EpisodeRecord]:
    """Episodes of a run in the order in which they were recorded."""
    columns = "start_epoch", "epoch", "episode_return", "episode_length"
    query = select(*(episodes.c[name] for name in columns))
    query = query.where(episodes.c.run_id == _id_of(connection, run))
    found = connection.execute(query.order_by(episodes.c.sequence, episodes.c.number))
    return [EpisodeRecord(start, end, _nan(r), _nan(length)) for start, end, r, length in found]


def episode_means(connection: Connection, run: str) -> list[StatisticMean]:
    """Mean of every statistic over the episodes of a run that reported it."""
    run_id = _id_of(connection, run)
    own = [episodes.c.episode_return, episodes.c.episode_length]
    parts = [part for column in own for part in (func.sum(column), func.count(column))]
    query = select(func.count(), *parts).where(episodes.c.run_id == run_id)
    number, *found = connection.execute(query).one()
    means = [
        _mean(column.name, total, count, number)
        for column, total, count in zip(own, found[::2], found[1::2], strict=True)
        if count
    ]
    value = episode_values.c.value
    others: Select[Any] = (
        select(metric_names.c.name, func.sum(value), func.count(value))
        .join(metric_names, metric_names.c.id == episode_values.c.name_id)
        .where(episode_values.c.run_id == run_id)
        .group_by(metric_names.c.name)
        .order_by(metric_names.c.name)
    )
    reports = connection.execute(others)
    return [*means, *(_mean(name, total, count, number) for name, total, count in reports)]


def simulation_scores(connection: Connection, run: str | None = None) -> list[SimulationScore]:
    """Score of every simulation of every evaluation, of one run or of all."""
    return [SimulationScore(**row) for row in _scores(connection, "scores", run)]


def category_scores(connection: Connection, run: str | None = None) -> list[CategoryScore]:
    """Score of every category of every evaluation, of one run or of all."""
    return [CategoryScore(**row) for row in _scores(connection, "category_scores", run)]


def suite_scores(connection: Connection, run: str | None = None) -> list[SuiteScore]:
    """Score of every evaluation as a whole, of one run or of all."""
    return [SuiteScore(**row) for row in _scores(connection, "suite_scores", run)]


def policies_of(connection: Connection, run: str | None = None) -> list[PolicyEntry]:
    """Policies that were saved, by one run or by all."""
    return [PolicyEntry(**row) for row in _entries(connection, policies, run)]


def replays_of(connection: Connection, run: str | None = None) -> list[ReplayEntry]:
    """Replays that were recorded, by one run or by all."""
    return [ReplayEntry(**row) for row in _entries(connection, replays, run)]


def _id_of(connection: Connection, run: str) -> int:
    found = connection.execute(select(runs.c.id).where(runs.c.run == run)).scalar()
    if found is None:
        raise DatabaseError(f"there is no run {run!r} in the database")
    return int(found)


def _entries(connection: Connection, table: Table, run: str | None) -> Iterable[dict[str, Any]]:
    """Rows of a table, with the run's id instead of its number, in the order of the log."""
    columns = [column for column in table.c if column.name not in ("run_id", "sequence")]
    query = select(runs.c.run, *columns).join(runs, runs.c.id == table.c.run_id)
    if run is not None:
        query = query.where(runs.c.run == run)
    for row in connection.execute(query.order_by(table.c.run_id, table.c.sequence)).mappings():
        yield dict(row)


def _scores(connection: Connection, view: str, run: str | None) -> Iterable[dict[str, Any]]:
    shape: Select[Any] = VIEWS[view]
    shown = shape.subquery(view)
    query = select(shown) if run is None else select(shown).where(shown.c.run == run)
    keys = [name for name in ("run", "sequence", "category", "simulation") if name in shown.c]
    for row in connection.execute(query.order_by(*(shown.c[key] for key in keys))).mappings():
        found = {name: value for name, value in row.items() if name not in ("run_name", "sequence")}
        yield {**found, "score": _nan(row["score"])}


def _mean(name: str, total: float | None, samples: int, num_episodes: int) -> StatisticMean:
    mean = math.nan if total is None or not samples else total / samples
    return StatisticMean(name, mean, samples, num_episodes)


def _nan(value: float | None) -> float:
    return math.nan if value is None else value
