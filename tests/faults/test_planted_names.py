"""A few doors of the planted names; ``python -m faults.run --only planted_names`` opens all."""

from pathlib import Path

from faults.planted_names import ALL_NAMES, DOORS, TOKENS, play_all, search
from faults.trial import OK

CHOSEN = ["variables_in_exceptions", "connection_parameters"]
CORES = {"one": "abcdefghijklmnopqrstuvwx", "other": "zyxwvutsrqponmlkjihgfedc"}


def test_nothing_leaks_when_secrets_have_common_names(tmp_path: Path) -> None:
    found = list(play_all(CHOSEN, 1, tmp_path))
    assert [trial.point for trial in found if trial.outcome != OK] == []
    assert len(found) == sum(len(DOORS[door][1]) for door in CHOSEN)


def test_the_campaign_plants_every_name_and_shape() -> None:
    planted = {name for _, names in DOORS.values() for name in names}
    assert planted == ALL_NAMES | set(TOKENS)
    assert len(ALL_NAMES) >= 60


def test_a_leak_is_counted_for_the_name_that_leaked(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"\0" + CORES["one"][3:16].encode())
    found, num_bytes = search(tmp_path, CORES)
    assert found == {"one": ["log"], "other": []}
    assert num_bytes == 14
