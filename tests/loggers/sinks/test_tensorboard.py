import math
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from metta.errors import MissingExtraError
from metta.loggers import MetricRow, TensorboardSink


def read(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return accumulator


def test_scalars_come_back_when_tensorboard_reads_the_folder(tmp_path: Path) -> None:
    sink = TensorboardSink(tmp_path / "tb")
    sink.write(MetricRow(100, 1, {"losses/a": 0.5, "ünï": math.nan}))
    sink.write(MetricRow(200, 2, {"losses/a": 0.25}))
    sink.close()
    found = read(tmp_path / "tb")
    assert [(e.step, e.value) for e in found.Scalars("losses/a")] == [(100, 0.5), (200, 0.25)]
    assert math.isnan(found.Scalars("ünï")[0].value)


def test_a_folder_goes_on_as_one_run_when_it_is_opened_again(tmp_path: Path) -> None:
    for step in (1, 2):
        sink = TensorboardSink(tmp_path)
        sink.write(MetricRow(step, step, {"a": float(step)}))
        sink.close()
    # files of one second are read in the order of their names
    assert sorted(e.step for e in read(tmp_path).Scalars("a")) == [1, 2]


def test_rows_are_readable_when_a_sink_is_flushed(tmp_path: Path) -> None:
    sink = TensorboardSink(tmp_path)
    sink.write(MetricRow(1, 1, {"a": 1.0}))
    sink.flush()
    assert read(tmp_path).Scalars("a")[0].value == 1.0
    sink.close()


def test_the_extra_is_named_when_tensorboard_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    with pytest.raises(MissingExtraError, match=r"metta-rl\[tensorboard\]"):
        TensorboardSink(tmp_path)
