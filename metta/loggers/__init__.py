"""Records of metrics, written to the console and to files, and the event log of a run."""

from metta.loggers.events.log import Event, EventLog, read_events
from metta.loggers.events.stats_client import StatsClient
from metta.loggers.monitor import SystemMonitor
from metta.loggers.sink import MetricRow, Sink
from metta.loggers.sinks.console import ConsoleSink
from metta.loggers.sinks.csv_file import CsvSink
from metta.loggers.sinks.tensorboard import TensorboardSink
from metta.loggers.sinks.wandb_run import WandbRun, WandbSink, close_wandb_run, open_wandb_run
from metta.loggers.stats_logger import StatsLogger

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
