"""A few hostile folders; ``python -m faults.run --only hostile_folders`` plants all of them."""

from pathlib import Path

from faults.commands import HUNG, MAX_GROWN_BYTES, Ended
from faults.hostile_folders import plant_all
from faults.planted_folders import FILES, plants
from faults.trial import OK

CHOSEN = [
    "config.yaml: a pipe",
    "run.json: checkpoint_dir of the victim, absolute",
]


def test_no_command_breaks_or_reaches_out_when_a_folder_is_hostile(tmp_path: Path) -> None:
    by_name = {plant.name: plant for plant in plants()}
    found = list(plant_all([by_name[name] for name in CHOSEN], 1, tmp_path))
    assert [(trial.point, trial.outcome) for trial in found] == [(name, OK) for name in CHOSEN]
    assert all(trial.detail["commands"] >= 6 for trial in found)


def test_every_file_of_a_run_is_planted_in_when_the_whole_campaign_runs() -> None:
    names = [plant.name for plant in plants()]
    assert len(set(names)) == len(names) >= 200
    for file in FILES:
        assert sum(name.startswith(f"{file}: ") for name in names) >= 10


def test_a_trial_is_wrong_when_a_command_misbehaves() -> None:
    assert Ended(0, "fine\nand well\n").problem() is None
    assert Ended(HUNG, "").problem() == "hung"
    assert "traceback" in (Ended(1, "Traceback (most recent call last):\n").problem() or "")
    assert "MB" in (Ended(0, "", MAX_GROWN_BYTES + 1).problem() or "")
    assert Ended(1, "env \x1b[2J").problem() == "printed ['\\x1b']"
