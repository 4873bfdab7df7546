"""Measures steps per second, processor time and memory of whole training loops, side by side.

``metta bench`` is its command. Nothing here loads torch: each job is a process of its own.
"""

from metta.bench.comparison import Comparison, compare_runs
from metta.bench.job_run import Job, Run, run_job
from metta.bench.session import BenchSession
from metta.bench.workloads import WORKLOADS, Workload

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
