import math
import struct
import sys
from pathlib import Path

import pytest

from metta.cli.plot import draw_learning_curve
from metta.errors import MissingExtraError

ROWS = [{"agent_step": float(step), "episode_return": step / 10} for step in range(0, 50, 10)]


def size_of(path: Path) -> tuple[int, int]:
    """Width and height from the header of a PNG."""
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert content[-8:-4] == b"IEND"
    return struct.unpack(">II", content[16:24])


def test_a_png_is_written_when_there_are_returns(tmp_path: Path) -> None:
    path = draw_learning_curve(tmp_path / "runs" / "curve.png", ROWS, "CartPole-v1")
    assert path == tmp_path / "runs" / "curve.png"
    # 7 x 4 inches at 120 dots each
    assert size_of(path) == (840, 480)
    assert [entry.name for entry in path.parent.iterdir()] == ["curve.png"]


@pytest.mark.parametrize(
    "rows",
    [[], [{"agent_step": 1.0}], [{"agent_step": 1.0, "episode_return": math.nan}]],
)
def test_a_png_is_written_when_there_is_nothing_to_draw(
    tmp_path: Path, rows: list[dict[str, float]]
) -> None:
    assert size_of(draw_learning_curve(tmp_path / "curve.png", rows, "x")) == (840, 480)


def test_the_picture_differs_when_the_numbers_do(tmp_path: Path) -> None:
    first = draw_learning_curve(tmp_path / "a.png", ROWS, "x").read_bytes()
    second = draw_learning_curve(tmp_path / "b.png", ROWS[::-1][:2], "x").read_bytes()
    assert first != second


def test_gaps_are_left_out_when_some_epochs_have_no_return(tmp_path: Path) -> None:
    gaps = [{"agent_step": 5.0, "episode_return": math.nan}, *ROWS]
    whole = draw_learning_curve(tmp_path / "a.png", ROWS, "x").read_bytes()
    assert draw_learning_curve(tmp_path / "b.png", gaps, "x").read_bytes() == whole


def test_no_figure_stays_open_when_it_was_drawn(tmp_path: Path) -> None:
    from matplotlib import pyplot

    before = pyplot.get_fignums()
    draw_learning_curve(tmp_path / "curve.png", ROWS, "x")
    assert pyplot.get_fignums() == before


@pytest.mark.parametrize("module", ["matplotlib", "matplotlib.pyplot"])
def test_the_error_says_how_to_install_when_matplotlib_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    if module == "matplotlib.pyplot":
        monkeypatch.delattr("matplotlib.pyplot", raising=False)
    with pytest.raises(MissingExtraError, match=r"pip install 'metta-rl\[plot\]'"):
        draw_learning_curve(tmp_path / "curve.png", ROWS, "x")
    assert not (tmp_path / "curve.png").exists()
