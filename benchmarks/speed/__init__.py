"""Measures steps per second, processor time and memory of whole training loops, side by side.

``python -m benchmarks.speed`` is its command. Nothing here loads torch: each job is a process of its own.
"""

from benchmarks.speed.comparison import Comparison, compare_runs
from benchmarks.speed.job_run import Job, Run, run_job
from benchmarks.speed.session import BenchSession
from benchmarks.speed.workloads import WORKLOADS, Workload

__all__ = [
    "BenchSession",
    "Comparison",
    "Job",
    "Run",
    "WORKLOADS",
    "Workload",
    "compare_runs",
    "run_job",
]
