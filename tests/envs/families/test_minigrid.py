"""MiniGrid and BabyAI by their ids: grids of codes, and texts that are left out."""

import importlib
from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import WrapperSpec

from metta import PPOTrainer
from metta.envs import make_vec_env
from metta.errors import MettaWarning

pytest.importorskip("minigrid", reason="the extra 'minigrid' is not installed")


def test_views_are_grids_of_codes_when_an_environment_of_minigrid_is_named() -> None:
    with closing(make_vec_env("MiniGrid-DoorKey-5x5-v0", num_envs=2)) as envs:
        assert [leaf.key for leaf in envs.obs_spec.leaves] == ["direction", "image"]
        image = envs.obs_spec.leaves[1]
        assert (image.kind, image.dtype, image.shape) == ("discrete", np.uint8, (7, 7, 3))
        assert image.categories[:3] == (11, 6, 4)
        assert envs.obs_spec.texts == ("mission",)
        assert isinstance(envs.observation_space, spaces.Dict)
        assert list(envs.observation_space) == ["direction", "image"]
        obs = envs.obs_spec.zeros(2)
        envs.reset([1, 2], obs)
        generator = np.random.default_rng(0)
        limits = np.reshape(image.categories, image.shape)
        for _ in range(100):
            envs.send(0, generator.integers(0, 7, 2))
            envs.recv(0, obs)
            assert (obs["image"] < limits).all()
        assert obs["image"].max() > 1


def test_views_are_codes_when_a_class_of_minigrid_was_registered() -> None:
    gymnasium.register("Own-v0", importlib.import_module("minigrid.envs").EmptyEnv)
    try:
        with closing(make_vec_env("Own-v0")) as envs:
            assert envs.obs_spec.leaves[1].kind == "discrete"
    finally:
        del gymnasium.registry["Own-v0"]


def test_one_line_says_that_texts_are_left_out_when_training_begins() -> None:
    with pytest.warns(MettaWarning, match="'mission' in the observation is text") as said:
        trainer = PPOTrainer(None, "BabyAI-GoToObj-v0", num_envs=2, horizon=16, num_minibatches=1)
    with trainer:
        trainer.train(total_timesteps=64)
        # 4 directions; of 49 cells 11 objects, 6 colours and 4 states: nothing is scaled like a pixel
        widths = {parameter.shape[-1] for parameter in trainer.policy.parameters()}
        assert 4 + 49 * (11 + 6 + 4) in widths
    assert len(said) == 1


@pytest.mark.parametrize(
    ("wrapper", "settings", "kind", "shape"),
    [
        ("OneHotPartialObsWrapper", {}, "box", (7, 7, 20)),
        ("RGBImgPartialObsWrapper", {}, "box", (56, 56, 3)),
        ("RGBImgPartialObsWrapper", {"tile_size": 1}, "box", (7, 7, 3)),
        ("RGBImgObsWrapper", {}, "box", (64, 64, 3)),
        ("FullyObsWrapper", {}, "discrete", (8, 8, 3)),
        ("ViewSizeWrapper", {"agent_view_size": 5}, "discrete", (5, 5, 3)),
        ("DirectionObsWrapper", {}, "discrete", (7, 7, 3)),
        ("NoDeath", {"no_death_types": ("lava",)}, "discrete", (7, 7, 3)),
    ],
)
def test_only_codes_are_declared_as_codes_when_a_wrapper_made_the_view(
    wrapper: str, settings: dict[str, Any], kind: str, shape: tuple[int, ...]
) -> None:
    name = "Wrapped-v0"
    around = WrapperSpec("around", f"minigrid.wrappers:{wrapper}", settings)
    gymnasium.register(name, "minigrid.envs:EmptyEnv", additional_wrappers=(around,))
    try:
        with closing(make_vec_env(name)) as envs:
            image = next(leaf for leaf in envs.obs_spec.leaves if leaf.key == "image")
            assert (image.kind, image.shape) == (kind, shape)
    finally:
        del gymnasium.registry[name]
