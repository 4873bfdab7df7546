"""The table of jobs, in the statistics database or in one of its own."""

from sqlalchemy import BigInteger, Column, Double, Index, Integer, MetaData, Table, Text

from metta.database.creation import TableSet

__all__ = ["JOBS", "jobs"]

_METADATA = MetaData()

_version = Table(
    "jobs_version", _METADATA, Column("version", Integer, primary_key=True, autoincrement=False)
)

jobs = Table(
    "jobs",
    _METADATA,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("key", Text, nullable=False, unique=True),
    Column("kind", Text, nullable=False),
    Column("job_group", Text, nullable=False),
    Column("payload", Text, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("worker", Text),
    Column("lease_ends", Double),
    Column("result", Text),
    Column("error", Text),
    Column("posted", Double, nullable=False),
    Column("started", Double),
    Column("ended", Double),
)
"""`payload` and `result` are JSON, with NaN and infinity where numbers are so."""

Index("jobs_to_take", jobs.c.state, jobs.c.priority.desc(), jobs.c.id)
Index("jobs_of_groups", jobs.c.job_group)

JOBS = TableSet(
    name="jobs",
    metadata=_METADATA,
    version_table=_version,
    version=1,
    if_missing="post a job to it first",
    if_other="use another database for jobs: --database jobs.db",
)
