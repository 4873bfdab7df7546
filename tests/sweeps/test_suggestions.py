"""What is tried next is a function of the log: replaying it gives the same suggestions."""

import dataclasses
import itertools
import sys
from pathlib import Path

import pytest

from metta.errors import ConfigError, MissingExtraError
from metta.sweeps.ledger import SweepLedger
from metta.sweeps.suggestions import (
    OptunaSuggester,
    grid_size,
    importances,
    replayed,
    suggester_of,
)
from metta.sweeps.trials import Event
from tests.sweeps.toy_sweeps import driven, toy_definition

GRID = ("activation=tanh,relu", "n_epochs=3..5", "clip_coef=0.1..0.2:0.05")


@pytest.mark.parametrize("changes", [{}, {"cost": "wall"}, {"sampler": "random"}])
def test_the_log_gives_the_same_suggestions_when_it_is_replayed(
    tmp_path: Path, changes: dict[str, str]
) -> None:
    definition = toy_definition(tmp_path, trials=16, **changes)
    with SweepLedger(str(tmp_path / "stats.db")) as ledger:
        ledger.begin(definition)
        driven(ledger, definition, workers=3)
        events = ledger.events("toy")
    for cut, event in enumerate(events):
        if event.kind == "ask":
            suggester, problem = replayed(definition, events[:cut])
            assert problem == ""
            assert suggester.ask(event.trial) == event.payload["values"]
    other = dataclasses.replace(definition, seed=1)
    assert suggester_of(other).ask(1) != events[0].payload["values"]


@pytest.mark.parametrize(("cost", "state"), [("none", "PRUNED"), ("wall", "FAIL")])
def test_the_study_knows_what_was_pruned_when_it_learns(
    tmp_path: Path, cost: str, state: str
) -> None:
    definition = toy_definition(tmp_path, trials=2, cost=cost)
    suggester = OptunaSuggester(definition)
    values = suggester.ask(1)
    asked = Event("ask", 1, {"values": values, "all_seeds": False})
    pruned = Event("prune", 1, {"rung": 1, "reason": "others are better"})
    reports = [Event("report", 1, {"rung": rung, "value": value})
               for rung, value in ((0, None), (1, 7.5))]  # fmt: skip
    for event in (asked, *reports, pruned):
        suggester.follow(event)
    [trial] = suggester.study.trials
    assert trial.state.name == state
    assert trial.intermediate_values == ({1: 7.5} if cost == "none" else {})


def test_it_goes_on_from_what_was_tried_when_the_log_would_not_be_suggested_now(
    tmp_path: Path,
) -> None:
    definition = toy_definition(tmp_path, trials=15)
    with SweepLedger(str(tmp_path / "stats.db")) as ledger:
        ledger.begin(definition)
        driven(ledger, definition)
        events = ledger.events("toy")
    values = {**events[0].payload["values"], "trainer.optimizer.learning_rate": 1e-3}
    changed = [Event("ask", 1, {**events[0].payload, "values": values}), *events[1:]]
    suggester, problem = replayed(definition, changed)
    assert "trial 1 of the sweep 'toy' had" in problem
    assert "0.001" in problem
    again, _ = replayed(definition, changed)
    found = suggester.ask(16)
    assert found == again.ask(16)  # what it learned from is the same
    assert found != replayed(definition, events)[0].ask(16)


def test_each_combination_comes_once_when_a_grid_is_tried(tmp_path: Path) -> None:
    definition = toy_definition(tmp_path, GRID, sampler="grid")
    assert grid_size(definition.ranges) == 18
    suggester = suggester_of(definition)
    found = [tuple(suggester.ask(trial).values()) for trial in range(1, 19)]
    wanted = itertools.product(["tanh", "relu"], [3, 4, 5], [0.1, 0.15, 0.2])
    assert sorted(found) == sorted(wanted)
    assert found != sorted(found)


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        (["lr=1e-5..1e-2:log"], "lr=1e-05..0.01:log has no steps"),
        (["hidden_size=1..20000"], "has 20,000 values"),
        (["hidden_size=1..2000", "total_timesteps=1..2000"], "4,000,000 combinations are too many"),
    ],
)
def test_a_grid_is_refused_when_it_has_no_end(
    tmp_path: Path, ranges: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        grid_size(toy_definition(tmp_path, ranges).ranges)


def test_the_extra_is_named_when_optuna_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtraError, match=r"metta-rl\[sweep\]"):
        suggester_of(toy_definition(tmp_path))
    assert suggester_of(toy_definition(tmp_path, GRID, sampler="grid")).ask(1)


def test_the_setting_that_decides_is_the_most_important_when_trials_are_compared(
    tmp_path: Path,
) -> None:
    ranges = ["lr=1e-5..1e-2:log", "vf_coef=0.1..1"]  # the second does nothing
    for changes in ({"trials": 20}, {"trials": 20, "cost": "wall"}):
        definition = toy_definition(tmp_path, ranges, **changes)
        with SweepLedger(str(tmp_path / f"{len(changes)}.db")) as ledger:
            ledger.begin(definition)
            driven(ledger, definition)
            events = ledger.events("toy")
        shares = importances(definition, events)
        assert shares["lr"] > 0.8
        assert sum(shares.values()) == pytest.approx(1.0)
        assert importances(definition, events[:2]) == {}
