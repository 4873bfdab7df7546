"""A few random kills; ``python -m faults.run --only kills`` makes a thousand."""

from pathlib import Path

from faults import kills
from faults.trial import OK


def test_nothing_is_lost_when_runs_are_killed_at_random(tmp_path: Path) -> None:
    trials = list(kills.trials(3, 3, tmp_path))
    assert [(trial.point, trial.outcome) for trial in trials if trial.outcome != OK] == []
    assert len(trials) >= 3
    assert sum("+saving" in trial.point for trial in trials) >= 1


def test_a_loss_is_seen_when_a_checkpoint_is_gone_or_damaged(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints" / "epoch_000003"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    assert kills.look_at(tmp_path, 3)[0].startswith("unreadable")
    (folder / "manifest.json").unlink()
    folder.rmdir()
    assert kills.look_at(tmp_path, 3) == ("lost: 3 -> 0", 0)
    assert kills.look_at(tmp_path, 0) == (OK, 0)
