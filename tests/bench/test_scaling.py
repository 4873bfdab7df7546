"""The benchmark of several processes: its ratios, its parts, its model, and what the page says of it."""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks.scaling import __main__ as command
from benchmarks.scaling.job import run
from benchmarks.scaling.model import (
    ASSUMED_NETWORK,
    EXAMPLE,
    Layout,
    Network,
    Workload,
    compare_with_measured,
    nodes_table,
    predict,
)
from benchmarks.scaling.parts import Part, Variant, ratios_of, sleep_for_balance, the_parts

PAGE = Path(__file__).parents[2] / "docs" / "scaling.md"
WORK = Workload(
    parameters=1000, num_shards=8, rows_per_shard=2, horizon=10, numbers_per_step=5,
    step_seconds=0.5, learn_seconds=0.25, passes=3, minibatches=2,
)  # fmt: skip
NETWORK = Network(bytes_per_second=1000.0, latency_seconds=0.5)


def parts_of(**options: Any) -> list[Part]:
    wanted = {"kinds": ["process"], "wanted": None, "has_before": True, **options}
    return list(the_parts(16, 8, balance=lambda _: 0.125, **wanted))


def test_ratios_are_taken_within_rounds_and_compared_with_linear() -> None:
    part = Part("p", "", [Variant("one", {}), Variant("four", {})], linear={"one": 1, "four": 4})
    (found,) = ratios_of(part, {"one": [8.0, 16.0, 8.0], "four": [2.0, 5.0, 4.0]})
    assert (found.median, found.low, found.high, found.rounds) == (0.8, 0.5, 1.0, 3)


def test_a_round_that_lacks_a_variant_is_an_error() -> None:
    part = Part("p", "", [Variant("a", {}), Variant("b", {})])
    with pytest.raises(ValueError, match="shorter"):
        ratios_of(part, {"a": [1.0, 2.0], "b": [1.0]})


def test_environments_sleep_as_long_as_learning_takes_longer() -> None:
    assert sleep_for_balance(learn_seconds=3.0, collect_seconds=1.0, steps=100) == 0.02
    assert sleep_for_balance(learn_seconds=1.0, collect_seconds=3.0, steps=100) == 0.0


def test_the_parts_are_those_that_are_wanted() -> None:
    assert [part.name for part in parts_of()] == [
        "actors", "overlap", "torchrun", "before", "ranks",
    ]  # fmt: skip
    names = [part.name for part in parts_of(has_before=False, kinds=["process", "ray"])]
    assert names == ["actors", "actors", "overlap", "torchrun", "ranks"]
    assert [part.name for part in parts_of(wanted=["ranks"])] == ["ranks"]
    overlap = parts_of(wanted=["overlap"])[0]
    assert [variant.sleep for variant in overlap.variants] == [0.125, 0.125]


def test_every_variant_is_a_run_that_the_settings_allow() -> None:
    from metta.train.train_config import TrainingConfig

    for part in parts_of(kinds=["process", "ray"]):
        for variant in part.variants:
            TrainingConfig.from_dict({**variant.settings, "total_timesteps": 128})


def test_a_job_gives_the_seconds_of_its_epochs() -> None:
    settings = {
        "num_envs": 2,
        "horizon": 8,
        "hidden_size": 8,
        "num_minibatches": 1,
        "update_epochs": 1,
    }
    found = run({"epochs": 1, "warmup": 1, "sleep": 0.0, "settings": settings})
    assert found["steps"] == 16
    assert found["epoch_seconds"] >= found["collect_seconds"] > 0
    assert found["parameters"] > 8


def test_a_prediction_is_the_sum_of_its_phases() -> None:
    alone = predict(WORK, Layout(), NETWORK)
    # 8 shards in turn x 2 rows x 10 steps x 0.5 s; 160 samples x 3 passes x 0.25 s
    assert (alone.collect, alone.learn, alone.reduce) == (80.0, 120.0, 0.0)
    # 1,000 parameters and 160 steps of 5 numbers, 4 bytes each, at 1,000 bytes/s, there and back
    assert alone.transfer == 4.0 + 3.2 + 1.0
    assert alone.seconds == alone.transfer + 200.0
    assert alone.steps_per_second == 160 / alone.seconds
    assert alone.bottleneck == "learn"


def test_gradients_come_from_all_other_ranks_in_each_minibatch() -> None:
    found = predict(WORK, Layout(ranks=4), NETWORK)
    assert found.gradient_bytes == (4 - 1) * 1000 * 4 * 3 * 2
    assert found.reduce == 72.0 + 6 * 3 * 0.5
    assert (found.collect, found.learn) == (20.0, 30.0)
    with pytest.raises(ValueError, match="3 ranks do not divide 8 shards"):
        predict(WORK, Layout(ranks=3), NETWORK)


def test_actors_collect_whole_shards_and_weights_go_to_each() -> None:
    found = predict(WORK, Layout(actors=3), NETWORK)
    assert found.collect == 30.0  # of 8 shards, one actor has 3
    assert found.weight_bytes == 3 * 4000


def test_with_overlap_the_longer_phase_counts() -> None:
    found = predict(WORK, Layout(overlap=True), NETWORK)
    assert found.seconds == found.transfer + 120.0


def test_the_model_is_compared_with_what_was_measured() -> None:
    measured = {
        "actors": {"process 1": 8.0, "process 4": 2.5},
        "ranks": {"1 process": 3.0, "2 ranks": 2.0},
        "overlap": {"in turn": 2.0, "ahead": 1.0},
    }
    assert compare_with_measured(measured) == [("process 4", 3.2, 4.0), ("2 ranks", 1.5, 2.0)]


def test_the_page_has_the_numbers_of_the_model() -> None:
    page = PAGE.read_text()
    for row in nodes_table(EXAMPLE, ASSUMED_NETWORK):
        assert f"| {' | '.join(row)} |" in page


def test_results_are_files_and_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taken: list[tuple[str, bool]] = []

    def run_job(variant: Variant, options: argparse.Namespace) -> dict[str, Any]:
        assert options.before == Path("older")
        taken.append((variant.name, variant.is_before))
        seconds = 3.0 if variant.is_before else 2.0
        return {"epoch_seconds": seconds, "collect_seconds": 1.0, "steps": 4}

    monkeypatch.setattr(command, "run_job", run_job)
    words = ["--rounds", "2", "--parts", "before", "--before", "older", "--out", str(tmp_path)]
    command.main(words)
    assert taken == [("before", True), ("now", False), ("now", False), ("before", True)]
    found = json.loads((tmp_path / "scaling.json").read_text())
    assert [(one["name"], one["median"]) for one in found["ratios"]] == [("now", 1.5)]
    assert found["medians"] == {"before": {"before": 3.0, "now": 2.0}}
    assert len((tmp_path / "scaling.csv").read_text().splitlines()) == 5
    capsys.readouterr()
    command.main(["--table", str(tmp_path / "scaling.json")])
    shown = capsys.readouterr().out
    assert "| now | 1.50 | 1.50 to 1.50 |" in shown
    assert "median of 2 rounds" in shown


def test_the_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.parse(["--help"])
    assert "in paired rounds" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        command.parse(["--rounds", "0"])
    assert math.isclose(predict(WORK, Layout(), Network(math.inf, 0.0)).transfer, 0.0)
