"""`metta enjoy` (`metta.cli.terminal_player`), and each run's last replay (`metta.cli.final_replay`)."""

import sys
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from PIL import Image, ImageSequence

from metta.cli.main import main
from metta.envs.toy import CorridorEnv
from metta.replays.file import list_replays
from metta.rl.components.trainer import Trainer
from metta.train import TrainingConfig, apply_settings

TINY = ["num_envs=2", "n_steps=8", "n_epochs=1", "num_minibatches=1", "hidden_size=8",
        "total_timesteps=32", "verbose=False", "monitor_seconds=0"]  # fmt: skip


class WindowEnv(CorridorEnv):
    """Counts the windows that it was asked for."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["human"], "render_fps": 1000}
    windows: ClassVar[list[int | None]] = []

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode

    def reset(self, **more: Any) -> Any:
        if self.render_mode == "human":
            self.windows.append(more.get("seed"))
        return super().reset(**more)


class BrokenEnv(CorridorEnv):
    """Promises pictures, and cannot even be made a second time with them."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}
    num_steps: ClassVar[int] = 0

    def reset(self, **more: Any) -> Any:
        if self.spec is not None and BrokenEnv.num_steps >= 1000:
            raise RuntimeError("no more episodes")
        return super().reset(**more)


class SmallEnv(CorridorEnv):
    """Draws 16 x 20 pixels."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode

    def render(self) -> Any:
        return np.full((20, 16, 3), 100, np.uint8)


class TextEnv(CorridorEnv):
    """Draws text."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"]}

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode

    def render(self) -> Any:
        return "you are here"


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Any:
    made = {"Window-v0": WindowEnv, "Broken-v0": BrokenEnv, "Small-v0": SmallEnv,
            "Plain-v0": CorridorEnv, "Text-v0": TextEnv}  # fmt: skip
    for name, env in made.items():
        gymnasium.register(name, env)
    yield
    for name in made:
        gymnasium.registry.pop(name)


def train(runs: Path, env: str, *words: str, name: str = "one") -> None:
    given = [env, *TINY, "eval_episodes=0", *words]
    assert main(["train", *given, "--run", name, "--runs", str(runs)]) == 0


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of an environment that draws nothing."""
    runs = tmp_path_factory.mktemp("plain")
    train(runs, "Plain-v0", "final_replay=False")
    return runs


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of an environment that draws few pixels."""
    runs = tmp_path_factory.mktemp("small")
    train(runs, "Small-v0", "final_replay=False")
    return runs


@pytest.mark.parametrize("spelling", ["-o", "--out", "--output"])
def test_small_pictures_are_scaled_up_when_a_gif_is_written(
    tmp_path: Path, small: Path, spelling: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "small.gif"
    assert main(["enjoy", "one", "--runs", str(small), spelling, str(target)]) == 0
    with Image.open(target) as image:
        assert image.size == (256, 320)
    assert f"{target}: " in capsys.readouterr().out


def test_the_grid_world_is_shown_as_text_when_there_is_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path, "grid", "n_steps=4", "final_replay=False")
    capsys.readouterr()
    words = ["--max-steps", "2", "--episodes", "2", "--runs", str(tmp_path)]
    assert main(["enjoy", "one:latest", *words]) == 0
    shown = capsys.readouterr().out
    assert shown.count("--- step 2 of 2") == 2
    assert "#" in shown


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of an environment that draws text."""
    runs = tmp_path_factory.mktemp("grid")
    train(runs, "grid", "n_steps=4", "final_replay=False")
    return runs


def test_each_episode_has_the_next_seed_when_several_are_shown(
    grid: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown(*words: str) -> str:
        always = ["--max-steps", "4", "--no-color", "--runs", str(grid)]
        assert main(["enjoy", "one:latest", *words, *always]) == 0
        return capsys.readouterr().out

    assert shown("--seed", "3") != shown("--seed", "4")
    both = shown("--seed", "3", "--episodes", "2")
    assert both == shown("--seed", "3") + shown("--seed", "4")


def test_a_file_holds_the_episode_of_its_seed_when_one_is_given(
    tmp_path: Path, plain: Path
) -> None:
    def written(*words: str) -> str:
        target = tmp_path / "episode.txt"
        target.unlink(missing_ok=True)
        assert main(["enjoy", "one", "-o", str(target), *words, "--runs", str(plain)]) == 0
        return target.read_text()

    assert written("--seed", "3") == written("--seed", "3") != written("--seed", "4")
    sure = ["--greedy", "--max-steps", "5"]
    assert written(*sure, "--seed", "3") == written(*sure, "--seed", "4")


def test_steps_take_their_time_when_a_rate_is_given(tmp_path: Path, small: Path) -> None:
    def milliseconds(name: str, rate: str) -> int:
        target = tmp_path / name
        words = ["--max-steps", "4", "--fps", rate, "--runs", str(small)]
        assert main(["enjoy", "one", "-o", str(target), *words]) == 0
        with Image.open(target) as image:
            return sum(frame.info["duration"] for frame in ImageSequence.Iterator(image))

    assert milliseconds("slow.gif", "2") == 5 * milliseconds("FAST.GIF", "10")


def test_another_ending_is_asked_for_when_an_environment_draws_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path, "Text-v0", "final_replay=False")
    target = tmp_path / "text.gif"
    assert main(["enjoy", "one", "-o", str(target), "--runs", str(tmp_path)]) != 0
    assert "draws text; write it as .txt, not .gif" in capsys.readouterr().err


def test_an_environment_is_asked_for_when_a_run_was_given_an_object(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = apply_settings(TrainingConfig(), dict(word.split("=") for word in TINY))
    config = apply_settings(config, {"eval_episodes": 0, "final_replay": False})
    with Trainer(config, env=CorridorEnv, run_dir=tmp_path / "own") as trainer:
        trainer.train()
    words = ["enjoy", "own", "-o", str(tmp_path / "a.txt"), "--runs", str(tmp_path)]
    assert main(words) != 0
    assert "does not name its training task" in capsys.readouterr().err
    assert main([*words, "--env", "Plain-v0"]) == 0


def test_an_environment_is_asked_for_when_a_policy_is_in_no_run(
    tmp_path: Path, plain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (saved,) = (plain / "one" / "checkpoints").glob("*/policy*")
    alone = tmp_path / saved.name
    alone.write_bytes(saved.read_bytes())
    words = ["enjoy", str(alone), "-o", str(tmp_path / "a.txt"), "--runs", str(tmp_path)]
    assert main(words) != 0
    assert "does not name its training task" in capsys.readouterr().err
    assert main([*words, "--env", "Plain-v0"]) == 0


@pytest.mark.skipif(sys.platform in ("darwin", "win32"), reason="there is always a display")
def test_a_window_opens_when_there_is_a_display(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path, "Window-v0", "final_replay=False")
    words = ["enjoy", str(tmp_path / "one"), "--episodes", "2", "--runs", str(tmp_path)]
    monkeypatch.setenv("DISPLAY", ":7")
    WindowEnv.windows.clear()
    assert main(words) == 0
    first = list(WindowEnv.windows)
    assert len(first) >= 2
    assert "2 episodes, returns " in capsys.readouterr().out
    WindowEnv.windows.clear()
    assert main([*words, "--seed", "9"]) == 0
    assert first != WindowEnv.windows
    WindowEnv.windows.clear()
    assert main([*words, "--terminal"]) == 1  # it has nothing else
    monkeypatch.delenv("DISPLAY")
    assert main(words) == 1
    assert not WindowEnv.windows
    assert "cannot be shown" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-o", "x.webm"], "must end in .mp4, .gif, .txt, .replay"),
        (["-o", "x.gif", "--episodes", "2"], "a file holds one episode"),
        (["--episodes", "0"], "--episodes 0"),
        (["--max-steps", "0"], "--max-steps 0"),
        (["--speed", "0"], "--speed 0"),
        (["-o", "."], "is a folder"),
        (["-o", "x.gif"], "it has neither the render mode rgb_array nor ansi"),
    ],
)
def test_one_line_explains_when_it_cannot_be_shown(
    plain: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["enjoy", "one", *words, "--runs", str(plain)]) in (1, 2)
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_observations_are_written_when_an_environment_draws_nothing(
    tmp_path: Path, plain: Path
) -> None:
    for name in ("a.txt", "a.replay"):
        words = ["-o", str(tmp_path / name), "--runs", str(plain)]
        assert main(["enjoy", "one", *words]) == 0
    assert "--- step 1" in (tmp_path / "a.txt").read_text()
    assert main(["replay", str(tmp_path / "a.replay")]) == 0


@pytest.mark.parametrize("env", ["Plain-v0", "Small-v0", "CartPole-v1"])
def test_one_replay_is_recorded_when_a_run_ends(
    tmp_path: Path, env: str, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path, env)
    ((path, info),) = list_replays(tmp_path / "one" / "replays")
    assert (info.epoch, info.agent_step, info.simulation) == (2, 32, f"training/{env}")
    assert f"metta replay {tmp_path / 'one'}" in capsys.readouterr().out
    written = path.stat().st_mtime_ns
    assert main(["resume", "one", "--runs", str(tmp_path)]) == 0
    assert [one.stat().st_mtime_ns for one, _ in list_replays(path.parent)] == [written]
    words = ["total_timesteps=64", "--runs", str(tmp_path)]
    assert main(["resume", "one", *words]) == 0
    assert [info.epoch for _, info in list_replays(path.parent)] == [2, 4]
    for name in ("one", "one:latest", str(tmp_path / "one" / "checkpoints" / "epoch_000004")):
        assert main(["replay", name, "--list", "--runs", str(tmp_path)]) == 0
    assert "-training-" in capsys.readouterr().out


def test_no_replay_is_recorded_when_it_is_switched_off(tmp_path: Path) -> None:
    train(tmp_path, "Plain-v0", "final_replay=False")
    assert list_replays(tmp_path / "one" / "replays") == []


def test_the_run_is_done_when_its_replay_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = Trainer.train

    def train_then_break(trainer: Trainer) -> Any:
        state = trained(trainer)
        monkeypatch.setattr(BrokenEnv, "num_steps", 1000)
        return state

    monkeypatch.setattr(Trainer, "train", train_then_break)
    train(tmp_path, "Broken-v0")
    shown = capsys.readouterr().out
    (line,) = [line for line in shown.splitlines() if "no replay" in line]
    assert line.startswith("no replay of the final policy: ")
    assert "no more episodes" in line
    assert "drew the learning curve" in shown


def test_the_weights_are_the_same_when_a_replay_is_recorded(tmp_path: Path) -> None:
    digests = []
    for name, setting in (("with", "final_replay=True"), ("without", "final_replay=False")):
        train(tmp_path, "CartPole-v1", setting, name=name)
        policy = next((tmp_path / name / "checkpoints").glob("*/policy.safetensors"))
        digests.append(policy.read_bytes())
    assert digests[0] == digests[1]


@pytest.mark.parametrize(
    ("words", "begin"),
    [
        (["MountainCar-v0"], "mountaincar_v0-seed1-"),
        (["env=grid/gather", "n_steps=4"], "grid_gather-seed1-"),
        (["cartpole"], "cartpole-seed1-"),
        (["MountainCar-v0", "experiment_name=mine"], "mine-seed1-"),
    ],
)
def test_a_run_is_named_after_its_environment_when_no_name_is_given(
    tmp_path: Path, words: list[str], begin: str
) -> None:
    given = [*words, *TINY, *[word for word in words[1:] if "=" in word]]
    settings = ["eval_episodes=0", "final_replay=False", "checkpoint_interval=0"]
    assert main(["train", *given, *settings, "-o", str(tmp_path)]) == 0
    (run,) = tmp_path.iterdir()
    assert run.name.startswith(begin)
