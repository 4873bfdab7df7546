"""The tables of sweeps, beside those of jobs: what each is, and everything that happened in it."""

from sqlalchemy import BigInteger, Column, Double, ForeignKey, Integer, MetaData, Table, Text

from metta.database.creation import TableSet

__all__ = ["SWEEPS", "sweep_events", "sweeps"]

_METADATA = MetaData()

_version = Table(
    "sweeps_version", _METADATA, Column("version", Integer, primary_key=True, autoincrement=False)
)

sweeps = Table(
    "sweeps",
    _METADATA,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("definition", Text, nullable=False),
    Column("created", Double, nullable=False),
)
"""`definition` is JSON: see `SweepDefinition`."""

sweep_events = Table(
    "sweep_events",
    _METADATA,
    Column("sweep", Integer, ForeignKey("sweeps.id"), primary_key=True, autoincrement=False),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),
    Column("trial", Integer, nullable=False),
    Column("payload", Text, nullable=False),
    Column("time", Double, nullable=False),
)
"""The log of each sweep, in order; `payload` is JSON: see `metta.sweeps.trials.Event`."""

SWEEPS = TableSet(
    name="sweeps",
    metadata=_METADATA,
    version_table=_version,
    version=1,
    if_missing="begin a sweep with it first",
    if_other="use another database for sweeps: --database sweeps.db",
)
