"""`metta stats` on files: what is loaded, told and refused. Servers are in tests/database."""

import csv
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from metta.cli.main import main
from metta.cli.options import database_of
from metta.database import StatsReader
from metta.errors import DatabaseError
from metta.loggers import EventLog, StatsClient, StatsLogger
from metta.runs.database import summaries_from_database
from metta.runs.details import Scores
from metta.sim.scores import EvalRewardSummary
from metta.train.train_config import TrainingConfig

NUM_EVENTS = 7


def make_run(folder: Path, *, ended: bool = True) -> Path:
    """A run with two metrics, a score, a policy and a replay."""
    folder.mkdir(parents=True)
    TrainingConfig().to_yaml(folder / "config.yaml")
    with EventLog(folder / "events.jsonl", f"id-of-{folder.name}") as log:
        client = StatsClient(log)
        client.create_run(folder.name)
        where: dict[str, Any] = {"epoch": 2, "agent_step": 20}
        client.heartbeat(log.run_id, **where)
        metrics = {"overview/reward": 12.5, "eval_maze/score": 3.0}
        StatsLogger(event_log=log).log(metrics, **where)
        client.record_policy(**where, uri="file://policy")
        client.record_evaluation(**where, scores={"maze/small": 2.0, "maze/large": 4.0, "run": 9.0})
        about = {"simulation": "maze/small", "uri": "file://replay", "policy_uri": "file://policy"}
        log.append("replay", {"run_id": log.run_id, **where, **about})
        if ended:
            client.end_run(log.run_id, "enough", "done")
    return folder


def lines_of(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["stats", *words]) == 0
    return capsys.readouterr().out.splitlines()


def wait_for_runs(number: int) -> None:
    deadline, found = time.monotonic() + 60, -1
    while found != number:
        assert time.monotonic() < deadline, f"{found} runs, not {number}"
        time.sleep(0.05)
        try:
            with StatsReader("runs/stats.db") as reader:
                found = len(reader.runs())
        except DatabaseError:  # not there yet
            continue


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("METTA_STATS_URL", raising=False)
    monkeypatch.chdir(tmp_path)


def test_what_is_new_is_told_when_logs_are_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    make_run(Path("runs/a"))
    make_run(Path("runs/b"))
    rows = 1 + 2 + 1 + 1 + 3 + 1  # heartbeat, metrics, policy, evaluation, scores, replay
    told = f"sqlite:///runs/stats.db: {2 * NUM_EVENTS} new events, {2 * rows} new rows"
    assert lines_of(capsys, "ingest") == [told]
    assert lines_of(capsys, "ingest") == ["sqlite:///runs/stats.db: 0 new events, 0 new rows"]
    with EventLog("runs/a/events.jsonl") as log:
        log.append("eclipse", {})
    (line,) = lines_of(capsys, "ingest", "a")
    assert line.endswith(
        "1 new events, 0 new rows; 1 events are of kinds that this metta does not know"
    )


@pytest.mark.parametrize("place", ["b", "runs/b", "runs/b/events.jsonl"])
def test_one_run_is_loaded_when_it_is_named(capsys: pytest.CaptureFixture[str], place: str) -> None:
    make_run(Path("runs/a"))
    make_run(Path("runs/b"))
    (line,) = lines_of(capsys, "ingest", place, "--database", "own.db")
    assert f" {NUM_EVENTS} new events" in line
    with StatsReader("own.db") as reader:
        assert [run.name for run in reader.runs()] == ["b"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ingest"], "there is no folder 'runs' with event logs"),
        (["ingest", "nobody"], "there is no folder 'nobody' or 'runs/nobody'"),
        (["ingest", ".", "--watch", "0"], "--watch 0: give a number of seconds above 0"),
        (["ingest", ".", "--watch", "nan"], "--watch nan: give"),
        (["ingest", ".", "--database", "mysql://host/a"], "kind 'mysql' is not supported"),
        (["ingest", ".", "--database", "env:NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE is not set"),
    ],
)
def test_the_exit_code_is_2_when_the_command_is_wrong(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["stats", *words]) == 2
    assert message in capsys.readouterr().err


def test_the_exit_code_is_1_when_a_log_cannot_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    make_run(Path("runs/a"))
    make_run(Path("runs/b"))
    with Path("runs/a/events.jsonl").open("a") as log:
        log.write("half a li\n")
    assert main(["stats", "ingest"]) == 1
    shown = capsys.readouterr()
    assert f"{2 * NUM_EVENTS} new events" in shown.out
    assert "metta: line 8 of 'runs/a/events.jsonl' is not an event" in shown.err


def test_it_says_so_when_a_folder_has_no_logs(capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs").mkdir()
    assert lines_of(capsys, "ingest")[0] == "there are no event logs in runs"


def test_the_address_is_found_when_several_places_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from argparse import Namespace

    nowhere = Namespace(database=None, runs="some")
    assert database_of(nowhere) == "some/stats.db"
    monkeypatch.setenv("METTA_STATS_URL", "postgresql://host/metta")
    assert database_of(nowhere) == "postgresql://host/metta"
    assert database_of(Namespace(database="own.db", runs="some")) == "own.db"


def test_news_is_loaded_when_it_comes_while_a_folder_is_watched() -> None:
    make_run(Path("runs/a"))
    command = [sys.executable, "-m", "metta.cli.main", "stats", "ingest", "--watch", "0.05"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        wait_for_runs(1)
        make_run(Path("runs/b"))
        wait_for_runs(2)
        process.send_signal(signal.SIGTERM)
        told, _ = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 143
    lines = told.splitlines()
    assert lines[0] == "sqlite:///runs/stats.db: watching runs"
    assert f" {NUM_EVENTS} new events" in lines[1]


def test_tables_and_views_are_listed_when_they_are_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_run(Path("runs/a"))
    lines_of(capsys, "ingest")
    lines = lines_of(capsys, "tables")
    assert lines[0].split() == ["name", "kind", "rows"]
    found = {line.split()[0]: line.split()[1:] for line in lines[1:]}
    assert (found["replays"], found["scores"]) == (["table", "1"], ["view", "3"])
    plain = [json.loads(line) for line in lines_of(capsys, "tables", "--json")]
    assert {"name": "metrics", "kind": "view", "rows": 2} in plain


def test_a_table_is_printed_when_sql_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    make_run(Path("runs/a"))
    lines_of(capsys, "ingest")
    sql = "SELECT simulation, score, suite, NULL AS absent FROM scores ORDER BY score"
    assert [line.split() for line in lines_of(capsys, "query", sql)][:2] == [
        ["simulation", "score", "suite", "absent"],
        ["maze/small", "2", "-"],
    ]
    rows = [json.loads(line) for line in lines_of(capsys, "query", sql, "--json")]
    assert rows[2] == {"simulation": "run", "score": 9.0, "suite": "", "absent": None}
    assert main(["stats", "query", sql, "--limit", "2"]) == 0
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 3
    assert "there are more than 2 rows; see --limit" in shown.err


def test_a_table_steers_no_terminal_when_strangers_wrote_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_run(Path("runs/a"))
    with EventLog("runs/a/events.jsonl") as log:
        StatsLogger(event_log=log).log({"losses/\x1b[2J": 1.0}, epoch=3, agent_step=30)
    lines_of(capsys, "ingest")
    sql = 'SELECT name AS "\x1b[1m" FROM metrics WHERE epoch = 3'
    assert lines_of(capsys, "query", sql) == [r"\x1b[1m", r"losses/\x1b[2J"]


def test_no_value_is_lost_when_columns_have_one_name(capsys: pytest.CaptureFixture[str]) -> None:
    make_run(Path("runs/a"))
    lines_of(capsys, "ingest")
    for sql, row in (
        ("SELECT 1 AS a, 2 AS a, 3 AS a", {"a": 1, "a_2": 2, "a_3": 3}),
        ("SELECT 1 AS a, 2 AS a, 3 AS a_2", {"a": 1, "a_3": 2, "a_2": 3}),
        ("SELECT 1 AS a_2, 2 AS a, 3 AS a", {"a_2": 1, "a": 2, "a_3": 3}),
    ):
        (line,) = lines_of(capsys, "query", sql, "--json")
        assert json.loads(line) == row
        assert lines_of(capsys, "query", sql)[1].split() == ["1", "2", "3"]


@pytest.mark.parametrize(
    "sql", ["DELETE FROM runs", "ATTACH 'other.db' AS other", "SELECT x FROM y"]
)
def test_nothing_is_changed_when_sql_is_no_question(
    capsys: pytest.CaptureFixture[str], sql: str
) -> None:
    make_run(Path("runs/a"))
    lines_of(capsys, "ingest")
    assert main(["stats", "query", sql]) == 1
    assert "the query cannot be answered" in capsys.readouterr().err
    assert lines_of(capsys, "query", "SELECT name FROM runs") == ["name", "a"]
    assert not Path("other.db").exists()


def test_rows_are_in_the_file_when_a_table_is_exported(capsys: pytest.CaptureFixture[str]) -> None:
    make_run(Path("runs/a"))
    make_run(Path("runs/b"))
    lines_of(capsys, "ingest")
    assert lines_of(capsys, "export", "metrics", "all.csv") == ["wrote 4 rows to all.csv"]
    told = lines_of(capsys, "export", "replays", "b.csv", "--run", "b")
    assert told == ["wrote 1 rows to b.csv"]
    with Path("b.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["simulation"], row["uri"]) == ("maze/small", "file://replay")
    assert main(["stats", "export", "metrics", "a.xlsx"]) == 2
    assert main(["stats", "export", "metric", "a.csv"]) == 1
    assert "did you mean 'metrics'" in capsys.readouterr().err


def test_it_says_what_to_do_when_there_is_no_database(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", "tables"]) == 1
    assert "there is no database 'runs/stats.db'; ingest a log into it first" in (
        capsys.readouterr().err
    )
    assert not Path("runs").exists()


@pytest.mark.parametrize("words", [["stats", "ingest", "."], ["runs", "--database", "a.db"]])
def test_the_extra_is_named_when_sqlalchemy_is_not_installed(words: list[str]) -> None:
    code = (
        "import sys; sys.modules['sqlalchemy'] = None\n"
        f"from metta.cli.main import main; sys.exit(main({words!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'metta-rl[database]'" in done.stderr


def test_no_password_is_shown_when_a_server_does_not_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(Path("runs/a"))
    monkeypatch.setenv("METTA_STATS_URL", "postgresql://metta:hide-this-word@127.0.0.1:1/metta")
    assert main(["stats", "ingest"]) == 1
    shown = capsys.readouterr()
    assert "127.0.0.1:1/metta" in shown.err
    assert "hide-this-word" not in shown.out + shown.err


# metta runs, of folders and of a database.


@pytest.mark.parametrize("words", [["a"], ["show", "a"]])
@pytest.mark.parametrize("source", ["folder", "database"])
def test_all_of_a_run_is_shown_when_it_is_named(
    capsys: pytest.CaptureFixture[str], source: str, words: list[str]
) -> None:
    make_run(Path("runs/a"))
    lines_of(capsys, "ingest")
    more = [] if source == "folder" else ["--database", "runs/stats.db"]
    assert main(["runs", *words, *more]) == 0
    text = capsys.readouterr().out
    found = dict(line.split(None, 1) for line in text.splitlines())
    assert (found["name"], found["status"], found["agent_step"]) == ("a", "done", "20")
    assert (found["score"], found["reward"], found["reason"]) == ("3", "12.5", "enough")
    # maze is the mean of its two, all is the mean of maze and run
    assert (found["maze"], found["maze/small"], found["maze/large"]) == ("3", "2", "4")
    assert (found["run"], found["all"].split()[-1]) == ("9", "6")
    assert found["overview/reward"] == "12.5"
    assert "s ago" in found["last"] or "last heartbeat: 20" in text
    assert "  epoch 2       file://policy" in text
    assert "  epoch 2       maze/small  file://replay" in text


@pytest.mark.parametrize("source", ["folder", "database"])
def test_scripts_can_read_all_of_a_run_when_json_is_asked_for(
    capsys: pytest.CaptureFixture[str], source: str
) -> None:
    make_run(Path("runs/a"))
    lines_of(capsys, "ingest")
    more = [] if source == "folder" else ["--database", "runs/stats.db"]
    assert main(["runs", "show", "a", "--json", *more]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["metrics"] == {"overview/reward": 12.5, "eval_maze/score": 3.0}
    assert found["scores"] == {
        "epoch": 2,
        "suite": "",
        "score": 6.0,
        "categories": {"maze": 3.0, "run": 9.0},
        "simulations": {"maze/small": 2.0, "maze/large": 4.0, "run": 9.0},
    }
    place = {"epoch": 2, "agent_step": 20}
    assert found["policies"] == [{**place, "uri": "file://policy", "simulation": None}]
    assert found["replays"] == [{**place, "uri": "file://replay", "simulation": "maze/small"}]
    assert found["last_heartbeat"] > 1e9


@pytest.mark.parametrize("scores", [{}, {"a": 1.0}, {"a/b": 1.0, "c/d/e": 4.0, "a/f": 2.0}])
def test_means_are_those_of_the_evaluation_when_scores_are_shown(scores: dict[str, float]) -> None:
    found, wanted = Scores(1, "", scores).to_dict(), EvalRewardSummary(scores)
    assert found["categories"] == wanted.category_scores
    assert found["score"] == wanted.avg_category_score


def test_torch_is_not_loaded_when_a_run_is_shown() -> None:
    make_run(Path("runs/a"))
    code = (
        "import sys; from metta.cli.main import main\n"
        "assert main(['runs', 'show', 'a']) == 0; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)


def test_only_what_counts_is_shown_when_a_run_went_back(capsys: pytest.CaptureFixture[str]) -> None:
    make_run(Path("runs/a"))
    with EventLog("runs/a/events.jsonl") as log:
        client = StatsClient(log)
        where: dict[str, Any] = {"epoch": 3, "agent_step": 30}
        StatsLogger(event_log=log).log({"losses/gone": 1.0, "overview/reward": 99.0}, **where)
        client.create_run("a", from_epoch=1)
        where = {"epoch": 1, "agent_step": 10}
        StatsLogger(event_log=log).log({"losses/kept": 1.0}, **where)
        client.record_policy(epoch=1, agent_step=10, uri="file://again")
    lines_of(capsys, "ingest")
    shown = []
    for more in ([], ["--database", "runs/stats.db"]):
        assert main(["runs", "a", "--json", *more]) == 0
        found = json.loads(capsys.readouterr().out)
        shown.append([found[name] for name in ("scores", "policies", "replays", "metrics")])
    assert shown[0] == shown[1]
    assert shown[0][0] is None
    assert [policy["uri"] for policy in shown[0][1]] == ["file://again"]
    assert shown[0][3] == {"losses/kept": 1.0}


def test_the_other_runs_are_listed_when_an_event_of_one_is_from_a_far_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_run(Path("runs/a"))
    make_run(Path("runs/b"))
    log = Path("runs/a/events.jsonl")
    events = [json.loads(line) for line in log.read_text().splitlines()]
    for event in events:
        del event["check"]  # as older versions wrote them
    log.write_text("".join(json.dumps({**event, "time": 1e20}) + "\n" for event in events))
    lines_of(capsys, "ingest")
    assert main(["runs", "--database", "runs/stats.db"]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert {line.split()[0]: line.split()[-1] == "-" for line in lines} == {"a": True, "b": False}
    for more in ([], ["--database", "runs/stats.db"]):
        assert main(["runs", "a", *more]) == 0
        assert "last heartbeat: -, " in capsys.readouterr().out


def test_runs_of_a_database_are_listed_when_it_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    make_run(Path("elsewhere/a"))
    make_run(Path("elsewhere/b"), ended=False)
    assert main(["stats", "ingest", "elsewhere", "--database", "own.db"]) == 0
    capsys.readouterr()
    assert main(["runs", "--database", "own.db"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines] == ["run", "a", "b"]
    assert lines[1][2:6] == ["done", "20", "12.5", "3"]
    assert lines[2][2] == "running"
    assert main(["runs", "--database", "own.db", "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [run["path"] for run in found] == ["id-of-a", "id-of-b"]
    assert [vars(run) for run in summaries_from_database("own.db")] == found


def test_a_run_is_silent_when_it_was_not_heard_of_for_long(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(Path("runs/a"), ended=False)
    lines_of(capsys, "ingest")
    real = time.time
    for seconds, status in ((500, "running"), (700, "silent")):
        monkeypatch.setattr(time, "time", lambda later=seconds: real() + later)
        assert main(["runs", "a", "--json", "--database", "runs/stats.db"]) == 0
        assert json.loads(capsys.readouterr().out)["status"] == status


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["show"], 2, "RUN is missing: metta runs show RUN"),
        (["a", "b"], 2, "'a' and 'b' are two runs"),
        (["show", "nobody"], 2, "there is no run 'nobody'"),
        (["show", "nobody", "--database", "runs/stats.db"], 1, "no run 'nobody' in the database"),
        (["--database", "absent.db"], 1, "there is no database 'absent.db'"),
    ],
)
def test_the_command_says_what_is_wrong_when_a_run_is_not_found(
    capsys: pytest.CaptureFixture[str], words: list[str], code: int, message: str
) -> None:
    make_run(Path("runs/a"))
    lines_of(capsys, "ingest")
    assert main(["runs", *words]) == code
    assert message in capsys.readouterr().err


def test_what_can_be_read_is_shown_when_a_line_of_the_log_is_bad(
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_run(Path("runs/a"))
    with Path("runs/a/events.jsonl").open("a") as log:
        log.write("half a li\n")
    assert main(["runs", "show", "a", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["status"] == "broken"
    assert found["metrics"]["overview/reward"] == 12.5
