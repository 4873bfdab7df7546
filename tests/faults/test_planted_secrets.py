"""A few of the planted secrets; ``python -m faults.run --only planted_secrets`` plants all of them."""

from pathlib import Path

import pytest

from faults.planted_runs import RUNS
from faults.planted_secrets import SHAPES, play_all, search, trials, verdict
from faults.secretive import digest
from faults.trial import OK

PLANS = [
    ("reference_with_every_sink", "quotes"),
    ("failure_in_a_worker", "lines"),
    ("setting_on_the_command_line", "plain"),
]
CORE = "0123456789abcdef01234567"


def test_nothing_leaks_when_secrets_are_planted(tmp_path: Path) -> None:
    found = list(play_all(PLANS, 1, tmp_path))
    assert [(trial.point, trial.outcome) for trial in found] == [
        (f"{name}, {shape}", OK) for name, shape in PLANS
    ]
    assert all(trial.detail["bytes"] > 100 for trial in found)


def test_every_way_and_shape_is_planned_when_the_whole_campaign_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[tuple[str, str]] = []
    monkeypatch.setattr(
        "faults.planted_secrets.play_all", lambda plans, *_: planned.extend(plans) or iter(())
    )
    assert list(trials(2 * len(RUNS), 1, tmp_path)) == []
    assert len(RUNS) >= 30
    assert {name for name, _ in planned} == set(RUNS)
    assert {shape for _, shape in planned} == set(SHAPES)
    assert len(set(planned)) == len(planned)


@pytest.mark.parametrize("content", [CORE, f"x{CORE}y", CORE[6:18]])
def test_a_leak_is_found_when_a_part_is_in_a_file_or_a_name(tmp_path: Path, content: str) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "file.bin").write_bytes(b"\0" + content.encode())
    (tmp_path / f"a-{content}").touch()
    (tmp_path / "clean").write_text(CORE[:11])
    found, num_bytes = search(tmp_path, CORE)
    assert found == [f"a-{content}", "deep/file.bin"]
    assert num_bytes == len(content) + 1 + 11


def test_a_trial_is_wrong_when_it_proves_nothing(tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    assert verdict(1, proof, CORE, [], 9) == "the run ended with 1"
    assert verdict(0, proof, CORE, [], 9) == "the secret was not in play"
    proof.write_text(digest("another"))
    assert verdict(0, proof, CORE, [], 9) == "the secret was not in play"
    proof.write_text(digest(CORE))
    assert verdict(0, proof, CORE, [], 0) == "nothing was written that could be searched"
    assert verdict(0, proof, CORE, ["a", "b"], 9) == "leaked to a, b"
    assert verdict(0, proof, CORE, [], 9) == OK
