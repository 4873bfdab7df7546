"""Breaks the code in sampled places and reports which breaks the tests catch.

    python -m tools.mutants --count 60 --out before.jsonl               # in one checkout
    python -m tools.mutants --root ../other --replay before.jsonl --out after.jsonl
    python -m tools.mutants --only metta/ops --select tests/ops --count 20

The tests run once with coverage, which says for every line which tests execute it; `--data` keeps that
for the next time. Each break then meets only these tests, the fastest first, until one fails.
Nothing in the checkout changes: tests run in a copy of it. Lines that only other processes execute
(workers, commands) are not sampled, because coverage cannot say which test started them.
"""

import argparse
import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Queue
from typing import Any

from coverage import CoverageData

from tools.mutations import Mutation, apply_mutation, find_mutations

IGNORED = shutil.ignore_patterns(".git", "__pycache__", ".*_cache", ".venv", "build", "*.egg-info")
PATIENCE = 60.0
"""Seconds beyond five times what the tests take without a break."""
SETTINGS = (
    "[run]\nsource = {package}\nrelative_files = true\nconcurrency = thread,multiprocessing\n"
)
PLUGIN = """
import json, os
FILE, write = os.open({path!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND), os.write
def pytest_runtest_logreport(report):
    line = json.dumps([report.nodeid, report.when, report.outcome, report.duration])
    write(FILE, (line + chr(10)).encode())
"""
"""Written into the copy: the checkout under test need not know this tool.

The file is open from the start, because tests may break `open` for a while."""


@dataclass(frozen=True)
class Plan:
    """One break, and the tests that execute its line, the fastest first."""

    file: str
    mutation: Mutation
    tests: tuple[str, ...] = ()
    seconds: float = 0.0
    """What these tests took without the break."""


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    root: Path
    package: str
    select: tuple[str, ...]
    only: tuple[str, ...]
    data: Path
    count: int
    seed: int
    budget: float
    jobs: int


# --- which tests execute a line ---------------------------------------------------------------------------


class Coverage:
    """What one run of the tests executed: tests of a line, and seconds of a test."""

    def __init__(self, folder: Path) -> None:
        self._data = CoverageData(str(folder / "coverage"))
        self._data.read()
        self.seconds: dict[str, float] = defaultdict(float)
        failed = set()
        for line in (folder / "tests.jsonl").read_text().splitlines():
            test, _, outcome, seconds = json.loads(line)
            self.seconds[test] += seconds
            if outcome != "passed":
                failed.add(test)
        self.passed = self.seconds.keys() - failed

    def tests_of(self, file: str) -> dict[int, list[str]]:
        """Lines of a file with the tests that passed and executed them."""
        found = {}
        for line, contexts in self._data.contexts_by_lineno(file).items():
            tests = {context.rpartition("|")[0] for context in contexts} & self.passed
            if tests:
                found[line] = sorted(tests, key=lambda test: (self.seconds[test], test))
        return found


def measure(options: Options) -> Coverage:
    """Runs the tests with coverage, unless that has been done."""
    if not (options.data / "coverage").exists():
        options.data.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            copy = Copy(options, Path(folder) / "copy")
            settings = Path(folder) / "settings"
            settings.write_text(SETTINGS.format(package=options.package))
            more = ["-n", str(options.jobs), "--dist", "loadfile"] if options.jobs > 1 else []
            more += [f"--cov={options.package}", "--cov-context=test", "--cov-report="]
            copy.run([*options.select, *more, f"--cov-config={settings}"], None)
            if not (copy.path / ".coverage").exists():
                raise SystemExit(f"the tests did not run:\n{copy.output.read_text()[-3000:]}")
            shutil.copy(copy.reports, options.data / "tests.jsonl")
            shutil.copy(copy.path / ".coverage", options.data / "coverage")
    return Coverage(options.data)


# --- which breaks are tried -------------------------------------------------------------------------------


def all_plans(options: Options, coverage: Coverage) -> Iterator[Plan]:
    """Every break, with all tests that execute its line."""
    for path in sorted((options.root / options.package).rglob("*.py")):
        file = path.relative_to(options.root).as_posix()
        if not file.startswith(options.only or ("",)):
            continue
        lines = coverage.tests_of(file)
        for mutation in find_mutations(path.read_text()):
            tests = lines.get(mutation.line) or lines.get(mutation.statement_line) or ()
            yield Plan(file, mutation, tuple(tests))


def sample(plans: Iterable[Plan], count: int, seed: int) -> list[Plan]:
    """Equally many of every package as long as it has some; never two of one statement."""
    source = random.Random(seed)
    groups: dict[str, list[Plan]] = defaultdict(list)
    for plan in plans:
        if plan.tests:
            groups["/".join(plan.file.split("/")[:2])].append(plan)
    for group in groups.values():
        source.shuffle(group)
    chosen: dict[tuple[str, int], Plan] = {}
    while len(chosen) < count and any(groups.values()):
        for group in groups.values():
            if group and len(chosen) < count:
                plan = group.pop()
                chosen.setdefault((plan.file, plan.mutation.statement_line), plan)
    return list(chosen.values())


def replayed(record: dict[str, Any], plans: list[Plan]) -> Plan | None:
    """The same break in this checkout, also in another file or, if only one fits, another function."""
    same = [
        plan
        for plan in plans
        if (plan.mutation.statement, plan.mutation.change)
        == (record["statement"], record["change"])
        and plan.mutation.place == record["place"]
    ]
    names = (record["function"], record["occurrence"])
    exact = [p for p in same if (p.mutation.function, p.mutation.occurrence) == names]
    stem = Path(record["file"]).stem
    for fitting in ([p for p in exact if Path(p.file).stem == stem], exact, same):
        if len(fitting) == 1:
            return fitting[0]
    return None


def within_budget(plan: Plan, coverage: Coverage, budget: float) -> Plan:
    """The fastest case of each test function, then the other cases, as long as the budget lasts."""
    first: dict[str, str] = {}
    for test in plan.tests:
        first.setdefault(test.partition("[")[0], test)
    chosen: list[str] = []
    seconds = 0.0
    for test in dict.fromkeys([*first.values(), *plan.tests]):
        if chosen and seconds + coverage.seconds[test] > budget:
            break
        chosen.append(test)
        seconds += coverage.seconds[test]
    return replace(plan, tests=tuple(chosen), seconds=seconds)


# --- running tests on a broken copy -----------------------------------------------------------------------


class Copy:
    """A copy of the checkout, in which one file at a time is broken."""

    def __init__(self, options: Options, path: Path) -> None:
        self.path = path
        self.reports, self.output = path / "mutants_reports.jsonl", path / "mutants_output.txt"
        shutil.copytree(options.root, path, ignore=IGNORED, symlinks=True)
        (path / "mutants_plugin.py").write_text(PLUGIN.format(path=str(self.reports)))
        self._newest = int(time.time())
        self._check_import(options.package)

    def _check_import(self, package: str) -> None:
        code = f"import {package}; print({package}.__file__)"
        found = subprocess.run(
            [sys.executable, "-c", code], cwd=self.path, env=self._environment(),
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        if not Path(found.strip()).is_relative_to(self.path.resolve()):
            raise SystemExit(f"tests would import {package} from {found}, not from the copy")

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.path), "PYTHONHASHSEED": "0"}

    def run(self, arguments: list[str], timeout: float | None) -> int | None:
        """The exit code of pytest; nothing if time ran out."""
        self.reports.write_text("")
        given = self.path / "mutants_arguments.txt"
        given.write_text("\n".join(arguments))
        words = ["-m", "pytest", "-q", "-p", "mutants_plugin", "-p", "no:cacheprovider"]
        with self.output.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, *words, f"@{given}"], cwd=self.path, env=self._environment(),
                stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(process)

    def try_plan(self, plan: Plan) -> dict[str, Any]:
        """Breaks the file, runs the tests, and mends the file."""
        record = {"file": plan.file, **plan.mutation.to_dict()}
        if not plan.tests:
            return record | {"outcome": "unexecuted"}
        path, started = self.path / plan.file, time.monotonic()
        source = path.read_text()
        try:
            self._write(path, apply_mutation(source, plan.mutation))
            code = self.run(["-x", *plan.tests], PATIENCE + 5 * plan.seconds)
        finally:
            self._write(path, source)
        outcome = {None: "timeout", 0: "survived"}.get(code, "caught")
        by = self._first_failure() if outcome == "caught" else None
        seconds = round(time.monotonic() - started, 2)
        return record | {
            "outcome": outcome,
            "by": by,
            "num_tests": len(plan.tests),
            "seconds": seconds,
        }

    def _write(self, path: Path, source: str) -> None:
        """With a new time each, by which Python knows that its compiled file is old."""
        path.write_text(source)
        self._newest += 2
        os.utime(path, (self._newest, self._newest))

    def _first_failure(self) -> str:
        for line in self.reports.read_text().splitlines():
            test, _, outcome, _ = json.loads(line)
            if outcome == "failed":
                return str(test)
        return "collection"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends pytest and the processes that it started and left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def try_all(options: Options, plans: list[Plan]) -> Iterator[dict[str, Any]]:
    """Results in the order of the plans, from as many copies as there are jobs."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies: Queue[Copy] = Queue()
        for number in range(options.jobs):
            copies.put(Copy(options, Path(folder) / str(number)))

        def try_one(plan: Plan) -> dict[str, Any]:
            copy = copies.get()
            try:
                return copy.try_plan(plan)
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(options.jobs) as pool:
            yield from pool.map(try_one, plans)


# --- the command ------------------------------------------------------------------------------------------


def summary(records: list[dict[str, Any]]) -> str:
    """Counts of outcomes, and every break that was not caught."""
    counts = Counter(record["outcome"] for record in records)
    lines = [f"{len(records)} breaks: " + ", ".join(f"{n} {name}" for name, n in counts.items())]
    for record in records:
        if record["outcome"] != "caught":
            place = f"{record['file']}:{record['line']} {record['function']}"
            lines.append(f"{record['outcome']}: {place}: {record['change']}")
    return "\n".join(lines)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", type=Path, default=Path(), help="the checkout to break")
    parser.add_argument("--package", default="metta", help="the package whose code is broken")
    parser.add_argument("--select", nargs="+", default=["tests"], help="tests that may run")
    parser.add_argument("--only", nargs="+", default=[], help="beginnings of paths that may break")
    parser.add_argument("--data", type=Path, help="keeps the run with coverage for the next time")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=120, help="seconds of tests per break")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--replay", type=Path, help="a file of results, whose breaks are repeated")
    parser.add_argument("--out", type=Path, default=Path("mutants.jsonl"))
    return parser.parse_args(arguments)


def choose(
    options: Options, plans: list[Plan], replay: Path | None
) -> tuple[list[Plan], list[dict[str, Any]]]:
    """The breaks to try, and the records of those that this checkout no longer has."""
    if replay is None:
        return sample(plans, options.count, options.seed), []
    old = [json.loads(line) for line in replay.read_text().splitlines()]
    pairs = [(record, replayed(record, plans)) for record in old]
    missing = [record | {"outcome": "missing"} for record, plan in pairs if plan is None]
    return [plan for _, plan in pairs if plan is not None], missing


def main(arguments: list[str] | None = None) -> None:
    """Samples or replays breaks; writes one line of JSON for each, and prints a summary."""
    given = parse(arguments)
    with tempfile.TemporaryDirectory(prefix="mutants-") as unkept:
        options = Options(
            root=given.root.resolve(), package=given.package, select=tuple(given.select),
            only=tuple(given.only), data=(given.data or Path(unkept)).resolve(),
            count=given.count, seed=given.seed, budget=given.budget, jobs=given.jobs,
        )  # fmt: skip
        coverage = measure(options)
        plans, missing = choose(options, list(all_plans(options, coverage)), given.replay)
        plans = [within_budget(plan, coverage, options.budget) for plan in plans]
        records = []
        with given.out.open("w") as out:
            for record in itertools.chain(missing, try_all(options, plans)):
                records.append(record)
                print(json.dumps(record), file=out, flush=True)
    print(summary(records))


if __name__ == "__main__":
    main()
