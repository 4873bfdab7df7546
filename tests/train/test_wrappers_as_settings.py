"""Wrappers as settings: how they are written, and what is refused before anything is made."""

import inspect
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from metta.envs import make_vec_env
from metta.errors import ConfigError
from metta.train import apply_settings
from metta.train.layers import resolve
from metta.train.train_config import TrainingConfig
from metta.train.wrappers import WRAPPERS, read_wrapper

STACK = ("FrameStack(stack_size=4, padding_type='reset')",)


def wrappers(**settings: Any) -> tuple[str, ...]:
    return apply_settings(TrainingConfig(), settings).trainer.curriculum.wrappers


@pytest.mark.parametrize(
    "written",
    [
        ["FrameStack(4)"],
        ["FrameStack(stack_size=4)"],
        ["FrameStackObservation(4)"],
        "FrameStack(4)",
        ({"name": "FrameStack", "stack_size": 4},),
        {"name": "FrameStack", "stack_size": 4},
    ],
)
def test_all_spellings_are_one_setting_when_they_mean_the_same(written: Any) -> None:
    assert wrappers(wrappers=written) == STACK
    assert wrappers(env={"wrappers": written}) == STACK
    assert wrappers(**{"env.wrappers": written}) == STACK


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("[FrameStack(4), ResizeObservation(84, 84)]", 2),
        ("FrameStack(4),ResizeObservation(84,84)", 2),
        ("[ResizeObservation(height=84, width=84), {name: FrameStack, stack_size: 4}]", 2),
        ("[FilterObservation(['a', 'b']), FlattenObservation]", 2),
        ("GrayscaleObservation(keep_dim=true)", 1),
        ("[]", 0),
    ],
)
def test_a_command_line_is_read_when_arguments_have_commas_and_brackets(
    text: str, count: int
) -> None:
    found = resolve(None, [], [f"env.wrappers={text}"]).config.trainer.curriculum.wrappers
    assert len(found) == count
    for entry in found:
        read_wrapper(entry)


def test_a_file_comes_back_equal_when_it_was_written(tmp_path: Path) -> None:
    written = tmp_path / "mine.yaml"
    written.write_text(
        "env:\n  id: Acrobot-v1\n  kwargs: {max_episode_steps: 9}\n  wrappers: [ResizeObservation(84, 60), "
        "{name: ClipReward, max_reward: 1}, 'ReshapeObservation([2, 8])']\n"
    )
    config = TrainingConfig.from_yaml(written)
    task = config.trainer.curriculum
    assert (task.env, task.env_kwargs) == ("Acrobot-v1", {"max_episode_steps": 9})
    assert task.wrappers == (
        "ResizeObservation(height=84, width=60)",
        "ClipReward(min_reward=None, max_reward=1.0)",
        "ReshapeObservation(shape=(2, 8))",
    )
    assert TrainingConfig.from_yaml(config.to_yaml(tmp_path / "again.yaml")) == config


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("FrameStck(4)", "did you mean 'FrameStack'"),
        ("Polish(4)", "there are FrameStack, ResizeObservation"),
        ("FrameStack", "FrameStack needs stack_size, a whole number of at least 1"),
        ("FrameStack(0)", "stack_size=0; allowed is a whole number of at least 1"),
        ("FrameStack(2.5)", r"stack_size=2\.5; allowed"),
        ("FrameStack(True)", "stack_size=True; allowed"),
        ("FrameStack(1, 2, 3)", "was given 3 arguments, it takes 2"),
        ("FrameStack(4, stack_size=4)", "was given stack_size twice"),
        ("FrameStack(size=4)", r"no argument 'size'.*FrameStack\(stack_size, padding_type='reset'\)"),
        ("FrameStack(4, 'mirror')", "'reset' or 'zero'"),
        ("StickyAction(1)", "from 0 to less than 1"),
        ("FrameStack(3000000000)", "stack_size=3000000000; allowed"),
        ("FrameStack(stack_size=4, stack_size=5)", "an argument is given twice"),
        ("ActionRepet(4)", "did you mean 'ActionRepeat'"),
        ("FilterObservation('a')", "a list of texts"),
        ("ReshapeObservation([])", "a list of whole numbers"),
        ("ScaleReward(1e999)", "allowed is a number"),
        ("NormalizeReward", "normalize_returns=true"),
        ("NormalizeObservation()", "normalize_observations=true"),
        ("FrameStack(", "cannot be read"),
        ("FrameStack(__import__('os').getpid())", "is not a plain value"),
        ("os.system('true')", "cannot be read"),
        ("FrameStack(**{'stack_size': 4})", "cannot be read"),
        ("(" * 900, "cannot be read"),
        ("FrameStack(" + "4" * 2000 + ")", "too long"),
        ("", "cannot be read"),
        (7, "cannot be read"),
        ({"stack_size": 4}, "wrapper 1: found"),
        ({"name": "FrameStack", "size": 3}, "no argument 'size'"),
    ],
)  # fmt: skip
def test_a_wrapper_is_refused_when_it_cannot_be_meant(entry: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s)trainer.curriculum.wrappers.*{says}"):
        wrappers(wrappers=[entry])


def test_every_problem_is_named_when_several_wrappers_are_wrong() -> None:
    with pytest.raises(ConfigError, match=r"(?s)wrapper 1: .*FrameStack.*wrapper 3: .*TimeLimit"):
        wrappers(wrappers=["FrameStack(0)", "SignReward", "TimeLimit()"])


def test_the_list_itself_is_refused_when_it_is_none() -> None:
    with pytest.raises(ConfigError, match=r"trainer\.curriculum\.wrappers"):
        wrappers(wrappers=5)


@pytest.mark.parametrize("entry", ["StickyAction(0)", "DelayObservation(0)", "FrameStack(1)"])
def test_the_least_is_taken_when_it_is_given(entry: str) -> None:
    with closing(make_vec_env("CartPole-v1", wrappers=wrappers(wrappers=[entry]))) as envs:
        assert envs.num_rows == 1


def test_defaults_are_those_of_gymnasium_when_it_makes_the_wrapper() -> None:
    compared = 0
    for wrapper in WRAPPERS.values():
        if wrapper.maker is not None:
            theirs = inspect.signature(getattr(gymnasium.wrappers, wrapper.maker)).parameters
            for argument in wrapper.arguments:
                default = theirs[argument.name].default
                if default is not inspect.Parameter.empty:
                    assert argument.default == default, (wrapper.maker, argument.name)
                    compared += 1
    assert compared >= 6


def test_the_registry_tells_its_arguments_when_it_is_read() -> None:
    assert WRAPPERS["FrameStack"].signature == "stack_size, padding_type='reset'"
    assert all(wrapper.meaning for wrapper in WRAPPERS.values())


def test_no_library_is_loaded_when_wrappers_are_configured() -> None:
    code = (
        "import sys; from metta.train import apply_settings, TrainingConfig\n"
        "apply_settings(TrainingConfig(), {'wrappers': ['FrameStack(4)']})\n"
        "assert not {'torch', 'gymnasium'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
