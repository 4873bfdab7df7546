"""Ids of other packages: what is said where the package is missing."""

import importlib.util
import subprocess
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


_LANDER = """
from metta.envs import make_vec_env
make_vec_env("LunarLander-v3", num_envs=2, num_workers=WORKERS).close()
"""


@pytest.mark.skipif(importlib.util.find_spec("Box2D") is None, reason="needs Box2D (extra box2d)")
@pytest.mark.parametrize("workers", [0, 2])
def test_box2d_loads_when_warnings_are_errors(workers: int) -> None:
    # what it warns of while it loads would crash the process
    code = _LANDER.replace("WORKERS", str(workers))
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], check=False)
    assert done.returncode == 0
