"""Ids of other packages: what is said where the package is missing."""

import sys

import pytest

from metta.envs.env_ids import check_env_id
from metta.errors import MissingExtraError


@pytest.mark.parametrize(
    ("env_id", "package", "extra"),
    [
        ("MiniGrid-Empty-5x5-v0", "minigrid", "minigrid"),
        ("BabyAI-GoToObj-v0", "minigrid", "minigrid"),
        ("ALE/Pong-v5", "ale_py", "atari"),
        ("PongNoFrameskip-v4", "ale_py", "atari"),
        ("HalfCheetah-v5", "mujoco", "mujoco"),
        ("LunarLander-v3", "Box2D", "box2d"),
    ],
)
def test_the_extra_is_named_when_the_package_of_an_id_is_missing(
    env_id: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"{env_id} needs .*metta-rl\[{extra}\]"):
        check_env_id(env_id)
