"""Records as TensorBoard files."""

import importlib
import os
import time
from pathlib import Path
from typing import Any

from metta.errors import MissingExtraError
from metta.loggers.events.history import Continuation
from metta.loggers.sink import MetricRow

__all__ = ["TensorboardSink"]


class TensorboardSink:
    """Scalars over `agent_step` in a folder that ``tensorboard --logdir`` reads; extra `tensorboard`.

    Opening a folder again adds a file to it, which TensorBoard shows as one run.
    """

    name = "tensorboard"
    takes_constants = True

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        try:
            protos = importlib.import_module("tensorboard.compat.proto.event_pb2")
            summaries = importlib.import_module("tensorboard.compat.proto.summary_pb2")
            writers = importlib.import_module("tensorboard.summary.writer.event_file_writer")
        except ImportError:
            raise MissingExtraError(
                "tensorboard", "tensorboard", "writing TensorBoard files"
            ) from None
        self._event, self._summary = protos.Event, summaries.Summary
        self._begin_again = protos.SessionLog(status=protos.SessionLog.START)
        self._open_writer = writers.EventFileWriter
        self._writer: Any = None
        self._resume_step: int | None = None

    def write(self, row: MetricRow) -> None:
        """Add one event with all scalars."""
        if self._writer is None:
            self._writer = self._open_writer(str(self.folder))
            self._note_resume()
        value = self._summary.Value
        scalars = [value(tag=name, simple_value=number) for name, number in row.metrics.items()]
        summary = self._summary(value=scalars)
        self._writer.add_event(
            self._event(wall_time=time.time(), step=row.agent_step, summary=summary)
        )

    def rewrite(self, continuation: Continuation) -> None:
        """Make TensorBoard drop what was written for later steps."""
        if self.folder.exists():
            self._resume_step = continuation.agent_step + 1

    def _note_resume(self) -> None:
        if self._resume_step is not None:
            event = self._event(step=self._resume_step, session_log=self._begin_again)
            self._writer.add_event(event)
            self._resume_step = None

    def flush(self) -> None:
        """Bring the events to the file."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
