"""Small logs in place of large ones; ``python -m faults.run --only large_logs`` makes one of 1 GB."""

from pathlib import Path

from faults.large_logs import MB, make_run, measure


def test_a_list_of_runs_reads_no_more_than_the_end_of_a_log(tmp_path: Path) -> None:
    make_run(tmp_path / "run", 40 * MB)
    found = measure(["runs", "--output", str(tmp_path)])
    assert found.code == 0, found.text
    assert found.read_mb < 30
    assert found.peak_mb < 150
