"""`StatsClient`: the trainer's side of the statistics database."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from metta.loggers.events.history import taken_back_to
from metta.loggers.events.lines import parse_event
from metta.loggers.events.log import EventLog
from metta.loggers.events.reader import lines_backwards, open_log

__all__ = ["StatsClient"]


class StatsClient:
    """Records runs, epochs, episodes, evaluations and replays as events; never opens a database.

        client = StatsClient(event_log)
        run_id = client.create_run("cartpole", {"seed": 1})
        epoch_id = client.create_epoch(run_id, 0, 10)
        client.record_episodes(run_id, epoch_id, {"episode_return": [20.0, 31.0]})

    A database is filled from the log, where (run, sequence) identifies each event.
    """

    def __init__(self, event_log: EventLog) -> None:
        self.event_log = event_log

    def create_run(
        self, name: str, attributes: Mapping[str, Any] | None = None, *, from_epoch: int = 0
    ) -> str:
        """Record that a training begins, or continues if the log has events of it; returns the run's id.

        `from_epoch` epochs are done: what the log has of later ones was lost, and will be logged again.
        """
        log = self.event_log
        payload = {
            "name": name,
            "attributes": dict(attributes or {}),
            "continued": log.sequence > 0,
            "from_epoch": from_epoch,
        }
        log.append("run_start", payload)
        return log.run_id

    def create_epoch(
        self,
        run_id: str,
        start_epoch: int,
        end_epoch: int,
        attributes: Mapping[str, Any] | None = None,
    ) -> str:
        """Record that epochs ``start_epoch <= e < end_epoch`` are done; returns their id."""
        epoch_id = f"{run_id}:{start_epoch}-{end_epoch}"
        payload = {"epoch_id": epoch_id, "start_epoch": start_epoch, "end_epoch": end_epoch}
        self._append("epoch", run_id, {**payload, "attributes": dict(attributes or {})})
        return epoch_id

    def record_episodes(
        self, run_id: str, epoch_id: str | None, stats: Mapping[str, Sequence[float]]
    ) -> None:
        """Record episodes that ended: for each statistic one number per episode."""
        self._append("episodes", run_id, {"epoch_id": epoch_id, "stats": stats})

    def record_evaluation(
        self,
        *,
        epoch: int,
        agent_step: int,
        scores: Mapping[str, Any],
        policy_uri: str | None = None,
        run_id: str | None = None,
    ) -> None:
        """Record the scores of a policy: `EvalRewardSummary.to_dict`, or simulation -> mean return.

        Late scores have ``late_row`` too: their record of metrics.
        """
        payload = {"epoch": epoch, "agent_step": agent_step, "policy_uri": policy_uri}
        self._append("evaluation", run_id, {**payload, "scores": scores})

    def recorded(self, epochs: Collection[int]) -> set[tuple[str, int, str]]:
        """Evaluations and replays of these epochs in the log: (kind, epoch, simulation or nothing).

        What a run took back when it continued from an earlier epoch does not count. The log is read from
        its end, as far back as these epochs are in it.
        """
        log, found, kept = self.event_log, set[tuple[str, int, str]](), math.inf
        if not epochs:
            return found
        with open_log(log.path) as (stream, size):
            for _, line in lines_backwards(stream, size, log.path):
                event = parse_event(line)
                back = taken_back_to(event, log.path)
                if event.run != log.run_id:
                    continue
                epoch = event.payload.get("epoch", math.inf) if back is None else back
                kept = min(kept, math.inf if back is None else back)
                if event.kind in ("evaluation", "replay") and epoch in epochs and epoch <= kept:
                    found.add((event.kind, epoch, str(event.payload.get("simulation", ""))))
                elif event.kind == "metrics" and epoch < min(epochs):
                    break  # scores come after the records of their epoch
        return found

    def sync(self) -> bool:
        """Bring all events to the disk; returns whether they are there."""
        return self.event_log.sync() is not None

    def record_policy(
        self, *, epoch: int, agent_step: int, uri: str, run_id: str | None = None
    ) -> None:
        """Record that a policy was saved."""
        payload = {"epoch": epoch, "agent_step": agent_step, "uri": uri}
        self._append("policy", run_id, payload)

    def record_replay(
        self,
        *,
        epoch: int,
        agent_step: int,
        simulation: str,
        uri: str,
        policy_uri: str | None = None,
        run_id: str | None = None,
    ) -> None:
        """Record that a replay was written."""
        payload = {"epoch": epoch, "agent_step": agent_step, "simulation": simulation, "uri": uri}
        self._append("replay", run_id, {**payload, "policy_uri": policy_uri})

    def record_restart(self, *, place: int, reason: str, run_id: str | None = None) -> None:
        """Record that a process or an actor that collects was replaced."""
        self._append("collector_restart", run_id, {"place": place, "reason": reason})

    def record_rank_restart(self, *, reason: str, run_id: str | None = None) -> None:
        """Record that all ranks were started again, because one was lost."""
        self._append("rank_restart", run_id, {"reason": reason})

    def heartbeat(self, run_id: str, **numbers: float) -> None:
        """Record that the run is alive."""
        self._append("heartbeat", run_id, numbers)

    def end_run(self, run_id: str, reason: str, outcome: str = "done") -> None:
        """Record the end of the training: `outcome` is ``done``, ``stopped`` or ``failed``."""
        self._append("run_end", run_id, {"reason": reason, "outcome": outcome})

    def _append(self, kind: str, run_id: str | None, payload: Mapping[str, Any]) -> None:
        self.event_log.append(kind, {"run_id": run_id or self.event_log.run_id, **payload})
