import csv
import errno
import math
from pathlib import Path

import pytest

from metta.loggers import CsvSink, MetricRow
from metta.loggers.events.append_file import AppendFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "metrics.csv"


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def test_numbers_come_back_exactly_when_a_file_is_read(path: Path) -> None:
    sink = CsvSink(path)
    sink.write(MetricRow(1024, 1, {"losses/a": 0.1 + 0.2, "nan": math.nan, "ünï, code": 1e-300}))
    sink.close()
    (row,) = rows_of(path)
    assert (row["agent_step"], row["epoch"]) == ("1024", "1")
    assert float(row["losses/a"]) == 0.1 + 0.2
    assert math.isnan(float(row["nan"]))
    assert float(row["ünï, code"]) == 1e-300


def test_columns_grow_when_a_new_metric_appears(path: Path) -> None:
    sink = CsvSink(path)
    sink.write(MetricRow(1, 1, {"a": 1.0}))
    sink.write(MetricRow(2, 2, {"b": 2.0}))
    sink.write(MetricRow(3, 3, {"a": 3.0, "b": 4.0}))
    sink.close()
    assert [(row["a"], row["b"]) for row in rows_of(path)] == [
        ("1.0", ""),
        ("", "2.0"),
        ("3.0", "4.0"),
    ]
    assert [file.name for file in path.parent.iterdir()] == ["metrics.csv"]


def test_a_file_is_continued_when_it_exists(path: Path) -> None:
    for step in (1, 2):
        sink = CsvSink(path)
        sink.write(MetricRow(step, step, {"a": float(step), f"new {step}": 0.5}))
        sink.close()
    assert [row["a"] for row in rows_of(path)] == ["1.0", "2.0"]
    assert [row["new 2"] for row in rows_of(path)] == ["", "0.5"]


def test_a_torn_line_is_cut_off_when_a_crash_left_it(path: Path) -> None:
    sink = CsvSink(path)
    sink.write(MetricRow(1, 1, {"a": 1.0}))
    sink.close()
    path.write_bytes(path.read_bytes() + b"2,2,0.12")
    sink.write(MetricRow(3, 3, {"a": 3.0}))
    sink.close()
    assert [row["agent_step"] for row in rows_of(path)] == ["1", "3"]


def test_a_row_stands_once_when_its_first_writing_failed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    sink = CsvSink(path)
    sink.write(MetricRow(1, 1, {"a": 1.0}))
    for metrics in ({"a": 2.0}, {"a": 2.0, "b": 2.0}):
        with monkeypatch.context() as patch:
            patch.setattr(AppendFile, "append", full)
            with pytest.raises(OSError, match="No space left"):
                sink.write(MetricRow(2, 2, metrics))
    sink.write(MetricRow(2, 2, {"a": 2.0, "b": 2.0}))
    sink.close()
    assert [(row["a"], row["b"]) for row in rows_of(path)] == [("1.0", ""), ("2.0", "2.0")]
