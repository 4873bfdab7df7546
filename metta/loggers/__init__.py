"""Numbers out: rows of metrics to the console and to files, and the log of what happened in a run."""

from metta.loggers.console import ConsoleSink
from metta.loggers.csv_file import CsvSink
from metta.loggers.event_log import Event, EventLog, read_events
from metta.loggers.monitor import SystemMonitor
from metta.loggers.sink import MetricRow, Sink
from metta.loggers.stats_client import StatsClient
from metta.loggers.stats_logger import StatsLogger
from metta.loggers.tensorboard import TensorboardSink
from metta.loggers.wandb_run import WandbRun, WandbSink, close_wandb_run, open_wandb_run

__all__ = [
    "ConsoleSink",
    "CsvSink",
    "Event",
    "EventLog",
    "MetricRow",
    "Sink",
    "StatsClient",
    "StatsLogger",
    "SystemMonitor",
    "TensorboardSink",
    "WandbRun",
    "WandbSink",
    "close_wandb_run",
    "open_wandb_run",
    "read_events",
]
