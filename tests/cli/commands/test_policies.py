import json
import shlex
import warnings
from pathlib import Path
from typing import Any

import pytest

from metta.agent.factory import make_policy
from metta.cli.main import main
from metta.cli.tables import shown_bytes, table
from metta.envs.toy import CorridorEnv
from metta.errors import MettaWarning
from metta.store.checkpoints.files import write_checkpoint
from metta.store.policy_store import PolicyStore, spaces_of
from metta.train.train_config import AgentConfig, TrainingConfig
from metta.untrusted.text import printable

POLICY = make_policy(*spaces_of(CorridorEnv), AgentConfig(hidden_size=4), seed=1)


def make_run(folder: Path, *scores: float | None, checkpoint_dir: Path | None = None) -> Path:
    """A run with a checkpoint per score."""
    folder.mkdir(parents=True)
    TrainingConfig().to_yaml(folder / "config.yaml")
    if checkpoint_dir is not None:
        (folder / "run.json").write_text(json.dumps({"checkpoint_dir": str(checkpoint_dir)}))
    for epoch, score in enumerate(scores, 1):
        about = {"epoch": epoch, "agent_step": 1000 * epoch, "score": score}
        write_checkpoint(checkpoint_dir or folder / "checkpoints", {}, POLICY, about)
    return folder


def policies(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert main(["policies", *words, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_line_is_shown_per_policy_when_all_runs_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "a", 1.0, 5.25, None)
    make_run(tmp_path / "b", 2.0)
    assert main(["policies", "--output", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["run", "version", "epoch", "steps", "score", "size", "uri"]
    uri = (tmp_path / "a" / "checkpoints" / "epoch_000002").as_uri()
    size = (tmp_path / "a/checkpoints/epoch_000002/policy.safetensors").stat().st_size
    wanted = ["a", "v2", "2", "2,000", "5.25", "best", *shown_bytes(size).split(), uri]
    assert lines[2].split() == wanted
    assert lines[3].split()[4:6] == ["-", "latest"]
    assert lines[4].split()[:7] == ["b", "v1", "1", "1,000", "2", "best", "latest"]
    assert len(lines) == 5


def test_one_run_is_listed_when_it_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "a", 1.0, 2.0)
    make_run(tmp_path / "b", 3.0)
    for name in ("a", str(tmp_path / "a")):
        found = policies(capsys, name, "--output", str(tmp_path))
        assert [(p["run"], p["version"], p["score"]) for p in found] == [
            ("a", "v1", 1.0),
            ("a", "v2", 2.0),
        ]
    assert [p["is_best"] for p in found] == [p["is_latest"] for p in found] == [False, True]
    assert found[0]["uri"] == (tmp_path / "a" / "checkpoints" / "epoch_000001").as_uri()


def test_policies_are_listed_when_a_folder_of_runs_or_of_files_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "runs" / "a", 1.0)
    PolicyStore(tmp_path / "files").save(POLICY, "mine", 7, 70, {"score": 3.0})
    (run,) = policies(capsys, str(tmp_path / "runs"))
    (checkpoint,) = policies(capsys, str(tmp_path / "runs" / "a" / "checkpoints"))
    (file,) = policies(capsys, str(tmp_path / "files"))
    assert run["uri"] == checkpoint["uri"]
    assert (run["run"], checkpoint["run"], file["run"]) == ("a", "checkpoints", "files")
    path = tmp_path / "files" / "mine_000007.safetensors"
    assert (file["uri"], file["bytes"]) == (path.as_uri(), path.stat().st_size)


def test_the_best_come_first_over_all_runs_when_the_top_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "a", 0.0, -3.0, None)
    make_run(tmp_path / "b", 2.0)
    found = policies(capsys, "--output", str(tmp_path), "--top", "3")
    assert [(p["run"], p["score"]) for p in found] == [("b", 2.0), ("a", 0.0), ("a", -3.0)]
    assert len(policies(capsys, "--output", str(tmp_path), "--top", "1")) == 1


def test_the_command_is_told_when_a_run_names_a_folder_outside_of_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, outside = str(tmp_path / "runs"), tmp_path / "el se"
    make_run(tmp_path / "runs" / "a", 1.0, checkpoint_dir=outside)
    make_run(tmp_path / "runs" / "b", 1.0)
    assert main(["policies", "a", "--output", output]) == 2
    command = shlex.join(["metta", "policies", str(outside)])
    assert f"only if you name it: {command}" in capsys.readouterr().err
    (found,) = policies(capsys, *shlex.split(command)[2:])
    assert found["uri"] == (outside / "epoch_000001").as_uri()
    with warnings.catch_warnings():
        warnings.simplefilter("always", MettaWarning)
        assert [policy["run"] for policy in policies(capsys, "--output", output)] == ["b"]


def test_a_folder_inside_of_the_run_is_listed_when_the_run_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "a", 1.0, checkpoint_dir=tmp_path / "a" / "mine")
    assert len(policies(capsys, "a", "--output", str(tmp_path))) == 1
    (run / "run.json").write_text(json.dumps({"checkpoint_dir": "mine"}))
    assert len(policies(capsys, "a", "--output", str(tmp_path))) == 1


@pytest.mark.parametrize("about", ["{", "[]", '"x"', '{"checkpoint_dir": 3}', '{"name": 5}', "\0"])
def test_a_run_is_refused_when_its_file_is_not_as_metta_writes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], about: str
) -> None:
    run = make_run(tmp_path / "a", 1.0)
    (run / "run.json").write_text(about)
    assert main(["policies", "a", "--output", str(tmp_path)]) == 2
    assert "run.json' cannot be used" in capsys.readouterr().err


def test_a_warning_tells_of_it_when_a_checkpoint_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "a", 1.0, 2.0)
    (run / "checkpoints" / "epoch_000002" / "manifest.json").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("always", MettaWarning)
        assert main(["policies", "a", "--output", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert "epoch_000001" in shown.out
    assert "epoch_000002' cannot be read; `metta inspect` shows why" in shown.err


def test_an_error_is_told_when_a_folder_is_a_link_to_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert main(["policies", str(tmp_path / "loop" / "x"), "--output", str(tmp_path)]) == 2
    make_run(tmp_path / "a", checkpoint_dir=tmp_path / "loop")
    assert main(["policies", "a", "--output", str(tmp_path)]) == 2
    assert "Symlink loop" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["--top", "2"]])
def test_that_is_said_when_there_are_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main(["policies", "--output", str(tmp_path), *words]) == 0
    assert capsys.readouterr().out.startswith("there are no policies")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing"], "there is no run 'nothing'"),
        (["--top", "0"], "--top 0; how many policies? Give 1 or more"),
        (["--top", "-1"], "--top -1; how many policies?"),
    ],
)
def test_the_exit_code_is_2_when_the_command_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["policies", "--output", str(tmp_path), *words]) == 2
    assert message in capsys.readouterr().err


def test_columns_are_as_wide_as_their_widest_cell_when_they_are_shown() -> None:
    assert table([("a", "bb"), ("ccc", "d")]) == "a    bb\nccc  d"


def test_a_cell_steers_no_terminal_when_a_stranger_wrote_it() -> None:
    text = "\x1b]0;evil\x07\n\x9b\u202ea"
    assert printable(text) == r"\x1b]0;evil\x07\n\x9b\u202ea"
    assert printable("Größe 值 ▀") == "Größe 值 ▀"
    assert table([("name", "b"), ("\x1b[2J", "c")]) == "name     b\n\\x1b[2J  c"


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2_500_000, "2.5 MB"), (7e15, "7,000.0 TB")],
)
def test_sizes_have_a_fitting_unit_when_they_are_shown(count: float, shown: str) -> None:
    assert shown_bytes(count) == shown
