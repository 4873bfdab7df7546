"""`BenchSession`: jobs in turn, again and again, until each has run undisturbed or was tried enough."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.speed.job_run import Job, Run, run_job

__all__ = ["BenchSession", "Results"]

Results = dict[str, list[Run | None]]
"""Job -> its run of each repetition, None where it failed."""


@dataclass
class BenchSession:
    """Runs jobs interleaved: every repetition runs every job once, so that drift hits all alike.

        session = BenchSession(Path("results"), repetitions=5)
        results = session.run("w1", jobs)

    A run during which more than `quiet_cores` cores were used by others is repeated at most `retries`
    times; of several tries the least disturbed one counts. Every try is a line of ``results.jsonl``.
    """

    folder: Path
    repetitions: int
    quiet_cores: float = 0.15
    retries: int = 2
    timeout_seconds: float = 900.0
    say: Callable[[str], object] = str
    """Hears a line after every run; by default nobody does."""

    @property
    def results_file(self) -> Path:
        """Every run, a JSON object each."""
        return self.folder / "results.jsonl"

    def run(self, workload: str, jobs: Sequence[Job]) -> Results:
        """All repetitions of a workload; a job that fails is not tried again."""
        self.folder.mkdir(parents=True, exist_ok=True)
        results: Results = {job.name: [] for job in jobs}
        width = max(map(len, results), default=0)
        for repetition in range(self.repetitions):
            for job in jobs:
                runs = results[job.name]
                if None in runs:
                    runs.append(None)
                    continue
                label = f"{workload}  {repetition + 1}/{self.repetitions}  {job.name:<{width}}"
                runs.append(self._quiet_run(workload, repetition, job, label))
        return results

    def is_disturbed(self, run: Run) -> bool:
        """Whether others used so much of the machine that a run says little."""
        return run.disturbance > self.quiet_cores

    def _quiet_run(self, workload: str, repetition: int, job: Job, label: str) -> Run | None:
        tries: list[Run] = []
        for _ in range(1 + self.retries):
            run = run_job(job, self.timeout_seconds)
            self._write(workload, repetition, len(tries), run)
            if run.error is not None:
                self.say(f"{label}  FAILED: {run.error}")
                return None
            self.say(f"{label}  {self._shown(run)}")
            tries.append(run)
            if not self.is_disturbed(run):
                break
        return min(tries, key=lambda run: run.disturbance)

    def _shown(self, run: Run) -> str:
        numbers = run.numbers
        disturbed = ""
        if self.is_disturbed(run):
            disturbed = f"  (disturbed: {run.disturbance:.2f} cores used by others)"
        return (
            f"{numbers['steps_per_second']:>12,.0f} steps/s"
            f"{numbers['cpu_seconds_per_million']:>9.1f} CPU s/M"
            f"{numbers['peak_mib']:>7.0f} MiB{disturbed}"
        )

    def _write(self, workload: str, repetition: int, attempt: int, run: Run) -> None:
        row: Mapping[str, object] = {
            "workload": workload,
            "job": run.job,
            "repetition": repetition,
            "attempt": attempt,
            **run.numbers,
            "foreign_cores": run.foreign_cores,
            "stolen_cores": run.stolen_cores,
            "disturbed": self.is_disturbed(run),
            "error": run.error,
        }
        with self.results_file.open("a") as file:
            file.write(json.dumps(row) + "\n")
