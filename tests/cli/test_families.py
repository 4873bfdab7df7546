"""``metta train ID`` with nothing else prepared, for a few environments of every family."""

import importlib.util
import sys
from pathlib import Path

import gymnasium
import pytest

from faults.zygote import Zygote
from tests.children import TINY, ended, start_metta

# gymnasium raises the version of an environment when its rules change
TAXI = next(name for name in gymnasium.registry if name.startswith("Taxi-"))
FAMILIES = {
    "": ["Acrobot-v1", "MountainCarContinuous-v0", "FrozenLake-v1", TAXI, "CliffWalking-v1",
         "Blackjack-v1"],
    "ale_py": ["ALE/Pong-v5"],
    "mujoco": ["HalfCheetah-v5", "Hopper-v5"],
    "Box2D": ["LunarLanderContinuous-v3", "BipedalWalker-v3"],
    "minigrid": ["MiniGrid-Empty-5x5-v0", "BabyAI-GoToRedBall-v0"],
    "mpe2": ["pettingzoo:mpe2.simple_speaker_listener_v4"],
    "mettagrid": ["mettagrid:arena_small"],
    "envpool": ["envpool:CartPole-v1", "envpool:HalfCheetah-v4"],
}  # fmt: skip
CLASSES = dict.fromkeys(
    ["BipedalWalker-v3", "envpool:CartPole-v1", "envpool:HalfCheetah-v4"], "boundary"
)
"""How a run is resumed, where it is not ``repeat``."""


@pytest.mark.parametrize(
    ("package", "env_id"),
    [(package, name) for package, names in FAMILIES.items() for name in names],
)
def test_an_environment_trains_when_nothing_but_its_id_is_given(
    package: str, env_id: str, tmp_path: Path, zygote: Zygote
) -> None:
    if package and importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}")
    words = ["train", env_id, *TINY, "verbose=true", "final_replay=true", "replay_max_steps=16",
             "total_timesteps=64"]  # fmt: skip
    done = ended(
        start_metta(zygote, [*words, "--run", "tiny", "--output", str(tmp_path)], tmp_path),
        tmp_path,
    )
    assert done.code == 0, done.err
    assert f"of class {CLASSES.get(env_id, 'repeat')}" in done.out + done.err
    assert list((tmp_path / "tiny" / "checkpoints").iterdir())


def test_a_policy_of_several_kinds_of_agents_is_evaluated_and_resumed_by_commands(
    tmp_path: Path, zygote: Zygote
) -> None:
    if importlib.util.find_spec("mpe2") is None:
        pytest.skip("needs mpe2 (extra pettingzoo)")

    def metta(*words: str) -> str:
        done = ended(start_metta(zygote, words, tmp_path), tmp_path)
        assert done.code == 0, done.err
        return done.out

    folder, env_id = str(tmp_path), "pettingzoo:mpe2.simple_tag_v3"
    metta("train", env_id, *TINY, "total_timesteps=128", "--run", "tag", "--output", folder)
    assert "score" in metta("eval", str(tmp_path / "tag"), "--episodes", "2")
    metta("resume", str(tmp_path / "tag"), "total_timesteps=256")


def test_the_command_names_the_extra_when_a_package_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from metta.cli.main import main

    monkeypatch.setitem(sys.modules, "minigrid", None)
    assert main(["train", "MiniGrid-Empty-5x5-v0", "--output", str(tmp_path)]) == 2
    assert "pip install 'metta-rl[minigrid]'" in capsys.readouterr().err
