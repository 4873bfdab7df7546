"""Runs in a statistics database, also those of other machines."""

import math
from typing import TYPE_CHECKING

from metta.runs.details import RunDetails, Saved, Scores
from metta.runs.summary import SILENT_SECONDS, RunSummary, last_score, seconds_since, shown_time

if TYPE_CHECKING:
    from metta.database import StatsReader
    from metta.database.queries import RunRecord

__all__ = ["details_from_database", "summaries_from_database"]


def summaries_from_database(url: str, run: str | None = None) -> list[RunSummary]:
    """All runs, in the order in which they began, or the one of this name or id."""
    from metta.database import StatsReader

    with StatsReader(url) as reader:
        records = reader.runs() if run is None else [reader.find_run(run)]
        return [_summary(record, reader) for record in records]


def details_from_database(url: str, run_id: str) -> RunDetails:
    """Details of the run of this id, from a database."""
    from metta.database import StatsReader

    with StatsReader(url) as reader:
        policies = [Saved(one.epoch, one.agent_step, one.uri) for one in reader.policies(run_id)]
        replays = [
            Saved(one.epoch, one.agent_step, one.uri, one.simulation)
            for one in reader.replays(run_id)
        ]
        record = reader.find_run(run_id)
        layout = record.attributes.get("layout")
        return RunDetails(
            last_heartbeat=record.last_heartbeat,
            layout=None if layout is None else str(layout),
            metrics=reader.latest_metrics(run_id),
            scores=_last_scores(reader, run_id),
            policies=policies,
            replays=replays,
        )


def _last_scores(reader: "StatsReader", run_id: str) -> Scores | None:
    evaluations = reader.suite_scores(run_id)
    if not evaluations:
        return None
    last = evaluations[-1]
    moment = last.epoch, last.suite, last.policy_uri
    simulations = {
        found.simulation: found.score
        for found in reader.simulation_scores(run_id)
        if (found.epoch, found.suite, found.policy_uri) == moment
    }
    return Scores(last.epoch, last.suite, simulations)


def _summary(record: "RunRecord", reader: "StatsReader") -> RunSummary:
    metrics = reader.latest_metrics(record.run)
    reward = metrics.get("overview/reward")
    total = record.attributes.get("total_timesteps")
    last = max(record.last_event, record.last_heartbeat or 0.0)
    alive = "running" if seconds_since(last) < SILENT_SECONDS else "silent"
    return RunSummary(
        name=record.name,
        env=str(record.attributes.get("env", "-")),
        status=record.outcome or alive,
        epoch=record.epoch or 0,
        agent_step=record.agent_step or 0,
        total_timesteps=int(total) if isinstance(total, int | float) else 0,
        reward=None if reward is None or math.isnan(reward) else reward,
        score=last_score(metrics),
        updated=shown_time(last),
        reason=record.reason,
        path=record.run,
    )
