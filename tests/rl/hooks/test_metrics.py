import inspect
import math
import re
import threading
from csv import DictReader
from pathlib import Path

import pytest
import torch
from metrics_run import SmallRun, auxiliary_loss

import metta
from metta.curriculum import Curriculum
from metta.loggers import EventLog, MetricRow, StatsClient, StatsLogger, SystemMonitor, read_events
from metta.loggers.events.history import metric_rows
from metta.loggers.sinks.csv_file import CsvSink
from metta.rl.collect.buffer import RolloutBuffer
from metta.rl.hooks.metrics import MetricsHook
from metta.rl.learn.custom_losses import as_custom_losses
from metta.rl.training_state import LateScores
from metta.sim.scores import EvalRewardSummary
from metta.timing import Stopwatch
from metta.train.run_config import CurriculumConfig, LoggingConfig
from metta.train.train_config import TrainerConfig, TrainingConfig
from tests.cli.test_documented_metrics import IN_SEVERAL_PROCESSES

DOCS = Path(metta.__file__).parents[1] / "docs" / "metrics.md"
QUIET = LoggingConfig(monitor_seconds=0.0)


class MemorySink:
    name = "memory"
    takes_constants = False

    def __init__(self) -> None:
        self.rows: list[MetricRow] = []
        self.num_closed = 0

    def write(self, row: MetricRow) -> None:
        self.rows.append(row)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.num_closed += 1


class FakeWandbRun:
    id, name, project, entity = "abc", "fake", "metta", "nobody"

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def define_metric(self, name: str, *, step_metric: str | None = None) -> None:
        pass

    def log(self, data: dict[str, float]) -> None:
        self.rows.append(data)


@pytest.fixture
def sink() -> MemorySink:
    return MemorySink()


def make_hook(sink: MemorySink, config: LoggingConfig = QUIET, **options: object) -> MetricsHook:
    return MetricsHook(logger=StatsLogger([sink]), config=config, **options)


def documented_keys() -> list[str]:
    cells = [line.split("|")[1] for line in DOCS.read_text().splitlines() if line.startswith("| `")]
    return [key for cell in cells for key in re.findall(r"`([^`]+)`", cell)]


def pattern_of(key: str) -> re.Pattern[str]:
    return re.compile("".join(r"[^/]+" if part.startswith("<") else re.escape(part)
                              for part in re.split(r"(<\w+>)", key)))  # fmt: skip


def full_run_keys(sink: MemorySink, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The keys of a training with everything switched on."""
    seen = {
        "rss_mib",
        "peak_rss_mib",
        "children_rss_mib",
        "cpu_percent",
        "memory_percent",
        "load_1m",
    }
    monitor = SystemMonitor(1.0)
    assert monitor._look().keys() >= seen
    monkeypatch.setattr(SystemMonitor, "snapshot", lambda _: monitor._look())  # no waiting for it
    config = LoggingConfig(grad_stats_interval=1, weight_stats_interval=1, monitor_seconds=60.0)
    run = SmallRun()
    run.parts.custom_losses[:] = as_custom_losses([auxiliary_loss])
    sink.takes_constants = True
    run.hooks.add(make_hook(sink, config))
    with run.training():
        run.epoch()
        run.state.eval_scores = EvalRewardSummary({"task/CountingEnv": 2.0})
        run.epoch()
    return {key for row in sink.rows for key in row.metrics}


def test_metrics_and_their_page_agree_when_everything_is_switched_on(
    sink: MemorySink, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, documented = set(full_run_keys(sink, monkeypatch)), documented_keys()
    curriculum = Curriculum(CurriculumConfig(kind="random", tasks={"a": {}, "b": {}}))
    curriculum.complete(0, 1.0)
    keys |= {f"env_{name}" for name in curriculum.metrics()}
    patterns = {key: pattern_of(key) for key in documented}
    undocumented = {
        key for key in keys if not any(pattern.fullmatch(key) for pattern in patterns.values())
    }
    assert undocumented == set()
    never = {key for key, pattern in patterns.items() if not any(map(pattern.fullmatch, keys))}
    without_gpu = {key for key in never if key.startswith("monitor/gpu_")}
    assert never - without_gpu == set(IN_SEVERAL_PROCESSES)
    assert len(set(documented)) == len(documented)


def test_a_row_is_made_of_each_epoch_when_training_runs(sink: MemorySink) -> None:
    run = SmallRun()
    run.hooks.add(make_hook(sink))
    with run.training():
        run.epochs(3)
    assert [(row.agent_step, row.epoch) for row in sink.rows] == [(16, 1), (32, 2), (48, 3)]
    last = sink.rows[-1].metrics
    assert last["overview/reward"] == run.state.stats.mean_return
    assert last["env_episode/length"] == 5.0
    assert last["losses/value_loss"] > 0
    assert last["overview/sps"] > 0
    assert sink.num_closed == 1


def test_settings_come_once_and_in_no_row_of_an_epoch(sink: MemorySink) -> None:
    taker, run = MemorySink(), SmallRun()
    taker.name, taker.takes_constants = "taker", True
    run.hooks.add(MetricsHook(logger=StatsLogger([sink, taker]), config=QUIET))
    with run.training():
        run.epochs(2)
    assert taker.rows[0].metrics["hyperparameters/ppo/gamma"] == 0.99
    assert (taker.rows[0].agent_step, len(taker.rows)) == (0, 3)
    assert taker.rows[1:] == sink.rows
    assert not any(name.startswith("hyperparameters/") for row in sink.rows for name in row.metrics)


def test_statistics_accumulate_when_a_row_covers_several_epochs(sink: MemorySink) -> None:
    run = SmallRun()
    run.hooks.add(make_hook(sink, LoggingConfig(log_interval=3, monitor_seconds=0.0)))
    with run.training():
        run.epochs(7)
    # 2 environments x 24 steps in episodes of 5 steps: 8 ended; the last row is what was left
    assert [(row.epoch, row.metrics["overview/episodes"]) for row in sink.rows] == [
        (3, 8.0),
        (6, 10.0),
        (7, 4.0),
    ]
    # the hook only observes: the run's own statistics wait for the run's own interval
    assert len(run.state.stats.rollout_stats["episode_return"]) == 22
    assert run.state.stats.stats_epoch_start == 0


def test_phases_are_timed_when_events_follow_each_other(sink: MemorySink) -> None:
    now = [0.0]
    timer = Stopwatch(lambda: now[0])
    run = SmallRun()
    run.hooks.add(make_hook(sink, timer=timer))

    class Slow:
        order = 50

        def on_rollout_start(self) -> None:
            now[0] += 100.0  # before the rollout's time begins

        def on_rollout_end(self) -> None:
            now[0] += 2.0

        def on_update_end(self) -> None:
            now[0] += 3.0

        def on_epoch_end(self) -> None:
            now[0] += 4.0

    run.hooks.add(Slow())
    with run.training():
        run.epochs(2)
    metrics = sink.rows[1].metrics
    phases = ("rollout", "train", "hooks", "total")
    assert [metrics[f"timing_per_epoch/{name}"] for name in phases] == [2.0, 3.0, 4.0, 109.0]
    assert [metrics[f"timing_cumulative/{name}"] for name in phases] == [4.0, 6.0, 8.0, 218.0]
    assert metrics["overview/sps"] == 16 / 109
    assert (metrics["metric/total_time"], metrics["metric/train_time"]) == (218.0, 6.0)


def test_scores_have_a_row_of_their_own_when_they_come_last(sink: MemorySink) -> None:
    run = SmallRun()
    run.hooks.add(make_hook(sink))
    with run.training():
        run.epoch()
        run.state.eval_scores = EvalRewardSummary({"task/a": 4.0})
    assert [row.epoch for row in sink.rows] == [1, 1]
    assert sink.rows[1].metrics["eval_task/score"] == 4.0
    assert "overview/sps" not in sink.rows[1].metrics


def test_the_run_is_told_as_events_when_there_is_a_client(sink: MemorySink, tmp_path: Path) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        client = StatsClient(log)
        run = SmallRun()
        logger = StatsLogger([sink], event_log=log)
        run.hooks.add(MetricsHook(None, client, logger=logger, config=QUIET))
        with run.training("solved"):
            run.epochs(2)
    events = list(read_events(log.path))
    kinds = [event.kind for event in events]
    assert kinds == [
        "run_start", "heartbeat", "epoch", "episodes", "metrics", "epoch", "episodes", "metrics",
        "run_end",
    ]  # fmt: skip
    assert run.state.stats.stats_run_id == log.run_id
    epochs = [e.payload for e in events if e.kind == "epoch"]
    assert [(e["start_epoch"], e["end_epoch"]) for e in epochs] == [(0, 1), (1, 2)]
    assert run.state.stats.stats_epoch_id == epochs[-1]["epoch_id"]
    episodes = [e.payload["stats"]["episode_length"] for e in events if e.kind == "episodes"]
    assert episodes == [[5.0] * 2, [5.0] * 4]
    assert events[-1].payload["reason"] == "solved"


def test_the_client_of_the_run_is_used_when_none_is_given(tmp_path: Path, sink: MemorySink) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        run = SmallRun(stats_client=StatsClient(log))
        run.hooks.add(make_hook(sink))
        with run.training():
            run.epoch()
    assert [event.kind for event in read_events(log.path)][-1] == "run_end"


def test_signs_of_life_are_rare_when_epochs_are_short(
    tmp_path: Path, sink: MemorySink, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("metta.rl.hooks.metrics.time.monotonic", lambda: now[0])
    config = LoggingConfig(heartbeat_seconds=10.0, monitor_seconds=0.0)
    with EventLog(tmp_path / "events.jsonl") as log:
        run = SmallRun(stats_client=StatsClient(log))
        hook = make_hook(sink, config)
        run.hooks.add(hook)
        run.hooks.open()
        run.hooks.fire("on_training_start")
        for _ in range(25):
            run.hooks.fire("on_rollout_start")
            now[0] += 1.0
        monkeypatch.undo()
        run.hooks.close()
    beats = [event for event in read_events(log.path) if event.kind == "heartbeat"]
    assert len(beats) == 3


def test_the_end_is_told_when_training_fails(tmp_path: Path, sink: MemorySink) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        run = SmallRun(stats_client=StatsClient(log))
        run.hooks.add(make_hook(sink))
        run.hooks.open()
        run.hooks.fire("on_training_start")
        run.epoch()
        run.hooks.fire_exception(RuntimeError("env died"))
        run.hooks.close()
        run.hooks.fire_exception(RuntimeError("again"))  # closed: nothing to tell
    ends = [event.payload["reason"] for event in read_events(log.path) if event.kind == "run_end"]
    assert ends == ["RuntimeError: env died"]


def test_rows_begin_where_it_came_in_when_a_hook_is_added_in_the_middle(sink: MemorySink) -> None:
    run = SmallRun()
    with run.training():
        run.epochs(2)
        run.hooks.add(make_hook(sink))
        run.epochs(2)
    assert [row.epoch for row in sink.rows] == [3, 4]
    assert sink.rows[0].metrics["overview/episodes"] == 2.0
    assert "timing_per_epoch/rollout" in sink.rows[0].metrics


def test_nothing_is_reported_twice_when_a_run_goes_on_from_a_snapshot(sink: MemorySink) -> None:
    run = SmallRun()
    snapshots = []

    class Snapshot:
        order = 10

        def on_epoch_end(self) -> None:
            snapshots.append(run.state.stats.state_dict())

    run.hooks.add(Snapshot())
    run.hooks.add(make_hook(sink))
    with run.training():
        run.epochs(2)
    run.state.stats.load_state_dict(snapshots[-1])  # taken before the row of epoch 2
    with run.training():
        run.epoch()
    assert [row.metrics["overview/episodes"] for row in sink.rows] == [2.0, 4.0, 2.0]


def test_it_opens_again_when_a_second_training_follows(sink: MemorySink) -> None:
    run = SmallRun()
    hook = make_hook(sink, LoggingConfig(monitor_seconds=60.0))
    run.hooks.add(hook)
    for _ in range(2):
        with run.training():
            run.epoch()
        assert not [t for t in threading.enumerate() if t.name.startswith("metta-")]
        hook.close()
    assert [row.epoch for row in sink.rows] == [1, 2]
    assert sink.num_closed == 2


def test_it_prints_lines_when_it_is_verbose(capsys: pytest.CaptureFixture[str]) -> None:
    run = SmallRun()
    run.hooks.add(MetricsHook(config=QUIET))
    with run.training():
        run.epochs(3)
    lines = capsys.readouterr().out.splitlines()
    assert "16 / 160 steps" in lines[0]
    assert "48 / 160 steps" in lines[-1]


def test_it_is_silent_when_it_is_not_verbose(capsys: pytest.CaptureFixture[str]) -> None:
    run = SmallRun()
    run.hooks.add(MetricsHook(verbose=False, config=QUIET, total_timesteps=5))
    with run.training():
        run.epoch()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("with_logger", [True, False])
def test_wandb_gets_each_row_once_when_a_run_is_given(with_logger: bool) -> None:
    wandb_run = FakeWandbRun()
    logger = StatsLogger(wandb_run=wandb_run) if with_logger else None
    run = SmallRun()
    run.hooks.add(MetricsHook(wandb_run, verbose=False, logger=logger, config=QUIET))
    with run.training():
        run.epochs(2)
    assert [row["metric/agent_step"] for row in wandb_run.rows] == [0, 16, 32]
    assert wandb_run.rows[0]["hyperparameters/ppo/gamma"] == 0.99


@pytest.mark.parametrize("nested", [True, False])
def test_settings_are_those_of_the_run_when_none_are_given(sink: MemorySink, nested: bool) -> None:
    logging = LoggingConfig(log_interval=2, monitor_seconds=0.0)
    config = TrainingConfig(trainer=TrainerConfig(logging=logging))
    run = SmallRun(config)
    run.hooks.config = config if nested else config.trainer
    run.hooks.add(MetricsHook(logger=StatsLogger([sink])))
    with run.training():
        run.epochs(4)
    assert [row.epoch for row in sink.rows] == [2, 4]


def test_gradients_and_weights_are_rare_when_their_intervals_are_long(sink: MemorySink) -> None:
    config = LoggingConfig(grad_stats_interval=2, weight_stats_interval=3, monitor_seconds=0.0)
    run = SmallRun()
    run.hooks.add(make_hook(sink, config))
    with run.training():
        run.epochs(4)
    assert [row.epoch for row in sink.rows if "grad/norm" in row.metrics] == [2, 4]
    assert [row.epoch for row in sink.rows if "weights/heads/norm" in row.metrics] == [3]
    assert run.state.stats.grad_stats == {}


def test_training_is_the_same_when_it_is_observed(sink: MemorySink) -> None:
    alone, observed = SmallRun(), SmallRun()
    config = LoggingConfig(grad_stats_interval=1, weight_stats_interval=1, monitor_seconds=0.01)
    observed.hooks.add(make_hook(sink, config))
    states = []
    for run in (alone, observed):
        with run.training():
            run.epochs(3)
        states.append(torch.get_rng_state())
    assert torch.equal(alone.weights(), observed.weights())
    assert torch.equal(*states)


def test_the_signature_is_the_documented_one_when_it_is_inspected() -> None:
    first = list(inspect.signature(MetricsHook).parameters)[:4]
    assert first == ["wandb_run", "stats_client", "timer", "verbose"]
    assert MetricsHook.order == 90
    epoch_end = inspect.signature(MetricsHook.on_epoch_end).parameters
    assert list(epoch_end)[1:6] == [
        "losses_stats", "experience", "policy", "optimizer", "trainer_state",
    ]  # fmt: skip


def test_the_return_is_nan_when_no_episode_has_ended(sink: MemorySink) -> None:
    run = SmallRun()
    run.parts.experience = RolloutBuffer.for_env(run.policy, run.parts.vecenv, horizon=4)
    run.hooks.add(make_hook(sink))
    with run.training():
        run.epoch()
    assert math.isnan(sink.rows[0].metrics["overview/reward"])


def test_the_time_between_trainings_does_not_count_when_a_second_follows(sink: MemorySink) -> None:
    now = [0.0]
    run = SmallRun()
    run.hooks.add(make_hook(sink, timer=Stopwatch(lambda: now[0])))
    for _ in range(2):
        with run.training():
            now[0] += 1.0
            run.epoch()
        now[0] += 100.0
    assert [row.metrics["metric/total_time"] for row in sink.rows] == [1.0, 2.0]
    assert sink.rows[1].metrics["timing_per_epoch/total"] == 1.0


def test_the_end_lies_behind_the_first_step_when_schedules_began_later(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = SmallRun()
    run.state.agent_step = run.state.first_step = 1000
    run.hooks.add(MetricsHook(config=QUIET, total_timesteps=100))
    with run.training():
        run.epoch()
    assert "1,016 / 1,100 steps" in capsys.readouterr().out


@pytest.mark.parametrize("has_client", [False, True])
def test_late_scores_are_rows_of_their_own_epoch(tmp_path: Path, has_client: bool) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    csv = CsvSink(tmp_path / "metrics.csv")
    table = CsvSink(tmp_path / "evaluations.csv", of_late_scores=True)
    run, late = SmallRun(), EvalRewardSummary({"task/a": 2.0})
    client = StatsClient(log) if has_client else None
    logger = StatsLogger([csv, table], event_log=log)
    run.hooks.add(MetricsHook(None, client, logger=logger, config=QUIET))
    with run.training():
        for _ in range(3):
            run.state.late_scores = []
            if run.state.epoch == 2:
                run.state.late_scores.append(LateScores(1, 16, late))
                if client is not None:  # as `EvaluationHook` does
                    told = {**late.to_dict(), "late_row": late.to_metrics()}
                    client.record_evaluation(epoch=1, agent_step=16, scores=told)
            run.epoch()
        run.state.late_scores = []
    rows = metric_rows(log.path)
    assert [(row.epoch, row.is_late) for row in rows] == [
        (1, False),
        (1, True),
        (2, False),
        (3, False),
    ]
    assert (rows[1].agent_step, rows[1].metrics) == (16, late.to_metrics())
    assert not any(
        name.startswith("eval_") for row in rows for name in row.metrics if not row.is_late
    )
    with csv.path.open() as file:
        lines = list(DictReader(file))
    assert [line["epoch"] for line in lines] == ["1", "2", "3"]
    assert not any(name.startswith("eval_") for name in lines[0])
    with table.path.open() as file:
        lines = list(DictReader(file))
    assert [(line["epoch"], line["eval_task/a"]) for line in lines] == [("1", "2.0")]
