"""A sweep that is cut off anywhere goes on as if nothing had happened."""

import json
from pathlib import Path

import pytest

from metta.errors import SweepError
from metta.jobs.job import Job
from metta.sweeps.definition import SweepDefinition
from metta.sweeps.driver import SweepDriver
from metta.sweeps.ledger import SweepLedger
from metta.sweeps.trials import Event, best_of
from tests.sweeps.toy_sweeps import (
    TOTAL,
    driven,
    formula,
    result_of,
    toy_definition,
    work_once,
    write_log,
)


class CutOffError(Exception):
    """The process of the driver ends here."""


class CutLedger(SweepLedger):
    """A ledger whose process is killed after so many events, before or after they are in the database."""

    left = 10**9
    is_written = True

    def append(self, name: str, events: list[Event], **more: object) -> None:
        self.left -= 1
        if self.left > 0:
            super().append(name, events, **more)  # type: ignore[arg-type]  # as given
            return
        if self.is_written:
            super().append(name, events, **more)  # type: ignore[arg-type]  # as given
        raise CutOffError


def content(events: list[Event]) -> list[tuple[str, int, str]]:
    """Events without their times."""
    return [(event.kind, event.trial, json.dumps(dict(event.payload))) for event in events]


def put_logs(definition: SweepDefinition, job: Job) -> None:
    """The log of a run whose return grows to its score."""
    score = formula(job.payload["settings"])
    folder = Path(definition.runs) / job.payload["run"]
    if not folder.exists():
        write_log(folder, [score - 50 + step for step in range(10)])


def drive_on(ledger: SweepLedger, definition: SweepDefinition, workers: int = 1) -> None:
    driver = SweepDriver(ledger, definition, workers=workers, say=lambda _: None)
    while not driver.step():
        job = ledger.take("toy", lease_seconds=60.0)
        if job is not None:
            put_logs(definition, job)
            ledger.finish(job, result_of(job))


def was_killed(ledger: CutLedger, definition: SweepDefinition, after: int) -> bool:
    ledger.left = after
    try:
        drive_on(ledger, definition)
    except CutOffError:
        return True
    return False


def fail_next(ledger: SweepLedger, driver: SweepDriver) -> None:
    driver.step()
    job = ledger.take("toy", lease_seconds=60.0)
    assert job is not None
    ledger.fail(job, "ValueError: no", is_final=True)


@pytest.mark.parametrize("is_written", [True, False])
def test_a_sweep_is_the_same_when_its_driver_is_killed_at_every_event(
    tmp_path: Path, is_written: bool
) -> None:
    definition = toy_definition(tmp_path, trials=13, seeds=2, pruner="median")
    with SweepLedger(str(tmp_path / "whole.db")) as ledger:
        ledger.begin(definition)
        drive_on(ledger, definition)
        wanted = content(ledger.events("toy"))
        num_jobs = len(ledger.records())
    assert {kind for kind, *_ in wanted} == {"ask", "report", "prune", "seeds", "tell"}
    with CutLedger(str(tmp_path / "cut.db")) as ledger:
        ledger.begin(definition)
        ledger.is_written = is_written
        # one event each time, or it would never end
        while was_killed(ledger, definition, after=1 if is_written else 2):
            pass
        assert content(ledger.events("toy")) == wanted
        records = ledger.records()
        assert len(records) == num_jobs
        assert {record.state for record in records} <= {"done", "cancelled"}
        assert all(record.attempt <= 1 for record in records)


def test_no_trial_begins_twice_when_drivers_of_several_workers_are_killed(tmp_path: Path) -> None:
    definition = toy_definition(tmp_path, trials=12, seeds=2)
    with CutLedger(str(tmp_path / "stats.db")) as ledger:
        ledger.begin(definition)
        for cut in (3, 4, 5):
            ledger.left = cut
            with pytest.raises(CutOffError):
                drive_on(ledger, definition, workers=4)
        ledger.left = 1000
        drive_on(ledger, definition, workers=4)
        events = ledger.events("toy")
        asked = [event.trial for event in events if event.kind == "ask"]
        told = [event.trial for event in events if event.kind == "tell"]
        assert asked == list(range(1, 13)) == sorted(told)
        assert len(ledger.records(states=("done",))) == len(ledger.records()) == 24


def test_hopeless_trials_are_pruned_by_their_logs_when_they_are_done_already(
    tmp_path: Path,
) -> None:
    definition = toy_definition(tmp_path, ["lr=1e-5..1e-2:log"], trials=12, pruner="asha", seeds=2)
    with SweepLedger(str(tmp_path / "stats.db")) as ledger:
        ledger.begin(definition)
        drive_on(ledger, definition)
        driver = SweepDriver(ledger, definition, workers=1, say=print)
        pruned = driver.trials.in_state("pruned")
        complete = driver.trials.in_state("complete")
        best = best_of(driver.trials)
    assert len(pruned) >= 4
    assert len(pruned) + len(complete) == 12
    assert best is not None
    reported = {trial.number: trial.reports[0] for trial in driver.trials.values()}
    assert reported[best.number] == max(value for value in reported.values() if value is not None)
    # the record at or after a ninth of 1,000 steps is the second of ten
    assert best.reports[0] == pytest.approx(formula(settings_of(best.values)) - 50 + 1)
    assert all(len(trial.runs) == 2 for trial in complete)
    assert all(len(trial.runs) == 0 for trial in pruned)


def settings_of(values: dict[str, float]) -> dict[str, float]:
    return {**values, "trainer.seed": 1}


def test_the_sweep_goes_on_when_a_trial_fails_and_stops_when_the_first_three_do(
    tmp_path: Path,
) -> None:
    definition = toy_definition(tmp_path, trials=6, seeds=2)
    with SweepLedger(str(tmp_path / "stats.db")) as ledger:
        ledger.begin(definition)
        driver = SweepDriver(ledger, definition, workers=1, say=lambda _: None)
        for is_bad in (True, True, False, True, True, True):
            driver.step()
            job = ledger.take("toy", lease_seconds=60.0)
            assert job is not None
            if is_bad:
                ledger.fail(job, "ValueError: no", is_final=True)
            else:
                ledger.finish(job, result_of(job))
                work_once(ledger)
        assert driver.step()
        states = [trial.state for trial in driver.trials.values()]
        assert states == ["failed", "failed", "complete", "failed", "failed", "failed"]
        assert driver.trials[1].reason == "ValueError: no"
        # the second run of a failed trial is not wanted any more
        states = [record.state for record in ledger.records(states=("cancelled",))]
        assert len(states) == 5
    with SweepLedger(str(tmp_path / "other.db")) as ledger:
        ledger.begin(definition)
        driver = SweepDriver(ledger, definition, workers=1, say=lambda _: None)
        for _ in range(3):
            fail_next(ledger, driver)
        with pytest.raises(SweepError, match=r"3 trials failed .* the last one: ValueError: no"):
            driver.step()


def test_a_trial_fails_when_its_run_has_no_score(tmp_path: Path) -> None:
    definition = toy_definition(tmp_path, trials=1)
    with SweepLedger(str(tmp_path / "stats.db")) as ledger:
        ledger.begin(definition)
        driver = SweepDriver(ledger, definition, workers=1, say=lambda _: None)
        driver.step()
        job = ledger.take("toy", lease_seconds=60.0)
        assert job is not None
        ledger.finish(job, {**result_of(job), "score": None, "episodes": []})
        assert driver.step()
        assert (
            "'toy/t001-s1' has no score: its last evaluation gave none" in driver.trials[1].reason
        )


def test_a_trial_fails_without_a_job_when_its_values_cannot_be_trained(tmp_path: Path) -> None:
    # 65..127 do not divide the batch; the command refuses this range, a log may have it all the same
    definition = toy_definition(tmp_path, ["minibatch_size=65..127"], trials=2)
    said: list[str] = []
    with SweepLedger(str(tmp_path / "stats.db")) as ledger:
        ledger.begin(definition)
        driver = SweepDriver(ledger, definition, workers=1, say=said.append)
        assert driver.step()
        assert ledger.records() == []
    assert [trial.state for trial in driver.trials.values()] == ["failed", "failed"]
    assert "minibatch_size" in said[0]


def test_the_second_driver_stops_when_another_has_gone_on(url: str, tmp_path: Path) -> None:
    definition = toy_definition(tmp_path, trials=3)
    with SweepLedger(url) as ledger, SweepLedger(url) as other:
        ledger.begin(definition)
        first = SweepDriver(ledger, definition, workers=1, say=print)
        second = SweepDriver(other, definition, workers=1, say=print)
        first.step()
        with pytest.raises(SweepError, match="another process has continued the sweep 'toy'"):
            second.step()
        assert [event.kind for event in ledger.events("toy")] == ["ask"]
        assert len(ledger.records()) == 1


def test_scores_and_costs_are_means_over_seeds_when_trials_have_several(tmp_path: Path) -> None:
    definition = toy_definition(tmp_path, ["n_epochs=7,8"], trials=1, seeds=4, cost="wall")
    with SweepLedger(str(tmp_path / "stats.db")) as ledger:
        ledger.begin(definition)
        trial = driven(ledger, definition, workers=2).trials[1]
    passes = trial.values["trainer.ppo.update_epochs"]
    middle = -100 * ((passes - 7) / 4) ** 2
    assert trial.score is not None
    # seeds 1 to 4 add a sixteenth each
    assert trial.score.value == pytest.approx(middle + 2.5 / 16)
    assert trial.score.count == 4
    assert (
        middle + 1 / 16 <= trial.score.low < trial.score.value < trial.score.high <= middle + 4 / 16
    )
    assert trial.cost == 10.0 + passes
    assert [run.run for run in trial.runs] == [f"toy/t001-s{seed}" for seed in (1, 2, 3, 4)]
    assert [run.agent_step for run in trial.runs] == [TOTAL] * 4
