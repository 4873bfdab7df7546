"""The statistics database under load, by the real path: hooks, event logs, ingesters, readers.

    python -m benchmarks.database_load [--rows 500000] [--seconds 60] [--databases sqlite postgresql]

Trainer processes write event logs by real `MetricsHook`s, around a step that only makes numbers up. Each is
cut off once and continues from an earlier epoch, so some rows are taken back. Two ingesters watch all logs
at once; four readers ask for runs, curves, newest values and scores. The PostgreSQL server is killed when
half of the lines have arrived, and started again. At the end every row of every log must be in the
database, once: counts are compared with the logs, and metrics number by number.
"""

import argparse
import json
import math
import multiprocessing
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

from benchmarks.postgres_server import PostgresServer, binaries
from metta.agent.policy import Policy  # noqa: F401  # reason: loads torch once, before processes fork
from metta.database import Ingester, StatsReader
from metta.database.queries import metric_rows_of
from metta.errors import DatabaseUnavailableError, MettaWarning
from metta.loggers import EventLog, StatsClient, StatsLogger, read_events
from metta.loggers.events.history import metric_rows
from metta.rl.hooks import MetricsHook
from metta.rl.training_state import TrainerState
from metta.sim.scores import EvalRewardSummary
from metta.train.run_config import LoggingConfig

ROWS_PER_EPOCH = 38
"""What an epoch brings at least; the exact number is counted in the logs."""
EPISODES = 3
LOSSES = 14
EVALUATE_INTERVAL = 25
OUTAGE_SECONDS = 3.0
CATCH_UP_SECONDS = 600.0
CONTEXT = multiprocessing.get_context("fork")


def train(path: Path, epochs: int, seconds: float, results) -> None:
    """A training of numbers that are made up; it is cut off once, and continues from before."""
    times: list[float] = []
    cut, back = 2 * epochs // 3, epochs // 2
    pause = seconds / (epochs + cut - back)
    train_part(path, 0, cut, pause, times, ends=False)
    train_part(path, back, epochs, pause, times, ends=True)
    results.put(times)


def train_part(
    path: Path, first: int, last: int, pause: float, times: list[float], *, ends: bool
) -> None:
    draw = random.Random(f"{path}{first}")
    settings = LoggingConfig(log_interval=1, heartbeat_seconds=1.0, monitor_seconds=0)
    with EventLog(path) as log:
        client = StatsClient(log)
        hook = MetricsHook(
            None, client, verbose=False, logger=StatsLogger(event_log=log), config=settings
        )
        state = TrainerState()
        state.epoch, state.agent_step = first, 1000 * first
        state.stats.stats_epoch_start = first
        state.shared["run_name"] = path.parent.name
        hook.on_training_start(state, None, None)
        for _ in range(first, last):
            due = time.perf_counter() + pause
            times.append(train_epoch(hook, client, state, draw))
            time.sleep(max(0.0, due - time.perf_counter()))
        if ends:
            hook.on_training_end(state, None, None, "all epochs are done")
            hook.close(state)


def train_epoch(hook: MetricsHook, client: StatsClient, state: TrainerState, draw) -> float:
    """One epoch as a loop fires it; returns the seconds that hook, client and log took."""
    returns = [draw.gauss(20.0, 5.0) for _ in range(EPISODES)]
    stats = {"episode_return": returns, "episode_length": [9.0] * EPISODES, "coins": returns[:1]}
    losses = {f"loss_{number}": draw.random() for number in range(LOSSES)}
    losses["never"] = math.nan
    began = time.perf_counter()
    hook.on_rollout_start(state, None, None)
    state.agent_step += 1000
    state.stats.add_returns(returns)
    hook.on_rollout_end(stats, state)
    hook.on_update_end(state)
    state.epoch += 1
    if state.epoch % EVALUATE_INTERVAL == 0:
        where = {"epoch": state.epoch, "agent_step": state.agent_step}
        scores = EvalRewardSummary({"maze/a": returns[0], "maze/b": returns[1], "race/c": 1.0})
        client.record_policy(**where, uri=f"file://policy-{state.epoch}")
        client.record_evaluation(**where, scores=scores.to_dict())
    hook.on_epoch_end(losses, None, None, None, state)
    return time.perf_counter() - began


def ingest(url: str, folder: Path, stop, results) -> None:
    outages = 0

    def count(message, category, *_, **__) -> None:
        nonlocal outages
        outages += issubclass(category, MettaWarning) and "tried again" in str(message)

    warnings.simplefilter("always")
    warnings.showwarning = count
    with Ingester(url) as ingester:
        total = ingester.watch(folder, 0.2, stop=stop)
    results.put((total.num_events, total.num_rows, outages, total.problems))


def read(url: str, seed: int, stop, results) -> None:
    """Ask again and again; notes how long answers took, and how many did not come."""
    draw, times, failures = random.Random(seed), [], 0
    while not stop.is_set():
        try:
            with StatsReader(url) as reader:
                while not stop.is_set():
                    began = time.perf_counter()
                    ask(reader, draw)
                    times.append(time.perf_counter() - began)
                    stop.wait(0.05)
        except DatabaseUnavailableError:
            failures += 1
            stop.wait(0.1)
    results.put((times, failures))


def ask(reader: StatsReader, draw: random.Random) -> None:
    runs = reader.runs()
    if not runs:
        return
    run = draw.choice(runs).run
    kind = draw.randrange(3)
    if kind == 0:
        curve = reader.metric_curve(run, "overview/reward")
        epochs = [point.epoch for point in curve]
        assert epochs == sorted(set(epochs)), "a reader saw an epoch twice"
    elif kind == 1:
        reader.latest_metrics(run)
    else:
        reader.suite_scores(run)


def lines_read(url: str) -> tuple[int, int]:
    """Lines and bytes of logs that have arrived; nothing while the database is away."""
    try:
        with StatsReader(url) as reader, reader.connect() as connection:
            query = "SELECT coalesce(sum(lines_read), 0), coalesce(sum(bytes_read), 0) FROM logs"
            lines, size = connection.exec_driver_sql(query).one()
            return int(lines), int(size)
    except DatabaseUnavailableError:
        return 0, 0


def expected_counts(logs: list[Path]) -> Counter:
    """Rows that count, found in the logs without any code of the database."""
    counts: Counter = Counter()
    for log in logs:
        kept: list[tuple[int, str, int]] = []
        for event in read_events(log):
            counts["events"] += 1
            counts["heartbeats"] += event.kind == "heartbeat"
            if event.kind == "run_start":
                kept = [row for row in kept if row[0] <= event.payload["from_epoch"]]
            kept += rows_meant(event.kind, event.payload)
        for _, table, rows in kept:
            counts[table] += rows
    return counts


def rows_meant(kind: str, payload: dict) -> list[tuple[int, str, int]]:
    """Epoch, table and number of the rows that an event means and a later one may take back."""
    epoch = payload.get("epoch", payload.get("end_epoch"))
    if kind == "metrics":
        return [(epoch, "metric_values", len(payload["metrics"]))]
    if kind == "epoch":
        return [(epoch, "epochs", 1)]
    if kind == "policy":
        return [(epoch, "policies", 1)]
    if kind == "evaluation":
        scores = payload["scores"]["simulation_scores"]
        return [(epoch, "evaluations", 1), (epoch, "simulation_scores", len(scores))]
    if kind == "episodes":
        epoch, stats = int(payload["epoch_id"].rpartition("-")[2]), payload["stats"]
        found = {"episodes": stats["episode_return"], "episode_values": stats["coins"]}
        return [(epoch, table, len(numbers)) for table, numbers in found.items()]
    return []


def check(url: str, logs: list[Path]) -> Counter:
    """Every row is there, once; returns how many."""
    expected = expected_counts(logs)
    with StatsReader(url) as reader, reader.connect() as connection:
        found = Counter(
            {
                table: connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar()
                for table in expected
            }
        )
        assert found == expected, f"found {found}, expected {expected}"
        for log in logs:
            run = next(read_events(log)).run
            # NaN is not equal to itself, but its text is
            assert repr(as_lists(metric_rows_of(connection, run))) == repr(
                as_lists(metric_rows(log))
            )
    return found


def as_lists(rows) -> list[tuple]:
    return [
        (row.agent_step, row.epoch, sorted((name, float(n)) for name, n in row.metrics.items()))
        for row in rows
    ]


def processes(work, inputs) -> list:
    started = [CONTEXT.Process(target=work, args=given) for given in inputs]
    for process in started:
        process.start()
    return started


def collect(queue, workers: list) -> list:
    """One result of each process, which then ends."""
    found = [queue.get(timeout=CATCH_UP_SECONDS) for _ in workers]
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    return found


def measure(url: str, folder: Path, options, server: PostgresServer | None) -> dict:
    with Ingester(url) as ingester:
        ingester.prepare()
    epochs = math.ceil(options.rows / options.trainers / ROWS_PER_EPOCH)
    logs = [folder / f"run-{number}" / "events.jsonl" for number in range(options.trainers)]
    stop = CONTEXT.Event()
    trained, ingested, answered = CONTEXT.Queue(), CONTEXT.Queue(), CONTEXT.Queue()
    began = time.perf_counter()
    trainers = processes(train, [(log, epochs, options.seconds, trained) for log in logs])
    inputs = [(url, folder, stop, ingested) for _ in range(options.ingesters)]
    ingesters = processes(ingest, inputs)
    readers = processes(read, [(url, seed, stop, answered) for seed in range(options.readers)])
    half = 2.5 * epochs * options.trainers / 2
    if server is not None:
        while lines_read(url)[0] < half:
            time.sleep(0.05)
        server.kill()
        time.sleep(OUTAGE_SECONDS)
        server.start()
    hook_times = sorted(t for times in collect(trained, trainers) for t in times)
    written = time.perf_counter() - began
    size = sum(log.stat().st_size for log in logs)
    while lines_read(url)[1] < size:
        assert time.perf_counter() - began < CATCH_UP_SECONDS, "the ingesters do not catch up"
        time.sleep(0.05)
    arrived = time.perf_counter() - began
    stop.set()
    reports = collect(ingested, ingesters)
    answers = collect(answered, readers)
    found = check(url, logs)
    # a batch whose answer got lost with the server was counted by nobody
    assert server is not None or sum(report[0] for report in reports) == found["events"]
    times = sorted(t for taken, _ in answers for t in taken)
    assert server is None or all(report[2] for report in reports), "nobody noticed the outage"
    return {
        "rows": sum(found.values()) - found["events"],
        "events": found["events"],
        "log_mb": size / 1e6,
        "trainers_seconds": written,
        "all_arrived_seconds": arrived,
        "hook_ms": [1e3 * part(hook_times, share) for share in (0.5, 0.99, 1.0)],
        "answers": len(times),
        "answer_ms": [1e3 * part(times, share) for share in (0.5, 0.99, 1.0)],
        "answers_failed": sum(failures for _, failures in answers),
        "outages_noticed": sum(report[2] for report in reports),
    }


def part(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else math.nan


def reload_speed(url: str, folder: Path) -> float:
    """Rows per second of one ingester that loads all logs into an empty database, alone."""
    with Ingester(url) as ingester:
        ingester.prepare()
        began = time.perf_counter()
        report = ingester.ingest_folder(folder)
        return report.num_rows / (time.perf_counter() - began)


def run(kind: str, options) -> dict:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if kind == "sqlite":
            found = measure(str(folder / "statistics.sqlite"), folder / "runs", options, None)
            speed = reload_speed(str(folder / "again.sqlite"), folder / "runs")
        else:
            with PostgresServer() as server:
                url = server.create_database("load")
                found = measure(url, folder / "runs", options, server)
                speed = reload_speed(server.create_database("again"), folder / "runs")
    return {"database": kind, **found, "alone_rows_per_second": speed}


def table_of(results: list[dict]) -> str:
    lines = [
        "| database | rows | events | trainers done, s | all arrived, s | alone, rows/s "
        "| hook, ms p50/p99/max | answers | answer, ms p50/p99/max | failed | outages noticed |",
        "|---" * 11 + "|",
    ]
    for r in results:
        hook, answer = (" / ".join(f"{n:.2f}" for n in r[key]) for key in ("hook_ms", "answer_ms"))
        lines.append(
            f"| {r['database']} | {r['rows']:,} | {r['events']:,} | {r['trainers_seconds']:.1f} "
            f"| {r['all_arrived_seconds']:.1f} | {r['alone_rows_per_second']:,.0f} | {hook} "
            f"| {r['answers']:,} | {answer} | {r['answers_failed']} | {r['outages_noticed']} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--rows", type=int, default=500_000, help="rows that count at the end, at least"
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="time over which trainers write"
    )
    parser.add_argument("--databases", nargs="+", default=["sqlite", "postgresql"])
    parser.add_argument("--trainers", type=int, default=16)
    parser.add_argument("--ingesters", type=int, default=2)
    parser.add_argument("--readers", type=int, default=4)
    parser.add_argument("--output", help="also write the figures to this JSON file")
    options = parser.parse_args()
    results = []
    for kind in options.databases:
        if kind == "postgresql" and binaries() is None:
            print("PostgreSQL is not installed: left out")
            continue
        results.append(run(kind, options))
        print(json.dumps(results[-1]), flush=True)
    print(table_of(results))
    print("every row of every log is in the database, once")
    if options.output:
        Path(options.output).write_text(json.dumps(results, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
