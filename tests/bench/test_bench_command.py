import json
from pathlib import Path

import pytest

from benchmarks.speed import WORKLOADS
from benchmarks.speed.command import main
from benchmarks.speed.workloads import Entry, Workload

TINY = Workload(
    "a few steps",
    "plain",
    (
        Entry("metta", 2048, details={"env": "CartPole-v1"}, settings={"numerics.driver": "eager"}),
        Entry("plain", 2048, "plain", one_thread=True),
        Entry("rllib", 2048, "rllib"),
    ),
    {**WORKLOADS["w1"].settings, "horizon": 32, "update_epochs": 1},
)


def test_a_table_a_plot_and_every_run_are_written_when_a_workload_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(WORKLOADS, "tiny", TINY)
    words = ["tiny", "--repetitions", "1", "--retries", "0", "--out", str(tmp_path)]
    status = main(words)
    shown = capsys.readouterr().out
    assert status == 0, shown
    assert "tiny  rllib is left out" in shown
    assert "| job | steps/s | speed / plain | CPU / plain |" in shown
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [(row["job"], row["error"]) for row in rows] == [("metta", None), ("plain", None)]
    assert all(row["steps_per_second"] > 0 for row in rows)
    assert (tmp_path / "tiny.md").read_text().startswith("# tiny: a few steps\n\n| job |")
    assert (tmp_path / "tiny.png").read_bytes().startswith(b"\x89PNG")


def test_the_status_is_1_when_a_job_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Workload("broken", None, (Entry("metta", 1, program="telling"),))
    monkeypatch.setitem(WORKLOADS, "tiny", broken)
    words = ["tiny", "--repetitions", "2", "--out", str(tmp_path)]
    assert main(words) == 1
    assert "reported 0 points of progress" in capsys.readouterr().out


def test_workloads_and_rows_are_listed_when_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--list"]) == 0
    shown = capsys.readouterr().out
    for name, workload in WORKLOADS.items():
        assert name in shown
        assert all(entry.name in shown for entry in workload.entries)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["w9"], "there is no workload 'w9'"),
        (["growht"], "did you mean 'growth'?"),
        (["w1", "--peers", "sbb3"], "did you mean 'sb3'?"),
        (["w1", "--only", "metta-eagr"], "did you mean 'metta-eager'?"),
        (["w1", "--python", "sb3"], "--python PEER=PATH"),
        (["w1", "--python", "skrll=python"], "did you mean 'skrl'?"),
        (["w1", "--row", "metta-x"], "--row NAME:SETTING=VALUE"),
        (["w1", "--repetitions", "0"], "at least --repetitions 1"),
        (["w1", "--steps", "0"], "measures nothing"),
    ],
)
def test_a_wrong_word_is_refused_when_it_is_given(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words]) == 2
    assert message in capsys.readouterr().err
