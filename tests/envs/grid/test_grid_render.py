import re

import numpy as np
import pytest

from metta.envs.grid import TASKS, Cell, GridVecEnv, WorldView, draw_rgb, draw_text
from metta.errors import ConfigError

CELLS = np.array([[1, 1, 1, 1], [1, 2, 3, 1], [1, 4, 5, 1], [1, 0, 0, 1]], np.uint8)
VIEW = WorldView(
    cells=CELLS, agents=np.array([[3, 1], [3, 2]]), cargo=np.array([0, 2]), keys=np.zeros(2, int),
    step=0, task=0,
)  # fmt: skip


def test_a_world_is_readable_when_it_is_drawn_as_plain_text() -> None:
    assert draw_text(VIEW, color=False) == "####\n#*D#\n#+k#\n#aA#"


def test_colours_are_all_that_is_added_when_text_is_drawn_for_a_terminal() -> None:
    text = draw_text(VIEW)
    assert "\x1b[38;2;" in text
    assert text.count("\x1b[0m") == 16
    assert re.sub(r"\x1b\[[0-9;]*m", "", text) == draw_text(VIEW, color=False)


@pytest.mark.parametrize("scale", [1, 3, 8])
def test_every_cell_is_a_square_of_one_colour_when_an_image_is_drawn(scale: int) -> None:
    image = draw_rgb(VIEW, scale)
    assert (image.shape, image.dtype) == ((4 * scale, 4 * scale, 3), np.dtype(np.uint8))
    blocks = image.reshape(4, scale, 4, scale, 3)
    assert (blocks == blocks[:, :1, :, :1]).all()
    colours = blocks[:, 0, :, 0].reshape(16, 3)
    # wall, resource, depot, door, key and both kinds of agent
    assert len({tuple(colour) for colour in colours.tolist()}) == 7


@pytest.mark.parametrize("scale", [0, -1, 65])
def test_an_image_is_refused_when_its_scale_is_out_of_range(scale: int) -> None:
    with pytest.raises(ConfigError, match=f"scale={scale}"):
        draw_rgb(VIEW, scale)


def test_a_view_has_memory_of_its_own_when_the_world_goes_on() -> None:
    envs = GridVecEnv([TASKS["gather"]], 2)
    obs = envs.obs_spec.zeros(envs.num_rows)
    envs.reset(range(envs.num_rows), obs)
    view = envs.view(1)
    before = view.cells.copy(), view.agents.copy()
    assert not (view.cells >= Cell.AGENT).any()
    assert (view.step, view.task) == (0, 0)
    for action in (1, 2, 3):
        envs.send(0, np.full(envs.num_rows, action))
        envs.recv(0, obs)
    assert envs.view(1).step == 3
    assert (view.cells == before[0]).all()
    assert (view.agents == before[1]).all()
    assert (envs.view(1).agents != before[1]).any()
    assert draw_text(view, color=False).count("a") == 4
