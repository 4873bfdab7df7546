"""Completion as a shell does it: the script is run, and asked."""

import subprocess
from pathlib import Path

import pytest

from metta.cli.commands.completion import script
from metta.cli.main import COMMANDS
from metta.train.parsing.schema import leaves_of
from metta.train.presets import PRESETS
from metta.train.train_config import TrainingConfig


def complete(folder: Path, *words: str) -> list[str]:
    """What bash proposes for the last of these words."""
    quoted = " ".join(f"'{word}'" for word in words)
    code = f'COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _metta; printf "%s\\n" "${{COMPREPLY[@]}}"'
    result = subprocess.run(
        ["bash", "--norc", "-c", f"{script('bash')}\n{code}"],
        cwd=folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert result.stderr == ""
    return sorted(result.stdout.split())


@pytest.mark.parametrize(
    ("words", "proposals"),
    [
        (["metta", "tr"], ["train"]),
        (["metta", "co"], ["compare", "completion", "config", "convert"]),
        (["metta", "completion", ""], ["--help", "-h", "bash", "fish", "zsh"]),
        (["metta", "train", "--o"], ["--out", "--output"]),
        (["metta", "config", "--ex"], ["--explain"]),
        (["metta", "train", "cart"], ["cartpole"]),
        (["metta", "train", "my"], ["my.yaml", "my_folder/", "my_other.yml"]),
        (["metta", "train", "cartpole", "trainer.ppo.gam"], ["trainer.ppo.gamma="]),
        (["metta", "config", "agent.s"], ["agent.share_encoder=", "agent.squash=", "agent.std="]),
        (["metta", "presets", "trainer."], []),
    ],
)
def test_bash_proposes_what_fits_when_a_word_is_begun(
    tmp_path: Path, words: list[str], proposals: list[str]
) -> None:
    for name in ("my.yaml", "my_other.yml", "my.txt"):
        (tmp_path / name).touch()
    (tmp_path / "my_folder").mkdir()
    assert complete(tmp_path, *words) == proposals


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_name_is_in_the_script_when_it_is_made(shell: str) -> None:
    text = script(shell)
    for name in [*COMMANDS, *PRESETS, *leaves_of(TrainingConfig)]:
        assert name in text
    for option in ("explain", "dry-run", "origins"):
        assert option in text
