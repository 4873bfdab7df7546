"""`metta`, as it is typed."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from faults.zygote import Zygote
from metta import __version__
from metta.agent.factory import make_policy
from metta.cli.main import COMMANDS, main
from metta.envs.toy import CorridorEnv
from metta.errors import ConfigError, EnvError, MissingExtraError, NonFiniteError
from metta.store.policies.file import load_weights
from metta.train.train_config import AgentConfig, TrainingConfig
from tests.children import ended, start_metta

TINY = ["n_steps=16", "n_envs=2", "n_epochs=1", "hidden_size=8", "final_replay=false"]
PNG = b"\x89PNG\r\n\x1a\n"


def only_run(folder: Path) -> Path:
    (run,) = folder.iterdir()
    return run


def saved_policy(run: Path) -> Path:
    """The policy of the newest checkpoint."""
    return sorted(run.glob("checkpoints/*/policy.safetensors"))[-1]


def test_everything_is_saved_when_a_run_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", "cartpole", *TINY, "total_timesteps=64", "--eval-episodes", "2"]
    assert main([*arguments, "final_replay=true", "--output", str(tmp_path)]) == 0
    run = only_run(tmp_path)
    names = {path.name for path in run.iterdir()}
    assert {"checkpoints", "config.yaml", "provenance.json", "metrics.csv"} <= names
    assert (run / "learning_curve.png").read_bytes().startswith(PNG)
    output = capsys.readouterr()
    assert "training CartPole-v1 with the preset cartpole for 64 steps" in output.out
    assert "fresh episodes" in output.out
    assert str(run) in output.out
    assert output.err == "metta: cpu, 1 thread, c actor, eager update, 1 group, torch.float32\n"
    config = TrainingConfig.from_yaml(run / "config.yaml")
    assert config.trainer.rollout.horizon == 16
    # the preset of CartPole lies under the settings
    assert config.trainer.ppo.gamma == 0.98
    settings = json.loads((run / "provenance.json").read_text())["settings"]
    assert settings["trainer.ppo.gamma"]["origin"] == "preset cartpole"
    assert settings["trainer.evaluation.eval_episodes"]["origin"] == "command line"


def test_the_policy_can_be_read_back_when_a_run_was_saved(tmp_path: Path) -> None:
    import gymnasium

    arguments = ["train", "cartpole", *TINY, "total_timesteps=32", "--eval-episodes", "0"]
    assert main([*arguments, "--output", str(tmp_path)]) == 0
    env = gymnasium.make("CartPole-v1")
    agent = AgentConfig(hidden_size=8)
    policy = make_policy(env.observation_space, env.action_space, agent)
    metadata = load_weights(saved_policy(only_run(tmp_path)), policy)
    assert metadata["agent_step"] == 32


def test_the_default_environment_is_used_when_only_settings_are_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", "total_timesteps=128", *TINY, "--eval-episodes", "0"]
    assert main([*arguments, "--output", str(tmp_path)]) == 0
    assert "training grid/gather with the preset grid for 128 steps" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "CartPole-v1", "learnig_rate=1"], "ConfigError: unknown setting 'learnig_rate'"),
        (["train", "CartPole-v1", "gamma=2"], "ConfigError: trainer.ppo.gamma"),
        (["train", "CartPole-v1", "fast"], "'fast' is neither a setting (NAME=VALUE"),
        (["train", "CartPole-v1", "=3"], "'=3' is not a setting"),
        (["train", "CartPole-v1", "n_steps=x"], "ConfigError: trainer.rollout.horizon"),
        (
            ["train", "CartPool-v1"],
            "trainer.curriculum.env (command line): gymnasium has no environment 'CartPool-v1'",
        ),
        (["train", "no_such_module:World-v0"], "does not find the module 'no_such_module'"),
        (
            ["train", "suite=gridd"],
            "trainer.evaluation.suite (command line): there is no suite 'gridd'",
        ),
        (["train", "carpole"], "ConfigError: unknown preset 'carpole'; did you mean 'cartpole'?"),
        (["train", "none.yaml"], "ConfigError: none.yaml: cannot be read"),
        (["train", "--eval-episodes", "few"], "trainer.evaluation.eval_episodes (command line)"),
        (["train", "--run", "a/b"], "--run 'a/b' is not a name of a file or folder"),
        (["train", "CartPole-v1", "batch_size=7"], "minibatch_size=7 does not divide"),
        (
            ["train", "CartPole-v1", "device=banana"],
            "trainer.device (command line): device='banana' cannot",
        ),
    ],
)
def test_an_error_is_one_message_when_the_user_can_mend_it(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--output", str(tmp_path / "runs")]) == 2
    output = capsys.readouterr()
    assert output.err.startswith("metta: ")
    assert message in output.err
    assert "Traceback" not in output.err
    assert not (tmp_path / "runs").exists()


def test_an_output_is_refused_before_training_when_it_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for output in (tmp_path / "file", tmp_path / "file" / "runs"):
        assert main(["train", "total_timesteps=1000000", "--output", str(output)]) == 2
        shown = capsys.readouterr()
        assert "choose another one" in shown.err
        assert "training" not in shown.out


def test_a_wrong_option_exits_with_two_when_it_is_unknown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["train", "--outputt", "x"])
    assert caught.value.code == 2
    assert "unrecognized arguments" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["--help"], "train a policy, on the grid world or any environment"),
        (["train", "--help"], "NAME=VALUE"),
        (["--version"], f"metta {__version__}"),
    ],
)
def test_help_is_printed_when_it_is_asked_for(
    arguments: list[str], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 0
    assert shown in capsys.readouterr().out


def test_help_is_printed_when_nothing_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "usage: metta" in capsys.readouterr().out


def test_the_run_is_saved_without_a_curve_when_matplotlib_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    arguments = ["train", *TINY, "total_timesteps=32", "--eval-episodes", "0"]
    assert main([*arguments, "--output", str(tmp_path)]) == 0
    assert "no learning curve: " in capsys.readouterr().out
    assert saved_policy(only_run(tmp_path)).is_file()


def test_a_bug_keeps_its_traceback_when_it_is_not_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> int:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("metta.cli.training.train", broken)
    with pytest.raises(ZeroDivisionError):
        main(["train", "--output", str(tmp_path)])


def test_what_was_learned_is_saved_when_the_user_interrupts(zygote: Zygote, tmp_path: Path) -> None:
    """Ctrl-C in the middle of a run that would take hours."""
    runs = tmp_path / "runs"
    words = ["train", "CartPole-v1", *TINY, "total_timesteps=100000000", "--output", str(runs)]
    child = start_metta(zygote, words, tmp_path)
    deadline = time.monotonic() + 60.0
    while not any(b'"metrics"' in path.read_bytes() for path in runs.glob("*/events.jsonl")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    child.kill(signal.SIGINT)
    code, out, err = ended(child, tmp_path)
    assert code == 130, err
    assert "SIGINT was received" in out
    assert "Traceback" not in err
    run = only_run(runs)
    assert saved_policy(run).is_file()
    assert (run / "learning_curve.png").read_bytes().startswith(PNG)


def test_an_interrupt_is_reported_when_it_comes_before_training(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("metta.cli.training.train", interrupted)
    assert main(["train"]) == 130
    assert capsys.readouterr().err == "metta: interrupted\n"


def test_the_toy_world_is_no_preset_when_only_its_class_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", CorridorEnv.__name__, "--output", str(tmp_path)]) == 2
    assert "unknown preset 'CorridorEnv'" in capsys.readouterr().err


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """What `metta train` would train, without training it."""
    calls: list[dict] = []

    def train(**arguments: object) -> int:
        calls.append(arguments)
        return 0

    monkeypatch.setattr("metta.cli.training.train", train)
    return calls


def test_layers_and_options_mix_when_words_stand_between_them(
    tmp_path: Path, trained: list[dict]
) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("gamma: 0.5\nlr: 1e-3\n")
    arguments = ["train", "--run", "one", "acrobot", "--trainer.ppo.clip-coef", "0.1", str(file)]
    arguments += ["--eval-episodes", "3", "--agent.hidden-size=8", "lr=2e-3", "--output", "out"]
    assert main(arguments) == 0
    (call,) = trained
    config = call["resolved"].config
    assert (config.env, config.trainer.ppo.gamma) == ("Acrobot-v1", 0.5)
    assert (config.trainer.ppo.clip_coef, config.agent.hidden_size) == (0.1, 8)
    assert config.trainer.optimizer.learning_rate == 2e-3
    assert config.trainer.evaluation.eval_episodes == 3
    assert (call["run"], call["output"]) == ("one", Path("out"))


@pytest.mark.parametrize(
    ("words", "env", "gamma"),
    [
        ([], "grid/gather", 0.98),
        (["seed=3"], "grid/gather", 0.98),
        (["pendulum"], "Pendulum-v1", 0.9),
        (["Pendulum-v1"], "Pendulum-v1", 0.99),
        (["MountainCar-v0"], "MountainCar-v0", 0.99),
        (["env=Acrobot-v1"], "Acrobot-v1", 0.99),
        (["gymnasium.envs.classic_control:CartPole-v1"], "CartPole-v1", 0.99),
    ],
)
def test_the_base_is_the_expected_one_when_words_name_it(
    words: list[str], env: str, gamma: float, trained: list[dict]
) -> None:
    assert main(["train", *words]) == 0
    config = trained[0]["resolved"].config
    assert config.env.endswith(env)
    assert config.trainer.ppo.gamma == gamma


def test_no_preset_lies_below_when_only_a_file_is_named(
    tmp_path: Path, trained: list[dict]
) -> None:
    (tmp_path / "my.yaml").write_text("seed: 5")
    assert main(["train", str(tmp_path / "my.yaml")]) == 0
    config = trained[0]["resolved"].config
    assert (config.trainer.seed, config.trainer.ppo.gamma) == (5, 0.99)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--learning-rat", "1"], "name=value; did you mean 'learning_rate'?"),
        (["train", "--lr"], "--lr needs a value, e.g. --lr 1 or --lr=1"),
        (["train", "--trainer.ppo.gamma"], "--trainer.ppo.gamma needs a value"),
        (["train", "--trainer.ppo.gamma", "--run", "x"], "--trainer.ppo.gamma needs a value"),
        (["presets", "extra"], "unrecognized arguments: extra"),
        (["fly"], "there is no command 'fly'"),
        (["completion", "tcsh"], "invalid choice: 'tcsh'"),
    ],
)
def test_usage_is_shown_when_arguments_are_wrong(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigError("wrong"), 2),
        (MissingExtraError("wandb", "wandb", "logging"), 2),
        (EnvError("died"), 1),
        (NonFiniteError("nan"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_the_exit_code_tells_what_happened_when_training_ends(
    error: BaseException, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(**_: object) -> int:
        raise error

    monkeypatch.setattr("metta.cli.training.train", failing)
    assert main(["train"]) == status


def test_the_exit_code_is_143_when_sigterm_ends_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def terminated(**_: object) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("the signal came before this line")

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("metta.cli.training.train", terminated)
    assert main(["train"]) == 143
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_exit_codes_are_documented_when_help_is_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main([])
    shown = " ".join(capsys.readouterr().out.split())
    for code in (
        "0 done",
        "1 failed",
        "2 wrong usage",
        "130 stopped by Ctrl-C",
        "143 stopped by SIG",
    ):
        assert code in shown


def test_every_command_has_a_parser_and_a_run_when_it_is_listed() -> None:
    for name in COMMANDS:
        loaded = importlib.import_module(f"metta.cli.commands.{name}")
        assert callable(loaded.configure)
        assert callable(loaded.run)


def test_nothing_breaks_when_the_reader_of_the_output_leaves() -> None:
    command = (
        f"{sys.executable} -m metta.cli.main config --origins | head -1; echo ${{PIPESTATUS[0]}}"
    )
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "0"
    assert result.stderr == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["presets"],
        ["config", "--origins"],
        ["config", "--help-for", "ppo"],
        ["completion", "bash"],
    ],
)
def test_torch_and_gymnasium_stay_unloaded_when_no_run_is_begun(arguments: list[str]) -> None:
    light = ["torch", "gymnasium", "rich", "numpy"]
    if arguments == ["--help"]:
        light += ["pydantic", "yaml"]
    code = (
        "import sys\nfrom metta.cli.main import main\n"
        f"try: main({arguments})\nexcept SystemExit: pass\n"
        f"print([name for name in {light} if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[-1] == "[]"


def test_a_warning_is_one_plain_line_when_a_command_gives_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import warnings

    from metta.cli.commands import presets as presets_command
    from metta.errors import MettaWarning

    def warn(options: object) -> int:
        warnings.warn("the disk is full", MettaWarning, stacklevel=1)
        warnings.warn("not ours", UserWarning, stacklevel=1)
        return 0

    monkeypatch.setattr(presets_command, "run", warn)
    shown = warnings.showwarning
    with warnings.catch_warnings(record=True) as others:
        warnings.simplefilter("always")
        assert main(["presets"]) == 0
    assert capsys.readouterr().err == "metta: warning: the disk is full\n"
    assert [str(other.message) for other in others] == ["not ours"]
    assert warnings.showwarning is shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tran", "cartpole"], "there is no command 'tran'; did you mean 'train'?"),
        (["train", "cartpole", "--clip-coff", "1"], "did you mean 'clip_coef'?"),
    ],
)
def test_the_nearest_spelling_is_named_when_a_word_is_misspelt(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_one_line_explains_when_a_run_cannot_begin(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resume"]) == 2
    assert "RUN is missing" in capsys.readouterr().err
    assert main(["train", "cartpole", "--output", "/proc/x", *TINY]) == 2
    assert "--runs '/proc/x' cannot be" in capsys.readouterr().err
