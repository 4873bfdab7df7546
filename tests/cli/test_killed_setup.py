"""Kills between any two writes of set-up, twice in a row: the run resumes with the plain command."""

import shutil
from pathlib import Path

import pytest

from faults.zygote import Zygote
from metta.cli.main import main
from metta.store.checkpoints.files import list_checkpoints
from metta.train.train_config import TrainingConfig
from tests.cli.killed_children import IN_A_WRITE, SET_UP, WORDS

NUM_WRITES = 3
"""`run.json`, `config.yaml` and `provenance.json`."""


def kill(zygote: Zygote, words: list[str], writes: int) -> None:
    child = zygote.start("tests.cli.killed_children:run_until", words=words, writes=writes)
    assert child.wait() == (SET_UP if writes == NUM_WRITES else IN_A_WRITE)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("runs")
    words = ["train", *WORDS, "total_timesteps=32", "--output", str(output), "--run", "whole"]
    assert main(words) == 0
    return output / "whole"


@pytest.mark.parametrize("first", range(NUM_WRITES + 1))
def test_a_run_resumes_after_two_kills_while_it_was_set_up_to_resume(
    first: int, whole: Path, zygote: Zygote, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for second in range(NUM_WRITES + 1):
        run = shutil.copytree(whole, tmp_path / f"{second}")
        kill(zygote, ["resume", str(run), "total_timesteps=64"], first)
        kill(zygote, ["resume", str(run), "total_timesteps=96"], second)
        wanted = TrainingConfig.from_yaml(run / "config.yaml").trainer.total_timesteps
        capsys.readouterr()
        assert main(["resume", str(run)]) == 0, (second, capsys.readouterr().err)
        assert "is not as metta wrote it" not in capsys.readouterr().err
        assert list_checkpoints(run / "checkpoints")[-1].agent_step == wanted


@pytest.mark.parametrize("writes", range(NUM_WRITES + 1))
def test_a_run_begins_after_two_kills_while_it_was_set_up(
    writes: int, zygote: Zygote, tmp_path: Path
) -> None:
    words = ["train", *WORDS, "--output", str(tmp_path), "--run", "first"]
    kill(zygote, [*words, "total_timesteps=96"], writes)
    kill(zygote, [*words, "total_timesteps=64"], writes)
    assert main([*words, "total_timesteps=32"]) == 0
    assert main(["resume", str(tmp_path / "first"), "total_timesteps=64"]) == 0
    assert list_checkpoints(tmp_path / "first" / "checkpoints")[-1].agent_step == 64


def test_an_edited_config_stays_refused_after_a_kill_before_it_was_replaced(
    zygote: Zygote, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", *WORDS, "--output", str(tmp_path), "--run", "first"]
    assert main([*words, "total_timesteps=32"]) == 0
    config = tmp_path / "first" / "config.yaml"
    config.write_text(config.read_text().replace("keep_last: 3", "keep_last: 1"))
    kill(zygote, [*words, "total_timesteps=64"], 1)
    assert main(["resume", str(tmp_path / "first")]) == 2
    assert "keep_last was 3, now 1" in capsys.readouterr().err
