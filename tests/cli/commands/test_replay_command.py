"""`metta replay`: what is found, what is shown, and what is written."""

import io
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metta.agent.factory import make_policy
from metta.cli import terminal_player
from metta.cli.main import main
from metta.curriculum import Task
from metta.envs.factory import make_vec_env
from metta.envs.toy import CorridorEnv
from metta.replays.file import load_replay, replay_name, save_replay
from metta.replays.playback import text_of
from metta.replays.recording import record_episode
from metta.replays.replay import Replay
from metta.store.checkpoints.files import write_checkpoint
from metta.train.settings import apply_settings
from metta.train.train_config import AgentConfig, TrainingConfig


def recorded(task: Any, **about: Any) -> Replay:
    envs = make_vec_env(task)
    envs.close()
    spaces = envs.observation_space, envs.action_space
    policy = make_policy(*spaces, AgentConfig(hidden_size=8), seed=1)
    return record_episode(policy, task, **about)


@pytest.fixture(scope="module")
def grid() -> Replay:
    return recorded(Task("grid/gather", {"horizon": 6}), simulation="training/gather", epoch=2)


@pytest.fixture(scope="module")
def cart() -> Replay:
    return recorded("CartPole-v1", simulation="classic/cart", epoch=2, max_steps=4)


@pytest.fixture
def runs(tmp_path: Path, grid: Replay, cart: Replay) -> Path:
    """A folder of runs: `a` has replays of two epochs, `b` has none, `c` has its own folder."""
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        apply_settings(TrainingConfig(), {}).to_yaml(tmp_path / name / "config.yaml")
    corridor = recorded(CorridorEnv, simulation="training/gather", epoch=10, max_steps=3)
    for replay in (grid, cart, corridor):
        epoch = replay.info.epoch or 0
        name = replay_name(epoch, replay.info.simulation)
        save_replay(tmp_path / "a" / "replays" / name, replay)
    save_replay(tmp_path / "c" / "mine" / "x.replay", grid)
    about = {"replay_dir": "mine"}
    (tmp_path / "c" / "run.json").write_text(json.dumps(about))
    return tmp_path


class Said:
    def __init__(self, status: int, out: str, error: str) -> None:
        self.status, self.out, self.error = status, out, error


@pytest.fixture
def replay(runs: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*words: Any) -> Said:
        status = main(["replay", *map(str, words), "--runs", str(runs)])
        captured = capsys.readouterr()
        return Said(status, captured.out, captured.err)

    return call


def test_every_moment_is_printed_when_the_output_is_no_terminal(
    replay: Any, runs: Path, grid: Replay
) -> None:
    said = replay("c")
    assert said.status == 0
    lines = said.out.splitlines()
    assert lines[0].startswith("training/gather, epoch 2, 4 agents, 6 steps, return ")
    assert [line for line in lines if line.startswith("--- ")][3].startswith("--- step 3 of 6")
    for moment in range(grid.num_moments):
        assert text_of(grid, moment, color=False) in said.out
    assert "\x1b" not in said.out


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([], "training/gather, epoch 10,"),
        (["--simulation", "classic/cart"], "classic/cart, epoch 2,"),
        (["--epoch", "2", "--simulation", "training/gather"], "training/gather, epoch 2,"),
        (["--epoch", "2"], "classic/cart, epoch 2,"),
    ],
)
def test_the_newest_is_played_when_a_run_has_many(
    replay: Any, words: list[str], found: str
) -> None:
    assert replay("a", *words).out.startswith(found)


def test_files_folders_and_uris_are_understood_when_they_name_a_replay(
    replay: Any, runs: Path
) -> None:
    path = runs / "c" / "mine" / "x.replay"
    expected = replay("c").out
    for uri in (path, path.as_uri(), path.parent, runs / "c"):
        assert replay(uri).out == expected


def test_a_table_is_printed_when_a_list_is_wanted(replay: Any) -> None:
    rows = [line.split() for line in replay("a", "--list").out.splitlines()]
    assert rows[0][:5] == ["epoch", "simulation", "kind", "steps", "return"]
    assert [row[:4] for row in rows[1:]] == [
        ["2", "classic/cart", "frames", "4"],
        ["2", "training/gather", "grid", "6"],
        ["10", "training/gather", "observations", "3"],
    ]
    assert len(replay("a", "--list", "--simulation", "classic/cart").out.splitlines()) == 2


def test_only_some_moments_are_played_when_steps_say_so(replay: Any) -> None:
    for steps, count in (("2:4", 2), (":3", 3), ("5:", 2), ("-1:", 1)):
        assert replay("c", f"--steps={steps}").out.count("--- step") == count


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["nothing"], "there is no run 'nothing'"),
        (["b"], "there are no replays in .*replay_interval=N"),
        (["missing.replay"], "cannot be read"),
        (["file:///nowhere/missing.replay"], "cannot be read"),
        (["a", "--simulation", "x/y"], "no replay of the simulation 'x/y'; there are classic/cart"),
        (["a", "--epoch", "3"], r"no replay of epoch 3; there are \[2, 10\]"),
        (["c", "--steps", "9:10"], "leaves nothing of moments 0 to 6"),
        (["c", "--steps", "3"], "write A:B"),
        (["c", "--steps", "a:b"], "write two numbers"),
        (["c", "--speed", "0"], "--speed 0"),
        (["c", "--out", "x.webm"], r"must end in \.mp4"),
    ],
)
def test_the_error_says_what_to_do_when_a_wish_cannot_be_met(
    replay: Any, words: list[str], error: str
) -> None:
    said = replay(*words)
    assert said.status in (1, 2)
    assert said.out == ""
    assert re.search(error, said.error), said.error


def test_the_way_to_see_images_is_told_when_there_is_no_terminal(replay: Any) -> None:
    said = replay("a", "--simulation", "classic/cart")
    assert said.status == 0
    assert "-o FILE.mp4" in said.out


@pytest.mark.parametrize("ending", ["mp4", "gif"])
def test_a_file_is_written_when_one_is_asked_for(replay: Any, runs: Path, ending: str) -> None:
    target = runs / f"cart.{ending}"
    said = replay(
        "a", "--simulation", "classic/cart", "--out", target, "--fps", "5", "--steps", ":3"
    )
    assert said.status == 0
    assert said.out.startswith(f"{target}: 3 moments, ")
    assert {"gif": b"GIF89a", "mp4": b"ftyp"}[ending] in target.read_bytes()[:8]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def played(monkeypatch: pytest.MonkeyPatch, *words: Any) -> str:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(terminal_player.time, "sleep", lambda seconds: None)
    assert main(["replay", *map(str, words)]) == 0
    return terminal.getvalue()


def test_moments_are_drawn_over_each_other_when_there_is_a_terminal(
    runs: Path, grid: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = played(monkeypatch, runs / "c" / "mine" / "x.replay")
    drawings = shown.split("\x1b[13F\x1b[J")  # twelve rows, and a caption
    assert len(drawings) == grid.num_moments
    for moment, drawing in enumerate(drawings):
        assert text_of(grid, moment, color=True) in drawing
    plain = played(monkeypatch, runs / "c" / "mine" / "x.replay", "--no-color")
    assert text_of(grid, 3, color=False) in plain


@pytest.mark.parametrize("color", [True, False])
def test_lines_are_cut_when_the_terminal_is_narrow(
    runs: Path, grid: Replay, monkeypatch: pytest.MonkeyPatch, color: bool
) -> None:
    monkeypatch.setenv("COLUMNS", "7")
    words = [] if color else ["--no-color"]
    shown = played(monkeypatch, runs / "c" / "mine" / "x.replay", *words)
    drawings = shown.partition("\n")[2].split("\x1b[13F\x1b[J")
    assert len(drawings) == grid.num_moments
    for moment, drawing in enumerate(drawings):
        *rows, caption = re.sub(r"\x1b\[[0-9;]*m", "", drawing).splitlines()
        assert rows == [row[:7] for row in text_of(grid, moment, color=False).splitlines()]
        assert len(caption) < 7
        whole = text_of(grid, moment, color=True)
        assert drawing.count("\x1b[") == (whole.count("\x1b[") if color else 0)


@pytest.mark.parametrize(
    ("line", "cut"),
    [
        ("abc", "abc"),
        ("abcd", "abc"),
        ("\x1b[31mab\x1b[32mcd\x1b[0m", "\x1b[31mab\x1b[32mc\x1b[0m"),
        ("值值a", "值"),
        ("abe\u0301f\u0301", "abe\u0301"),
        ("", ""),
    ],
)
def test_a_line_takes_no_more_columns_when_it_is_cut(line: str, cut: str) -> None:
    assert terminal_player._cut(line, 3) == cut


def test_images_become_blocks_that_fit_when_there_is_a_terminal(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "12")
    words = ["a", "--simulation", "classic/cart", "--runs", runs, "--steps", ":1"]
    lines = played(monkeypatch, *words).splitlines()
    assert len(lines) <= 13
    assert max(line.count("▀") for line in lines) == 30


def test_a_file_from_strangers_steers_no_terminal_when_it_is_listed_or_played(
    runs: Path, replay: Any
) -> None:
    evil = recorded(Task("grid/gather", {"horizon": 2}), simulation="a/\x1b]0;evil\x07", epoch=1)
    save_replay(runs / "evil" / "evil.replay", evil)
    for words in ([], ["--list"]):
        assert "\x1b" not in replay(runs / "evil", *words).out


def test_replays_are_written_when_eval_is_asked_for_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    envs = make_vec_env("CartPole-v1")
    envs.close()
    spaces = envs.observation_space, envs.action_space
    policy = make_policy(*spaces, AgentConfig(hidden_size=8), seed=1)
    run = tmp_path / "a"
    run.mkdir()
    settings = {"env": "CartPole-v1", "env_kwargs": {"max_episode_steps": 3}}
    apply_settings(TrainingConfig(), settings).to_yaml(run / "config.yaml")
    about = {"epoch": 7, "agent_step": 70, "agent": {"hidden_size": 8}}
    write_checkpoint(run / "checkpoints", {}, policy, about)
    words = ["--episodes", "2", "--runs", str(tmp_path), "--json", str(tmp_path / "all.json")]
    one, two = tmp_path / "one", tmp_path / "two"
    assert main(["eval", "a:latest", *words, "--replays", str(one)]) == 0
    path = one / "epoch_000007-training-CartPole-v1.replay"
    assert f"replay of a:latest: {path}" in capsys.readouterr().out
    told = json.loads((tmp_path / "all.json").read_text())["policies"][0]
    assert told["replays"] == {"training/CartPole-v1": str(path)}
    info = load_replay(path).info
    assert (info.num_steps, info.ended, info.agent_step) == (3, "truncated", 70)
    assert np.isclose(info.mean_return, told["episodes"]["training/CartPole-v1"]["returns"][0])
    assert main(["eval", "a:latest", "a:v7", *words, "--replays", str(two)]) == 0
    assert sorted(file.parent.name for file in two.rglob("*.replay")) == ["policy_1", "policy_2"]


def test_the_command_is_told_when_a_run_names_a_folder_outside_of_itself(
    replay: Any, runs: Path, grid: Replay
) -> None:
    outside = runs / "out side"
    save_replay(outside / "x.replay", grid)
    (runs / "c" / "run.json").write_text(json.dumps({"replay_dir": str(outside)}))
    said = replay("c")
    assert said.status == 2
    command = shlex.join(["metta", "replay", str(outside)])
    assert f"only if you name it: {command}" in said.error
    assert replay(*shlex.split(command)[2:]).status == 0


def test_a_link_is_left_out_when_replays_are_listed(replay: Any, runs: Path, grid: Replay) -> None:
    save_replay(runs / "secret.replay", grid)
    (runs / "b" / "replays").mkdir()
    (runs / "b" / "replays" / "x.replay").symlink_to(runs / "secret.replay")
    assert "there are no replays" in replay("b").error
