"""Logs of every kind of event, what they must become, and processes that load them."""

import math
import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, create_engine, select, text

from metta.database import Ingester, StatsReader
from metta.database.connection import database_url
from metta.database.schema import METADATA, VIEWS, runs
from metta.loggers import EventLog, StatsClient, StatsLogger
from metta.loggers.events.history import metric_rows
from metta.loggers.sink import MetricRow

NUM_METRICS = 6
EPISODES = {
    "returns": [1.0, 2.0],
    "lengths": [3, 4],
    "agents": {"returns": [[1.0], [2.0]], "infos": [[{"coins": 5.0}], [{}]]},
}
"""Two episodes of one agent."""


def write_epochs(log: EventLog, first: int, last: int, *, shift: float = 0.0) -> None:
    """Epochs ``first < e <= last``: three events each, and policies, scores and replays at times."""
    client, logger = StatsClient(log), StatsLogger(event_log=log)
    for epoch in range(first + 1, last + 1):
        epoch_id = client.create_epoch(log.run_id, epoch - 1, epoch)
        stats = {
            "episode_return": [shift + epoch, 1.0],
            "episode_length": [5.0, 6.0],
            "coins": [4.0],
        }
        client.record_episodes(log.run_id, epoch_id, stats)
        metrics = {f"losses/{number}": shift + epoch * number for number in range(NUM_METRICS - 1)}
        metrics["losses/never"] = math.nan
        logger.log(metrics, agent_step=10 * epoch, epoch=epoch)
        if epoch % 4 == 0:
            where = {"epoch": epoch, "agent_step": 10 * epoch}
            client.record_policy(**where, uri=f"file://policy-{epoch}")
            scores: dict[str, Any] = {
                "simulation_scores": {"maze/small": shift + epoch, "maze/large": 1.0, "run": 2.0}
            }
            scores["episodes"] = {"maze/small": EPISODES, "run": {"returns": [shift]}}
            client.record_evaluation(**where, scores=scores, policy_uri=f"file://policy-{epoch}")
            client.heartbeat(log.run_id, **where)
            uri = f"file://replay-{epoch}"
            log.append("replay", {"run_id": log.run_id, **where, "simulation": "run", "uri": uri})
    logger.close()


def write_run(
    path: Path,
    epochs: int,
    *,
    name: str = "first",
    run_id: str | None = None,
) -> str:
    """A whole run; returns its id."""
    with EventLog(path, run_id) as log:
        client = StatsClient(log)
        client.create_run(name, {"seed": 1, "nested": {"a": [1, None]}})
        write_epochs(log, 0, epochs)
        client.end_run(log.run_id, "enough", "done")
        return log.run_id


def dump(url: str) -> dict[str, list[tuple[Any, ...]]]:
    """All that a database says, without the numbers it gives to runs, logs and names."""
    engine = create_engine(database_url(url))
    found: dict[str, list[tuple[Any, ...]]] = {}
    with engine.connect() as connection:
        for view in VIEWS:
            rows = connection.execute(text(f"SELECT * FROM {view}"))
            found[view] = sorted(map(tuple, rows), key=repr)
        for name in (
            "events",
            "epochs",
            "episodes",
            "policies",
            "evaluations",
            "simulation_episodes",
            "replays",
            "heartbeats",
        ):
            table = METADATA.tables[name]
            columns = [c for c in table.c if c.name not in ("run_id", "log_id")]
            query = select(runs.c.run, *columns).join(runs, runs.c.id == table.c.run_id)
            found[name] = sorted(map(tuple, connection.execute(query)), key=repr)
        query = select(*(column for column in runs.c if column.name != "id"))
        found["runs"] = sorted(map(tuple, connection.execute(query)), key=repr)
    engine.dispose()
    return found


def clean_dump(tmp_path: Path, *logs: Path) -> dict[str, list[tuple[Any, ...]]]:
    """What a database says after logs were loaded into it undisturbed."""
    url = str(tmp_path / f"clean-{len(list(tmp_path.iterdir()))}.sqlite")
    with Ingester(url) as ingester:
        for log in logs:
            ingester.ingest(log)
    return dump(url)


def as_texts(rows: list[MetricRow]) -> list[str]:
    """For comparisons in which NaN equals NaN."""
    return [
        f"{row.agent_step} {row.epoch} {sorted((k, float(v)) for k, v in row.metrics.items())}"
        for row in rows
    ]


def metric_rows_of(connection: Connection, run: str) -> list[MetricRow]:
    """All records of metrics of a run; one without any metric is in the log only."""
    shown = VIEWS["metrics"].subquery("metrics")
    # scores may come late
    query = select(shown).where(shown.c.run == run).order_by(shown.c.epoch, shown.c.sequence)
    rows: dict[int, tuple[int, int, dict[str, float]]] = {}
    for found in connection.execute(query):
        value = math.nan if found.value is None else found.value
        rows.setdefault(found.sequence, (found.agent_step, found.epoch, {}))[2][found.name] = value
    return [MetricRow(*row) for row in rows.values()]


def check_metrics(url: str, log: Path, run: str) -> None:
    """The database and `metric_rows` tell the same of a log of one run."""
    with StatsReader(url) as reader, reader.connect() as connection:
        assert as_texts(metric_rows_of(connection, run)) == as_texts(metric_rows(log))


def fork(work: Callable[[], object]) -> int:
    """Do something in a process of its own; returns its number."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        work()
        status = 0
    except BaseException:  # noqa: BLE001  # reason: the end of a process
        traceback.print_exc()
    finally:
        os._exit(status)


def load_in_child(url: str, *logs: Path) -> int:
    """A process that loads logs."""

    def work() -> None:
        ingester = Ingester(url)
        for log in logs:
            ingester.ingest(log)

    return fork(work)


def kill(child: int) -> bool:
    """Kill a process of `fork` without a warning; returns whether it was still at work."""
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def wait_for(child: int) -> None:
    """The process must end well."""
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
