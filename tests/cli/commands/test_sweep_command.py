"""`metta sweep` from the command line: refused before any work, run to its end, killed and continued."""

import json
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from faults.zygote import Zygote
from metta.cli import sweeping
from metta.cli.main import main
from metta.cli.sweep_tables import status_lines
from metta.file_locks import hold_lock
from metta.jobs.job import JobSpec
from metta.sweeps.driver import SweepDriver
from metta.sweeps.ledger import SweepLedger
from metta.sweeps.tables import sweep_events
from metta.sweeps.trials import Event, Trials
from tests.children import TINY, ended, start_metta

WORDS = ["CartPole-v1", "lr=1e-4..1e-2:log", "clip_coef=0.1..0.3", *TINY[:-2], "eval_episodes=4",
         "eval_envs=4", "total_timesteps=160"]  # fmt: skip
Said = tuple[int, str, str]


def said(capsys: pytest.CaptureFixture[str], *words: str) -> Said:
    code = main(list(words))
    out, err = capsys.readouterr()
    return code, out, err


def events_of(runs: Path, name: str) -> list[Event]:
    with SweepLedger(str(runs / "stats.db")) as ledger:
        return ledger.events(name) if name in ledger.names() else []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nothing varies: give a setting a range"),
        (["cartpole", "lr=1e-3"], "metta seeds 5"),
        (["cartpole", "lrr=1..3"], "unknown setting 'lrr'; did you mean 'lr'?"),
        (["cartpole", "gama=0.9"], "unknown setting 'gama'"),
        (["cartpole", "lr=2..1"], "is empty"),
        (["cartpole", "lr=1..2", "learning_rate=1,2"], "are two ranges of"),
        (["cartpole", "lr=1..2", "learning-rate=1"], "'learning-rate=1' sets"),
        (["cartpole", "minibatch_size=64,100"], "1 of 2 combinations"),
        (["cartpole", "lr=1..2", "minibatch_size=100"], "minibatch_size=100 does not divide"),
        (["cartpole", "minibatch_size=100,64"], "minibatch_size=100: minibatch_size=100 does not"),
        (["NoSuchEnv-v0", "lr=1..2"], "NoSuchEnv-v0"),
        (["cartpole", "lr=1..2", "device=cuda:77"], "cuda:77"),
        (
            ["cartpole", "lr=1..2", "eval_episodes=0"],
            "give eval_episodes=20, or --objective reward",
        ),
        (["cartpole", "lr=1..2", "evaluation.where=queue"], "leave evaluation.where out"),
        (["cartpole", "lr=1..2", "--address", "host:6379"], "add --on ray"),
        (["cartpole", "lr=1..2", "--trials", "0"], "--trials 0: give a whole number from 1"),
        (["cartpole", "lr=1..2", "--seeds", "0"], "--seeds 0"),
        (["cartpole", "lr=1..2", "--seed", "-1"], "--seed -1"),
        (["cartpole", "lr=1..2", "--workers", "0"], "--workers 0"),
        (["cartpole", "lr=1..2", "--sampler", "cmaes"], "choose one of tpe, random, grid"),
        (["cartpole", "lr=1..2", "--sampler", "grid"], "lr=1..2 has no steps"),
        (["cartpole", "lr=1..2", "--pruner", "best"], "choose one of none, median, asha"),
        (["cartpole", "lr=1..2", "--cost", "money"], "choose one of none, steps, wall, cpu"),
        (["cartpole", "lr=1..2", "--objective", "loss"], "choose one of score, reward"),
        (["cartpole", "total_timesteps=1000,2000", "--pruner", "asha"], "use --pruner none"),
        (["cartpole", "lr=1..2", "--name", "../out"], "--name '../out' is not a name"),
        (["cartpole", "lr=1..2", "--database", "mysql://host/db"], "use sqlite or postgresql"),
        (["cartpole", "lr=1..2", "--database", "no_ending"], "no SQLite file of that name"),
        (["resume"], "name one sweep"),
        (["resume", "first", "lr=1..2"], "ranges of a sweep cannot change"),
        (["stats", "first"], "did you mean: metta sweep status first?"),
        (["statsu", "first"], "did you mean: metta sweep status first?"),
        (["rm", "first"], "did you mean: metta sweep remove first?"),
        (["delete"], "did you mean: metta sweep remove NAME?"),
        (["list"], "did you mean: metta sweep status?"),
        (["best", "a", "b"], "name one sweep"),
    ],
)
def test_it_is_refused_before_any_work_when_the_input_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    code, _, err = said(capsys, "sweep", *words, "--runs", str(tmp_path / "runs"))
    assert message in err
    assert code == 2
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("action", ["resume", "status", "best", "plot", "remove"])
def test_nothing_is_made_when_there_is_no_such_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], action: str
) -> None:
    code, _, err = said(capsys, "sweep", action, "first", "--runs", str(tmp_path / "runs"))
    assert (code, "there is no database" in err) == (1, True)
    assert not (tmp_path / "runs").exists()


def test_folders_and_servers_are_refused_when_they_cannot_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sweep", "cartpole", "lr=1..2", "--name", "a"]
    (tmp_path / "file").touch()
    code, _, err = said(capsys, *words, "--runs", str(tmp_path / "file"))
    assert (code, "cannot be written" in err) == (2, True)
    away = "postgresql://nobody@127.0.0.1:9/none"
    code, _, err = said(capsys, *words, "--runs", str(tmp_path), "--database", away)
    assert (code, "DatabaseUnavailableError" in err) == (1, True)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.yaml").touch()
    code, _, err = said(capsys, *words, "--runs", str(tmp_path))
    assert (code, "has something in it already" in err) == (2, True)


def test_a_sweep_ends_with_its_best_trial_and_its_trials_are_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["--runs", str(tmp_path)]
    words = [*WORDS, "--trials", "2", "--seeds", "2", "--workers", "2", "--name", "first"]
    code, out, _ = said(capsys, "sweep", *words, "--pruner", "median", *place)
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith(
        "sweep first: 2 trials of 2 runs, tpe, for a high score; 2 workers; database sqlite:"
    )
    assert sum(line.startswith("trial ") for line in lines) == 2
    assert lines[-1].startswith("train it: metta train CartPole-v1 num_envs=2 ")
    trials = Trials(events_of(tmp_path, "first"))
    assert [trial.state for trial in trials.values()] == ["complete"] * 2
    assert all(set(trial.reports) == {0, 1, 2, 3} for trial in trials.values())

    code, out, _ = said(capsys, "sweep", "best", "first", "--json", *place)
    best = json.loads(out)["best"]
    assert best["score"]["low"] == max(
        trial.score.low for trial in trials.values() if trial.score is not None
    )
    assert main(["train", *best["command"].split()[2:], "--run", "again", *place]) == 0
    name = best["runs"][0]["run"]
    code, out, _ = said(capsys, "runs", "again", "--json", *place)
    again = json.loads(out.splitlines()[-1])
    code, out, _ = said(capsys, "runs", name, "--json", *place)
    assert json.loads(out)["score"] == again["score"] == best["runs"][0]["score"]

    code, out, _ = said(capsys, "sweep", "status", "first", *place)
    assert "2 of 2 trials ended; wanted is a high score" in out
    code, out, _ = said(capsys, "sweep", "status", *place)
    assert "lr=0.0001..0.01:log clip_coef=0.1..0.3" in out
    code, out, _ = said(capsys, "sweep", "plot", "first", *place)
    assert (tmp_path / "first" / "sweep.png").stat().st_size > 10_000
    code, out, _ = said(capsys, "runs", "--runs", str(tmp_path / "first"))
    assert out.count("t00") == 4
    code, out, _ = said(capsys, "runs", *place)
    assert "1 sweep" in out
    code, out, _ = said(capsys, "compare", "first/t001-s1", "first/t002-s1", *place)
    assert code == 0
    assert main(["resume", "first/t001-s1", "total_timesteps=192", *place]) == 0

    # more trials, under the same name only by `resume`
    code, _, err = said(capsys, "sweep", *words, *place)
    told = "sweep 'first' exists (2 of 2 trials ended): metta sweep resume first continues it"
    assert (code, told in err) == (2, True)
    code, _, err = said(capsys, "sweep", "resume", "first", "--sampler", "random", *place)
    assert (code, "--sampler is chosen when a sweep begins" in err) == (2, True)


def test_only_one_process_carries_a_sweep_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from metta.sweeps.lock import LOCK_FILE
    from tests.sweeps.toy_sweeps import toy_definition

    with SweepLedger(str(tmp_path / "stats.db")) as ledger:
        ledger.begin(toy_definition(tmp_path))
    (tmp_path / "toy").mkdir()
    with hold_lock(tmp_path / "toy" / LOCK_FILE):
        words = ["resume", "toy", "--trials", "99", "--runs", str(tmp_path)]
        code, _, err = said(capsys, "sweep", *words)
    with SweepLedger(str(tmp_path / "stats.db")) as ledger:
        assert ledger.definition("toy").trials == 14
    assert (code, "RunLockedError" in err, str(tmp_path / "toy" / LOCK_FILE) in err) == (
        1,
        True,
        True,
    )
    assert events_of(tmp_path, "toy") == []
    other = ["--runs", str(tmp_path / "other"), "--database", str(tmp_path / "stats.db")]
    code, _, err = said(capsys, "sweep", "resume", "toy", *other)
    assert (code, f"add --runs {tmp_path}" in err) == (2, True)


def toy_sweep(folder: Path, states: Sequence[str], **changes: Any) -> None:
    """A sweep whose trials are in these states, without any run."""
    from tests.sweeps.toy_sweeps import toy_definition

    definition = toy_definition(folder, ["lr=1,2,3,4,5,6"], **changes)
    events = []
    for number, state in enumerate(states, 1):
        values = {"trainer.optimizer.learning_rate": float(number)}
        events.append(Event("ask", number, {"values": values, "all_seeds": True}))
        told = {"state": state, "reason": "no such folder", "runs": []}
        if state != "running":
            events.append(Event("tell", number, told))
    with SweepLedger(str(folder / "stats.db")) as ledger:
        ledger.begin(definition)
        ledger.append("toy", events, sequence=0)
    (folder / "toy").mkdir()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["resume", "toy", "--trials", "2"],
            "2 trials of 'toy' were begun already; give --trials 3",
        ),
        (["resume", "toy", "--trials", "0"], "--trials 0: give a whole number from 1"),
        (["cartpole", "lr=1..2", "--name", "toy"], "sweep 'toy' exists (1 of 2 trials ended)"),
    ],
)
def test_a_sweep_that_exists_is_left_as_it_is_when_words_do_not_fit_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    toy_sweep(tmp_path, ["failed", "running"], trials=2)
    code, _, err = said(capsys, "sweep", *words, "--runs", str(tmp_path))
    assert (code, message in err) == (2, True), err
    assert len(events_of(tmp_path, "toy")) == 3


def test_it_fails_and_says_how_to_try_more_when_no_trial_is_complete(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toy_sweep(tmp_path, ["failed", "failed"], trials=2)
    code, _, err = said(capsys, "sweep", "resume", "toy", "--runs", str(tmp_path))
    assert code == 1
    assert "no trial of toy is complete: 2 of 2 trials ended, 2 failed" in err
    more = f"try others with: metta sweep resume toy --runs {tmp_path} --trials 4\nor begin a new"
    assert more in err


def test_what_is_to_be_tried_is_said_when_a_sweep_stops_after_three_failures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toy_sweep(tmp_path, ["running"] * 3, trials=3)
    with SweepLedger(str(tmp_path / "stats.db")) as ledger:
        keys = [f"sweep/toy/t00{number}-s1" for number in (1, 2, 3)]
        ledger.post(JobSpec("train", key, "sweep/toy", {}) for key in keys)
        ledger.cancel(keys=keys)
    words = ["resume", "toy", "--on", "queue", "--runs", str(tmp_path)]
    code, _, err = said(capsys, "sweep", *words)
    assert (code, "3 trials failed one after the other" in err) == (1, True)
    again = f"metta sweep resume toy --runs {tmp_path} --on queue --trials 6\n"
    assert f"others with: {again}" in err


def test_a_new_sweep_is_asked_for_when_a_whole_grid_has_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toy_sweep(tmp_path, ["failed"] * 6, trials=6, sampler="grid")
    place = ["--runs", str(tmp_path)]
    code, _, err = said(capsys, "sweep", "resume", "toy", *place)
    assert (code, "--trials" in err, "begin a new sweep" in err) == (1, False, True)
    code, _, err = said(capsys, "sweep", "resume", "toy", "--trials", "9", *place)
    assert (code, "all 6 combinations of the grid" in err) == (2, True)


def test_it_is_said_that_nobody_carries_a_sweep_on_when_it_was_interrupted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from metta.sweeps.lock import LOCK_FILE

    toy_sweep(tmp_path, ["failed", "running"], trials=2)
    place = ["--runs", str(tmp_path)]
    lock = tmp_path / "toy" / LOCK_FILE
    lock.touch()
    with hold_lock(lock):
        _, out, _ = said(capsys, "sweep", "status", "toy", *place)
        assert ("1 running" in out, "nobody" in out) == (True, False)
        _, out, _ = said(capsys, "sweep", "status", "--json", *place)
        assert [one["is_running"] for one in json.loads(out)] == [True]
        assert said(capsys, "sweep", "remove", "toy", *place)[0] == 1
    assert len(events_of(tmp_path, "toy")) == 3
    _, out, _ = said(capsys, "sweep", "status", "toy", *place)
    assert "1 of 2 trials ended, 1 failed, 1 waiting; wanted" in out
    assert out.splitlines()[-1] == (
        f"nobody carries it on; continue with: metta sweep resume toy --runs {tmp_path}"
    )
    _, out, _ = said(capsys, "sweep", "status", "toy", "--json", *place)
    assert json.loads(out)["is_running"] is False
    _, out, _ = said(capsys, "sweep", "status", *place)
    assert out.splitlines()[1].split()[:5] == ["toy", "waiting", "1", "of", "2"]


def test_it_is_said_how_to_start_a_worker_when_none_takes_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweeping, "_IGNORED_SECONDS", 0.0)
    steps = iter((False, False, True))
    monkeypatch.setattr(SweepDriver, "step", lambda _: next(steps))
    words = ["sweep", *WORDS, "--name", "toy", "--on", "queue", "--runs", str(tmp_path)]
    code, out, _ = said(capsys, *words)
    assert code == 1  # no trial was tried
    assert out.count(f"start one with: metta worker --runs {tmp_path}\n") == 1


def test_the_runs_stay_when_a_sweep_is_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toy_sweep(tmp_path, ["failed", "running"], trials=2)
    (tmp_path / "toy" / "t001-s1").mkdir()
    with SweepLedger(str(tmp_path / "stats.db")) as ledger:
        ledger.post(
            JobSpec("train", f"{group}/t002-s1", group, {}) for group in ("sweep/toy", "sweep/b")
        )
    code, out, _ = said(capsys, "sweep", "remove", "toy", "--runs", str(tmp_path))
    assert (code, f"its runs stay in {tmp_path / 'toy'}" in out) == (0, True)
    with SweepLedger(str(tmp_path / "stats.db")) as ledger:
        assert [record.group for record in ledger.records()] == ["sweep/b"]
        assert ledger.names() == []
        with ledger.transaction() as connection:
            assert connection.execute(select(sweep_events)).all() == []
    assert (tmp_path / "toy" / "t001-s1").is_dir()


def test_a_running_trial_shows_how_far_it_is(tmp_path: Path) -> None:
    from tests.sweeps.toy_sweeps import toy_definition

    definition = toy_definition(tmp_path, ["lr=1,2"], cost="cpu")
    asked = Event("ask", 1, {"values": {"trainer.optimizer.learning_rate": 1.0}, "all_seeds": True})
    lines = "\n".join(status_lines(definition, [asked]))
    assert "0 of 14 trials ended, 1 running; wanted is a high score and a low cost (cpu)" in lines
    assert "waits" in lines


def wait_for_events(runs: Path, name: str, kind: str, count: int) -> None:
    deadline = time.monotonic() + 300.0
    while sum(event.kind == kind for event in events_of(runs, name)) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_is_repeated_or_tried_otherwise_when_the_driver_is_killed(
    tmp_path: Path, zygote: Zygote, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--trials", "12", "--workers", "1", "--name", "a"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert main(["sweep", *WORDS, *options, "--runs", str(whole)]) == 0
    cut.mkdir()
    words = ["sweep", *WORDS, *options, "--runs", str(cut)]
    for wanted, number in ((2, signal.SIGKILL), (5, signal.SIGKILL), (9, signal.SIGINT)):
        child = start_metta(zygote, words, tmp_path)
        wait_for_events(cut, "a", "ask", wanted)
        child.kill(number)
        code = ended(child, tmp_path).code
        assert code == (130 if number == signal.SIGINT else -signal.SIGKILL)
        words = ["sweep", "resume", "a", "--workers", "1", "--runs", str(cut)]
    assert "continue with: metta sweep resume a --runs" in (tmp_path / "out.txt").read_text()
    code, out, _ = said(capsys, *words)
    assert code == 0
    assert tried(events_of(cut, "a")) == tried(events_of(whole, "a"))
    with SweepLedger(str(cut / "stats.db")) as ledger:
        records = ledger.records()
    assert [record.state for record in records] == ["done"] * 12
    assert "best by its mean" in out


def tried(events: list[Event]) -> list[tuple[object, ...]]:
    """What was tried and what came of it, without times and durations."""
    trials = Trials(events)
    return [(number, trial.values, trial.state, trial.score) for number, trial in trials.items()]
