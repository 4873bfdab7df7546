"""Every sink in one list, sinks that misbehave, and a reader of W&B's files."""

import io
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from metta.loggers import ConsoleSink, CsvSink, MetricRow, Sink, TensorboardSink, WandbSink

ODD_VALUES = {"losses/ünïcode 损失": 0.25, "nan": float("nan"), "inf": float("inf"), "tiny": 5e-324}


class FakeRun:
    """A run of W&B that keeps what it is told."""

    id, name, project, entity = "abc", "fake", "metta", "nobody"

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.axes: dict[str, str | None] = {}
        self.summary: dict[str, float] = {}

    def define_metric(self, name: str, *, step_metric: str | None = None) -> None:
        self.axes[name] = step_metric

    def log(self, data: dict[str, float]) -> None:
        self.rows.append(data)

    def log_artifact(self, artifact_or_path: object, *, aliases: list[str] | None = None) -> None:
        raise NotImplementedError

    def finish(self, exit_code: int | None = None) -> None:
        raise NotImplementedError


def make_sink(kind: str, folder: Path) -> Sink:
    if kind == "csv":
        return CsvSink(folder / "metrics.csv")
    if kind == "tensorboard":
        return TensorboardSink(folder / "tensorboard")
    if kind == "wandb":
        return WandbSink(FakeRun())
    console = Console(file=io.StringIO(), force_terminal=kind == "terminal", width=120)
    return ConsoleSink(1000, console=console)


KINDS = ["csv", "tensorboard", "wandb", "terminal", "plain"]


class MemorySink:
    """Keeps rows; fails as long as `problem` is set."""

    name = "memory"

    def __init__(self) -> None:
        self.rows: list[MetricRow] = []
        self.problem: Exception | None = None
        self.num_attempts = self.num_closed = self.num_flushed = 0
        self.attempted = threading.Event()

    def write(self, row: MetricRow) -> None:
        self.num_attempts += 1
        self.attempted.set()
        if self.problem is not None:
            raise self.problem
        self.rows.append(row)

    def flush(self) -> None:
        self.num_flushed += 1

    def close(self) -> None:
        self.num_closed += 1


class BlockedSink(MemorySink):
    """Hangs in `write` until it is released."""

    name = "blocked"

    def __init__(self) -> None:
        super().__init__()
        self.release = threading.Event()
        self.entered = threading.Event()

    def write(self, row: MetricRow) -> None:
        self.entered.set()
        self.release.wait()
        super().write(row)


def wandb_records(path: Path) -> Iterator[object]:
    """Records of a ``.wandb`` file: blocks of 32 KiB with (crc, length, kind) before each piece."""
    from wandb.proto import wandb_internal_pb2

    data, block = path.read_bytes(), 32768
    position, parts = 7, b""
    while position + 7 <= len(data):
        if block - position % block < 7:
            position += block - position % block
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + 7])
        parts += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a whole record, or the last piece of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            parts = b""
            yield record
