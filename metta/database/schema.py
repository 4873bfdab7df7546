"""The tables and views of the statistics database.

Every row of facts has the `run_id` and `sequence` of its event. Rows that are dropped when a run continues
from an earlier epoch also have `epoch`. Keys are unique, so no event can be counted twice; rows of one run
and one metric lie together, so reading a curve is one scan along a key.
"""

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Double,
    Integer,
    MetaData,
    Select,
    String,
    Table,
    Text,
    case,
    func,
    select,
)

__all__ = [
    "METADATA",
    "REWOUND",
    "SCHEMA_VERSION",
    "VIEWS",
    "epochs",
    "episode_values",
    "episodes",
    "evaluations",
    "events",
    "heartbeats",
    "logs",
    "metric_names",
    "metric_values",
    "policies",
    "replays",
    "runs",
    "schema_version",
    "simulation_scores",
]

SCHEMA_VERSION = 3
"""Version that this code reads and writes."""

METADATA = MetaData()
"""All tables."""


def _key(name: str, kind: Any) -> Column[Any]:
    return Column(name, kind, primary_key=True, autoincrement=False)


def _event_table(name: str, *columns: Column[Any]) -> Table:
    """A table of rows that name their event; further keys distinguish rows of one event."""
    event = _key("run_id", Integer), _key("sequence", BigInteger)
    return Table(name, METADATA, *event, *columns, sqlite_with_rowid=False)


schema_version = Table("schema_version", METADATA, _key("version", Integer))
"""One row: the version of the database."""

logs = Table(
    "logs",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("digest", String(64), nullable=False, unique=True),
    Column("path", Text, nullable=False),
    Column("bytes_read", BigInteger, nullable=False),
    Column("lines_read", BigInteger, nullable=False),
    Column("tail", String(64), nullable=False),
)
"""How far each log was read: `digest` is that of its first line, `tail` that of the last bytes read."""

runs = Table(
    "runs",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("run", Text, nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("attributes", JSON, nullable=False),
    Column("starts", Integer, nullable=False),
    Column("started", Double),
    Column("ended", Double),
    Column("outcome", Text),
    Column("reason", Text),
    Column("last_event", Double, nullable=False),
    Column("last_heartbeat", Double),
    Column("epoch", BigInteger),
    Column("agent_step", BigInteger),
)
"""Runs and their status; `ended`, `outcome` and `reason` are empty while one runs. Times are seconds
since 1970."""

events = _event_table(
    "events",
    Column("log_id", Integer, nullable=False),
    Column("time", Double, nullable=False),
    Column("kind", Text, nullable=False),
    Column("payload", JSON(none_as_null=True)),
)
"""Every event once; payloads of kinds without a table are kept here."""

epochs = _event_table(
    "epochs",
    Column("start_epoch", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("attributes", JSON, nullable=False),
)
"""Epochs ``start_epoch <= e < epoch`` were reported."""

metric_names = Table(
    "metric_names",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
)
"""Names of metrics and of statistics of episodes."""

metric_values = Table(
    "metric_values",
    METADATA,
    _key("run_id", Integer),
    _key("name_id", Integer),
    _key("sequence", BigInteger),
    Column("epoch", BigInteger, nullable=False),
    Column("agent_step", BigInteger, nullable=False),
    Column("value", Double),
    sqlite_with_rowid=False,
)
"""One number each; one that was not finite is NULL."""

episodes = _event_table(
    "episodes",
    _key("number", Integer),
    Column("start_epoch", BigInteger),
    Column("epoch", BigInteger),
    Column("episode_return", Double),
    Column("episode_length", Double),
)
"""Episodes that ended in epochs ``start_epoch <= e < epoch``, numbered from 0 within their event."""

episode_values = _event_table(
    "episode_values",
    _key("name_id", Integer),
    _key("number", Integer),
    Column("epoch", BigInteger),
    Column("value", Double),
)
"""Other statistics of episodes; `number` is the position in the list: the episode's number if every
episode of the event reported the statistic."""

policies = _event_table(
    "policies",
    Column("epoch", BigInteger, nullable=False),
    Column("agent_step", BigInteger, nullable=False),
    Column("uri", Text, nullable=False),
    Column("time", Double, nullable=False),
)
"""Policies that were saved."""

evaluations = _event_table(
    "evaluations",
    Column("epoch", BigInteger, nullable=False),
    Column("agent_step", BigInteger, nullable=False),
    Column("policy_uri", Text),
    Column("suite", Text, nullable=False),
    Column("time", Double, nullable=False),
)
"""Evaluations of policies; `suite` is empty if the event names none."""

simulation_scores = _event_table(
    "simulation_scores",
    _key("simulation", Text),
    Column("epoch", BigInteger, nullable=False),
    Column("category", Text, nullable=False),
    Column("score", Double),
)
"""Scores of an evaluation; a simulation is named ``category/simulation``."""

simulation_episodes = _event_table(
    "simulation_episodes",
    _key("simulation", Text),
    _key("number", Integer),
    Column("epoch", BigInteger, nullable=False),
    Column("episode_return", Double),
    Column("episode_length", Double),
)
"""Episodes of an evaluation, numbered from 0 in the order in which they started."""

agent_values = _event_table(
    "agent_values",
    _key("simulation", Text),
    _key("number", Integer),
    _key("agent", Integer),
    _key("name_id", Integer),
    Column("epoch", BigInteger, nullable=False),
    Column("value", Double),
)
"""The numbers of each agent in an episode of an evaluation: its return, its length, and what the
environment reported about it (``env/...``)."""

replays = _event_table(
    "replays",
    Column("epoch", BigInteger, nullable=False),
    Column("agent_step", BigInteger, nullable=False),
    Column("simulation", Text, nullable=False),
    Column("uri", Text, nullable=False),
    Column("policy_uri", Text),
    Column("time", Double, nullable=False),
)
"""Episodes of simulations that were recorded to be watched."""

heartbeats = _event_table(
    "heartbeats",
    Column("time", Double, nullable=False),
    Column("epoch", BigInteger),
    Column("agent_step", BigInteger),
    Column("numbers", JSON, nullable=False),
)
"""Heartbeats; `numbers` is their payload."""

REWOUND = (
    epochs, metric_values, episodes, episode_values, policies, evaluations, simulation_scores,
    simulation_episodes, agent_values, replays,
)  # fmt: skip
"""Tables whose rows of later epochs no longer count when a run continues from an earlier one."""


NAMED = (metric_values.name, episode_values.name, agent_values.name)
"""Tables whose rows have a name among `metric_names`."""


def _with_names(values: Table, *columns: str) -> Select[Any]:
    """Rows of one of the `NAMED` tables, with the names of their runs and of themselves."""
    of_runs = values.join(runs, runs.c.id == values.c.run_id)
    own = [values.c[column] for column in columns]
    about = (runs.c.run, runs.c.name.label("run_name"), *own, metric_names.c.name, values.c.value)
    named = of_runs.join(metric_names, metric_names.c.id == values.c.name_id)
    return select(*about).select_from(named)


def _scores() -> Select[Any]:
    is_same = (evaluations.c.run_id == simulation_scores.c.run_id) & (
        evaluations.c.sequence == simulation_scores.c.sequence
    )
    table = simulation_scores.join(evaluations, is_same)
    return select(
        runs.c.run,
        runs.c.name.label("run_name"),
        evaluations.c.sequence,
        evaluations.c.epoch,
        evaluations.c.agent_step,
        evaluations.c.policy_uri,
        evaluations.c.suite,
        simulation_scores.c.category,
        simulation_scores.c.simulation,
        simulation_scores.c.score,
    ).select_from(table.join(runs, runs.c.id == evaluations.c.run_id))


def _whole_mean(column: Any) -> Any:
    """The mean of all rows; NULL if one of them has no number, as a mean with NaN is NaN."""
    return case((func.count(column) == func.count(), func.avg(column, type_=Double)))


_OF_EVALUATION = ("run", "run_name", "sequence", "epoch", "agent_step", "policy_uri", "suite")


def _category_scores() -> Select[Any]:
    scores = _scores().subquery("scores_of_simulations")
    keys = [scores.c[name] for name in (*_OF_EVALUATION, "category")]
    mean = _whole_mean(scores.c.score).label("score")
    return select(*keys, mean, func.count().label("num_simulations")).group_by(*keys)


def _suite_scores() -> Select[Any]:
    scores = _category_scores().subquery("scores_of_categories")
    keys = [scores.c[name] for name in _OF_EVALUATION]
    mean = _whole_mean(scores.c.score).label("score")
    return select(*keys, mean, func.count().label("num_categories")).group_by(*keys)


VIEWS: dict[str, Select[Any]] = {
    "metrics": _with_names(metric_values, "sequence", "epoch", "agent_step"),
    "episode_metrics": _with_names(episode_values, "sequence", "number", "epoch"),
    "agent_metrics": _with_names(
        agent_values, "sequence", "epoch", "simulation", "number", "agent"
    ),
    "scores": _scores(),
    "category_scores": _category_scores(),
    "suite_scores": _suite_scores(),
}
"""Name -> what it shows: tables with names instead of numbers, and scores. A category's score is the mean
of its simulations, a suite's the mean of its categories."""
