"""MiniGrid and BabyAI by their ids: grids of codes, and texts that are left out."""

from contextlib import closing

import numpy as np
import pytest
from gymnasium import spaces

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


def test_one_line_says_that_texts_are_left_out_when_training_begins() -> None:
    with pytest.warns(MettaWarning, match="'mission' in the observation is text") as said:
        trainer = PPOTrainer(None, "BabyAI-GoToObj-v0", num_envs=2, horizon=16, num_minibatches=1)
    with trainer:
        trainer.train(total_timesteps=64)
        # 4 directions; of 49 cells 11 objects, 6 colours and 4 states: nothing is scaled like a pixel
        widths = {parameter.shape[-1] for parameter in trainer.policy.parameters()}
        assert 4 + 49 * (11 + 6 + 4) in widths
    assert len(said) == 1
