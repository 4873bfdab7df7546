from benchmarks.speed.job_run import Run
from benchmarks.speed.report import markdown_table
from benchmarks.speed.session import Results


def run_of(speed: float, cpu: float = 100.0, foreign: float = 0.0, **more: float) -> Run:
    numbers = {"steps_per_second": speed, "cpu_seconds_per_million": cpu, "peak_mib": 300.0}
    return Run("x", {**numbers, **more}, foreign)


def disturbed(run: Run) -> bool:
    return run.disturbance > 0.2


RESULTS: Results = {
    "metta": [run_of(12_000.0, 50.0), run_of(9_000.0, 50.0), run_of(6_000.0, 50.0, 0.5)],
    "sb3": [run_of(6_000.0), run_of(4_500.0), run_of(3_000.0)],
}


def test_medians_and_ratios_are_shown_when_there_is_a_baseline() -> None:
    assert markdown_table(RESULTS, "sb3", disturbed).splitlines() == [
        "| job | steps/s | speed / sb3 | CPU / sb3 | CPU s per million steps | peak MiB "
        "| disturbed runs |",
        "|---|---|---|---|---|---|---|",
        "| metta | 9,000 | 2.00 (2.00 to 2.00) | 0.50 (0.50 to 0.50) | 50 | 300 | 1 |",
        "| sb3 | 4,500 | 1.00 (1.00 to 1.00) | 1.00 (1.00 to 1.00) | 100 | 300 |  |",
    ]


def test_ratios_are_to_the_faster_twin_when_the_baseline_has_one() -> None:
    faster: Results = {**RESULTS, "sb3-1thread": [run_of(9_000.0, 50.0)] * 3}
    lines = markdown_table(faster, "sb3", disturbed).splitlines()
    assert "| speed / sb3-1thread | CPU / sb3-1thread |" in lines[0]
    assert "| 1.00 (0.67 to 1.33) | 1.00 (1.00 to 1.00) |" in lines[2]
    slower: Results = {**RESULTS, "sb3-1thread": [run_of(4_000.0)] * 3}
    assert "| speed / sb3 | CPU / sb3 |" in markdown_table(slower, "sb3", disturbed)
    failed: Results = {**slower, "sb3": [None] * 3}
    assert "| speed / sb3-1thread |" in markdown_table(failed, "sb3", disturbed)


def test_there_are_no_ratios_when_the_baseline_did_not_run() -> None:
    table = markdown_table({"metta": RESULTS["metta"]}, "sb3", disturbed)
    assert table.splitlines()[0] == (
        "| job | steps/s | CPU s per million steps | peak MiB | disturbed runs |"
    )


def test_a_job_has_a_row_of_its_own_when_it_failed() -> None:
    table = markdown_table({**RESULTS, "skrl": [None, None, None]}, "sb3", disturbed)
    assert table.splitlines()[-1] == "| skrl | failed |  |  |  |  |  |"


def test_numbers_of_a_job_get_columns_when_it_reported_some() -> None:
    results: Results = {
        "mlp": [run_of(10.0, share=0.8725), run_of(10.0, share=0.8725)],
        "lstm": [run_of(5.0, environment=1_234_567.8)],
    }
    lines = markdown_table(results, None, disturbed).splitlines()
    assert "| share | environment |" in lines[0]
    assert "| 0.873 |  |" in lines[2]
    assert "|  | 1,234,568 |" in lines[3]
