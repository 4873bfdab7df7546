import json
import math
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from faults.commands import run_command
from metta.cli.main import main
from metta.envs.toy import CorridorEnv
from metta.loggers import EventLog
from metta.rl.components.trainer import Trainer
from metta.runs import summary as run_summary
from metta.runs.details import RunDetails
from metta.runs.summary import shown_time, summarize
from metta.store.run_directory import RunDirectory
from metta.train.settings import apply_settings
from metta.train.train_config import TrainingConfig

DEAD_PID = 2**22 + 1
"""Above the largest process id of Linux."""


def make_run(
    folder: Path,
    *,
    steps: int = 1000,
    ended: str | None = "done",
    pid: int = DEAD_PID,
    host: str | None = None,
    outcome: str | None = None,
) -> Path:
    """A run as its files tell of it."""
    folder.mkdir(parents=True)
    TrainingConfig().to_yaml(folder / "config.yaml")
    host = host or socket.gethostname()
    about = {"pid": pid, "host": host, "started": "2026-01-01T00:00:00+00:00"}
    (folder / "run.lock").write_text(json.dumps(about))
    with EventLog(folder / "events.jsonl") as log:
        log.append("run_start", {"name": folder.name})
        metrics = {"overview/reward": 12.5, "eval_training/score": 20.0, "eval_training/x": 20.0}
        log.append("metrics", {"agent_step": steps, "epoch": 3, "metrics": metrics})
        log.append("metrics", {"agent_step": steps, "epoch": 4, "metrics": {"losses/a": 1.0}})
        if ended is not None:
            said = {} if outcome is None else {"outcome": outcome}
            log.append("run_end", {"reason": ended, **said})
    return folder


def test_the_class_is_named_when_a_run_has_an_environment_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"num_envs": 2, "horizon": 8, "total_timesteps": 16, "eval_episodes": 0}
    config = apply_settings(TrainingConfig(), {**settings, "verbose": False})
    with Trainer(config, env=CorridorEnv, run_dir=tmp_path / "mine") as trainer:
        trainer.train()
    assert main(["runs", "--output", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[:2] == ["mine", "CorridorEnv"]
    lines = (tmp_path / "mine" / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    (start,) = (event["payload"] for event in events if event["kind"] == "run_start")
    assert "CorridorEnv" in json.dumps(start)
    assert main(["resume", "mine", "--output", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "the environment CorridorEnv, now it is CartPole-v1, which the settings name" in said


def test_a_line_is_shown_per_run_when_they_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "old")
    make_run(tmp_path / "new", steps=100_000)
    os.utime(tmp_path / "old" / "config.yaml", (1, 1))
    (tmp_path / "not-a-run").mkdir()
    assert main(["runs", "--output", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[1].split()[:7] == [
        "old",
        "CartPole-v1",
        "stopped",
        "1,000",
        "(1%)",
        "12.5",
        "20",
    ]
    assert lines[2].split()[:5] == ["new", "CartPole-v1", "done", "100,000", "(100%)"]


@pytest.mark.parametrize("kind", ["run_start", "rewind"])
def test_a_row_does_not_count_when_the_run_went_on_from_before_it(
    tmp_path: Path, kind: str
) -> None:
    folder = make_run(tmp_path / "run", ended=None)
    with EventLog(folder / "events.jsonl") as log:
        lost = {"overview/reward": 99.0, "eval_training/score": 99.0}
        log.append("metrics", {"agent_step": 5000, "epoch": 20, "metrics": lost})
        log.append(kind, {"name": "run", "from_epoch": 4})
    summary = summarize(folder)
    assert (summary.epoch, summary.agent_step) == (4, 1000)
    assert (summary.reward, summary.score) == (12.5, 20.0)


@pytest.mark.parametrize("ended", [None, "SIGINT"])
def test_the_status_tells_how_a_run_stands_when_it_did_not_finish(
    tmp_path: Path, ended: str | None
) -> None:
    folder = make_run(tmp_path / "run", ended=ended)
    summary = summarize(folder)
    assert (summary.status, summary.reason) == ("stopped" if ended else "died", ended)
    with RunDirectory(folder).lock():
        assert summarize(folder).status == ("stopped" if ended else "running")


@pytest.mark.parametrize("steps", [1000, 100_000])
@pytest.mark.parametrize("outcome", ["done", "stopped", "failed", "strange"])
def test_the_outcome_is_the_status_when_the_last_event_tells_it(
    tmp_path: Path, steps: int, outcome: str
) -> None:
    folder = make_run(tmp_path / "run", steps=steps, outcome=outcome)
    guess = "done" if steps == 100_000 else "stopped"
    assert summarize(folder).status == (guess if outcome == "strange" else outcome)


def test_a_resumed_run_runs_when_it_began_again(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", outcome="stopped")
    with EventLog(folder / "events.jsonl") as log:
        log.append("run_start", {"name": "run"})
    with RunDirectory(folder).lock():
        assert summarize(folder).status == "running"


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="the system does not list its locks")
def test_a_run_died_when_another_process_has_its_number(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", ended=None, pid=os.getpid())
    with RunDirectory(make_run(tmp_path / "other")).lock():
        assert summarize(folder).status == "died"


def test_the_process_decides_when_the_system_lists_no_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_summary, "_LOCKS", tmp_path / "nowhere")
    assert summarize(make_run(tmp_path / "a", ended=None, pid=os.getpid())).status == "running"
    assert summarize(make_run(tmp_path / "b", ended=None)).status == "died"


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("1: FLOCK  ADVISORY  WRITE 7 {device}:{inode} 0 EOF", "running"),
        ("1: FLOCK  ADVISORY  WRITE {pid} ff:ff:{inode} 0 EOF", "running"),
        ("1: FLOCK  ADVISORY  WRITE 7 ff:ff:{inode} 0 EOF", "died"),
        ("1: FLOCK  ADVISORY  WRITE {pid} {device}:0 0 EOF", "died"),
        ("1: -> FLOCK  ADVISORY  WRITE {pid} {device}:{inode} 0 EOF", "died"),
        ("1: POSIX  ADVISORY  WRITE {pid} {device}:{inode} 0 EOF", "died"),
        ("1: FLOCK  ADVISORY  WRITE {pid} <none>:0 0 EOF", "died"),
    ],
)
def test_a_run_runs_when_its_own_lock_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, status: str
) -> None:
    folder = make_run(tmp_path / "run", ended=None, pid=os.getpid())
    about = (folder / "run.lock").stat()
    device = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}"
    other = "9: POSIX  ADVISORY  READ 1 00:01:1 128 128\n"
    shown = line.format(pid=os.getpid(), device=device, inode=about.st_ino)
    (tmp_path / "locks").write_text(f"{other}{shown}\n")
    monkeypatch.setattr(run_summary, "_LOCKS", tmp_path / "locks")
    assert summarize(folder).status == status


def test_a_run_on_another_host_runs_when_it_wrote_lately(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", ended=None, host="elsewhere", pid=os.getpid())
    assert summarize(folder).status == "running"
    for age, status in ((9 * 60, "running"), (11 * 60, "died")):
        os.utime(folder / "events.jsonl", (time.time() - age,) * 2)
        assert summarize(folder).status == status
    (folder / "events.jsonl").unlink()
    assert summarize(folder).status == "died"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"pid": 1e400, "host": ""}', '{"pid": null}'])
def test_a_run_died_when_its_lock_says_nothing(tmp_path: Path, text: str) -> None:
    folder = make_run(tmp_path / "run", ended=None)
    (folder / "run.lock").write_text(text)
    assert summarize(folder).status == "died"


BAD_EVENTS: list[Any] = [
    "no event",
    ["a list"],
    {"kind": "metrics", "payload": {}},
    {"kind": "metrics", "payload": None},
    {"kind": "metrics", "payload": {"metrics": None}},
    {"kind": "metrics", "payload": {"metrics": {"overview/reward": "high"}}},
    {"kind": "metrics", "payload": {"metrics": {}, "agent_step": None}},
    {"kind": "metrics", "payload": {"metrics": {}, "agent_step": float("inf")}},
    {"kind": "run_end", "payload": ["done"]},
]


@pytest.mark.parametrize("event", BAD_EVENTS)
def test_the_others_are_listed_when_a_line_of_one_run_is_bad(
    tmp_path: Path, event: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "good")
    folder = make_run(tmp_path / "bad")
    if isinstance(event, dict):
        event = {"run": "x", "sequence": 9, "time": 0.0, **event}
    with (folder / "events.jsonl").open("a") as log:
        log.write(json.dumps(event) + "\n")
    assert main(["runs", "--output", str(tmp_path)]) == 0
    shown = {line.split()[0]: line.split()[1:3] for line in capsys.readouterr().out.splitlines()}
    assert shown["good"] == ["CartPole-v1", "stopped"]
    assert shown["bad"] == ["CartPole-v1", "broken"]


@pytest.mark.parametrize("text", ["trainer: [", "no_such_setting: 1", "- 1", "\xff\xfe"])
def test_the_others_are_listed_when_the_configuration_of_one_run_is_broken(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "good")
    (make_run(tmp_path / "bad") / "config.yaml").write_bytes(text.encode("latin-1"))
    assert main(["runs", "--output", str(tmp_path)]) == 0
    shown = {line.split()[0]: line.split()[1:4] for line in capsys.readouterr().out.splitlines()}
    assert shown["good"][:2] == ["CartPole-v1", "stopped"]
    assert shown["bad"] == ["-", "broken", "-"]
    assert main(["runs", "bad", "--output", str(tmp_path)]) == 0
    details = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert details["status"] == "broken"
    assert "config.yaml" in details["reason"]


def test_the_others_are_listed_when_a_run_goes_while_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "good")
    found = [tmp_path / "good" / "config.yaml", tmp_path / "gone" / "config.yaml"]
    monkeypatch.setattr(Path, "glob", lambda *_: iter(found))
    assert main(["runs", "--output", str(tmp_path)]) == 0
    _, gone, good = capsys.readouterr().out.splitlines()
    assert gone.split() == ["gone", "-", "broken", "-", "-", "-", "-"]
    assert good.split()[:3] == ["good", "CartPole-v1", "stopped"]


def test_the_reason_is_shown_when_a_run_is_broken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (make_run(tmp_path / "run") / "events.jsonl").open("a") as log:
        log.write("half a li\n")
    assert main(["runs", "run", "--output", str(tmp_path)]) == 0
    details = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert details["status"] == "broken"
    assert "the line at byte" in details["reason"]
    assert "half a li" in details["reason"]
    assert details["agent_step"] == "1000"


@pytest.mark.parametrize("number", ["null", "NaN", "-Infinity"])
def test_a_number_is_left_out_when_it_is_not_finite(
    tmp_path: Path, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_run(tmp_path / "run")
    event = {"run": "x", "sequence": 9, "time": 0.0, "kind": "metrics"}
    metrics = {"overview/reward": "?", "eval_training/score": "?", "eval_other/score": "?"}
    line = json.dumps({**event, "payload": {"agent_step": 1, "epoch": 1, "metrics": metrics}})
    with (folder / "events.jsonl").open("a") as log:
        log.write(line.replace('"?"', number) + "\n")
    summary = summarize(folder)
    assert (summary.status, summary.reward, summary.score) == ("stopped", None, None)
    assert main(["runs", "--output", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[5:7] == ["-", "-"]
    with (folder / "events.jsonl").open("a") as log:
        log.write(line.replace('"?"', "4.0", 2).replace('"?"', number) + "\n")
    assert (summarize(folder).reward, summarize(folder).score) == (4.0, 4.0)


def test_a_run_is_shown_when_it_has_only_begun(tmp_path: Path) -> None:
    TrainingConfig().to_yaml(tmp_path / "run" / "config.yaml")
    summary = summarize(tmp_path / "run")
    assert (summary.status, summary.epoch, summary.reward, summary.score) == ("died", 0, None, None)


def test_details_are_shown_when_one_run_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_run(tmp_path / "run")
    (folder / "checkpoints" / "epoch_000004").mkdir(parents=True)
    assert main(["runs", "run", "--output", str(tmp_path)]) == 0
    shown = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert (shown["status"], shown["reason"], shown["score"]) == ("stopped", "done", "20")
    assert shown["checkpoints"] == "epoch_000004"


def test_a_run_of_strangers_steers_no_terminal_when_it_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "\x1b]0;evil\x07"
    folder = make_run(tmp_path / f"run{evil}", ended=f"why\n{evil}")
    where = {"epoch": 5, "agent_step": 50}
    with EventLog(folder / "events.jsonl") as log:
        log.append("metrics", {**where, "metrics": {f"losses/{evil}": 1.0}})
        log.append("policy", {**where, "uri": f"file://policy{evil}"})
        log.append("replay", {**where, "uri": f"file://replay{evil}", "simulation": f"b/{evil}"})
        log.append("evaluation", {**where, "suite": f"s{evil}", "scores": {f"a{evil}/b": 1.0}})
    for words in ([], [folder.name]):
        assert main(["runs", *words, "--output", str(tmp_path)]) == 0
        shown = capsys.readouterr().out
        assert r"\x1b]0;evil\x07" in shown
        assert all(sign.isprintable() or sign == "\n" for sign in shown)
    assert r"reason           why\n\x1b]0;evil\x07" in shown
    for line in (r"losses/\x1b", r"file://policy\x1b", r"b/\x1b", r"  s\x1b", r"    a\x1b"):
        assert line in shown


@pytest.mark.parametrize("seconds", [1e20, -1e20, 1e300, 1e12, math.inf, math.nan])
def test_a_line_stands_for_a_moment_when_no_calendar_has_it(seconds: float) -> None:
    assert shown_time(seconds) == "-"
    lines = list(RunDetails(last_heartbeat=seconds).lines())
    assert lines[0].startswith("last heartbeat: -, ")


def test_scripts_can_read_it_when_json_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "run")
    main(["runs", "--json", "--output", str(tmp_path)])
    found = json.loads(capsys.readouterr().out)
    assert (found["name"], found["agent_step"], found["epoch"]) == ("run", 1000, 4)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_a_folder_of_another_user_is_named_when_it_may_not_be_read(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    folder.chmod(0o700)
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(0o755)
    ended = run_command(["runs", "run", "--output", str(tmp_path)], uid=65534, cwd=Path("/"))
    assert (ended.code, ended.problem()) == (1, None)
    assert ended.said.startswith(
        f"metta: you may not use '{folder}/config.yaml': Permission denied"
    )


def test_it_says_so_when_there_are_no_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", "--output", str(tmp_path / "nowhere")]) == 0
    assert "there are no runs" in capsys.readouterr().out
    assert main(["runs", "x", "--output", str(tmp_path)]) == 2
