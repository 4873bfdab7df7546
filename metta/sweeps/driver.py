"""`SweepDriver`: asks for trials, has them run, prunes hopeless ones, and writes down what came of each."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from metta.database.patience import patiently
from metta.errors import ConfigError, SweepError
from metta.jobs.job import OPEN_STATES, JobRecord, JobSpec
from metta.sweeps.definition import SweepDefinition
from metta.sweeps.ledger import SweepLedger
from metta.sweeps.progress import ended_line
from metta.sweeps.pruning import hopeless
from metta.sweeps.space import with_values
from metta.sweeps.suggestions import replayed
from metta.sweeps.trial_runs import cost_of, job_key, jobs_of, return_at, run_result, score_of
from metta.sweeps.trials import Event, EventKind, RunResult, Trial, Trials
from metta.train.train_config import TrainingConfig

__all__ = ["SweepDriver"]

_MOST_FAILURES = 3
"""Trials that may fail one after the other before any works."""


class SweepDriver:
    """Carries a sweep on from wherever its log ends; there may be one for each sweep at a time.

        driver = SweepDriver(ledger, ledger.definition("first"), workers=2, say=print)
        while not driver.step():
            time.sleep(0.2)

    What it does next follows from the log and from what runs have logged, never from when it looks: only
    the order in which trials of several workers end is theirs.
    """

    def __init__(
        self,
        ledger: SweepLedger,
        definition: SweepDefinition,
        *,
        workers: int,
        say: Callable[[str], None],
        prepare: Callable[[Path], object] = Path,
    ) -> None:
        """`workers` is how many jobs it keeps open; `prepare` is called with the folder of each new run."""
        self._ledger, self._definition, self._workers = ledger, definition, workers
        self._say, self._prepare = say, prepare
        self._config = TrainingConfig.from_dict(definition.settings)
        events = ledger.events(definition.name)
        self._num_events = len(events)
        self.trials = Trials(events)
        self._suggester, problem = replayed(definition, events)
        if problem:
            say(f"note: {problem}")
        self._num_failed = 0
        self._cancel(
            *self.trials.in_state("pruned", "failed")
        )  # it may have been killed before it did

    def step(self) -> bool:
        """Look once at everything that is open, and ask for what is next; returns whether all is done."""
        num_open = self._look()
        while len(self.trials) < self._definition.trials and num_open < self._workers:
            num_open += self._ask()
        return self.is_done

    @property
    def is_done(self) -> bool:
        """Whether every trial has ended."""
        return not self.trials.in_state("running") and len(self.trials) >= self._definition.trials

    @property
    def has_only_failed(self) -> bool:
        """Whether trials failed, and none has worked."""
        trials = self.trials
        return bool(trials.in_state("failed")) and not trials.in_state("complete", "pruned")

    def _look(self) -> int:
        """Go on with trials whose runs did; returns how many jobs are still open."""
        running = self.trials.in_state("running")
        keys = [key for trial in running for key in self._keys(trial)]
        if not keys:
            return 0
        found = patiently(lambda: self._ledger.records(keys=keys))
        records = {record.key: record for record in found}
        for trial in running:
            own = {key: records[key] for key in self._keys(trial) if key in records}
            self._judge(trial, own)
            if trial.state == "running":
                self._go_on(trial, own)
        still = {key for trial in self.trials.in_state("running") for key in self._keys(trial)}
        ended = {key for key in still & records.keys() if records[key].state not in OPEN_STATES}
        return len(still - ended)

    def _keys(self, trial: Trial) -> list[str]:
        places = self._definition.seeds if trial.has_all_seeds else 1
        return [job_key(self._definition, trial.number, place) for place in range(places)]

    def _ask(self) -> int:
        """Begin the next trial; returns how many jobs that makes."""
        number = len(self.trials) + 1
        values = self._suggester.ask(number)
        seeds, is_first_alone = self._definition.seeds, bool(self._definition.rungs)
        places = range(1 if is_first_alone else seeds)
        asked = self._event("ask", number, {"values": values, "all_seeds": not is_first_alone})
        try:
            with_values(self._config, values)
        except ConfigError as error:  # the ranges were tried at their ends only
            self._write(asked, self._failure(number, str(error)))
            self._ended(self.trials[number])
            return 0
        jobs = jobs_of(self._definition, number, values, places)
        self._write(asked, jobs=jobs)
        return len(jobs)

    def _judge(self, trial: Trial, records: Mapping[str, JobRecord]) -> None:
        """Read what the first run had at the next rungs, and prune the trial if that is hopeless."""
        first = job_key(self._definition, trial.number, 0)
        if first not in records or records[first].state in ("failed", "cancelled"):
            return
        log = Path(self._definition.runs) / first.removeprefix("sweep/") / "events.jsonl"
        for rung, share in enumerate(self._definition.rungs):
            if rung in trial.reports:
                continue
            is_reached, value = return_at(log, share * self._definition.total_timesteps)
            if not is_reached:
                return
            report = self._event("report", trial.number, {"rung": rung, "value": value})
            others = self.trials.reported(rung, besides=trial.number)
            why = "" if value is None else hopeless(self._definition.pruner, value, others)
            if not why:
                self._write(report)
                continue
            reason = f"at {100 * share:.0f} % of its steps: {why}"
            self._write(
                report, self._event("prune", trial.number, {"rung": rung, "reason": reason})
            )
            self._cancel(trial)
            self._ended(trial)
            return

    def _go_on(self, trial: Trial, records: Mapping[str, JobRecord]) -> None:
        """Begin the other runs of a trial, or end it, if its runs have got there."""
        lost = [one for one in records.values() if one.state in ("failed", "cancelled")]
        if lost:
            reason = lost[0].error or "its job was cancelled"
            self._write(self._failure(trial.number, reason))
            self._cancel(trial)
            self._ended(trial)
            return
        keys = self._keys(trial)
        if any(key not in records or records[key].state != "done" for key in keys):
            return
        try:
            runs = [
                run_result(self._definition, trial.number, place, records[key])
                for place, key in enumerate(keys)
            ]
        except ConfigError as error:
            self._write(self._failure(trial.number, str(error)))
            self._ended(trial)
            return
        if len(runs) < self._definition.seeds:
            places = range(1, self._definition.seeds)
            jobs = jobs_of(self._definition, trial.number, trial.values, places)
            self._write(self._event("seeds", trial.number, {}), jobs=jobs)
            return
        self._write(self._success(trial.number, runs))
        self._ended(trial)

    def _success(self, trial: int, runs: list[RunResult]) -> Event:
        payload = {
            "state": "complete",
            "reason": "",
            "score": score_of(runs).to_dict(),
            "cost": cost_of(self._definition, runs),
            "runs": [vars(run) for run in runs],
        }
        return self._event("tell", trial, payload)

    def _failure(self, trial: int, reason: str) -> Event:
        return self._event("tell", trial, {"state": "failed", "reason": reason, "runs": []})

    def _event(self, kind: EventKind, trial: int, payload: Mapping[str, object]) -> Event:
        return Event(kind, trial, payload, time.time())

    def _write(self, *events: Event, jobs: list[JobSpec] | None = None) -> None:
        """Log events and post jobs in one transaction; only then they have happened."""
        for job in jobs or ():
            self._prepare(Path(self._definition.runs) / job.payload["run"])
        name, sequence = self._definition.name, self._num_events
        patiently(lambda: self._ledger.append(name, events, sequence=sequence, jobs=jobs or ()))
        self._num_events += len(events)
        for event in events:
            self._suggester.follow(event)
            self.trials.follow(event)

    def _cancel(self, *trials: Trial) -> None:
        keys = [key for trial in trials for key in self._keys(trial)]
        if keys:
            patiently(lambda: self._ledger.cancel(keys=keys))

    def _ended(self, trial: Trial) -> None:
        """Say what came of a trial; several failures before anything works end the sweep."""
        self._say(ended_line(self._definition, self.trials, trial))
        self._num_failed += trial.state == "failed"
        if self._num_failed >= _MOST_FAILURES and self.has_only_failed:
            raise SweepError(
                f"{self._num_failed} trials failed one after the other, and none has worked; the last one: "
                f"{trial.reason}"
            )
