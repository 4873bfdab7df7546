import dataclasses
import struct
import sys
from pathlib import Path

import pytest

from metta.cli.plot import draw_learning_curve
from metta.errors import MissingExtraError
from metta.runs.learning_curve import CurvePart, LearningCurve

CURVE = LearningCurve(
    episodes=[(float(step), step / 10) for step in range(0, 50, 5)],
    parts=[CurvePart(10.0 * part, part, 0.5, 2) for part in range(5)],
    evaluations=[(50, 4.5)],
)


def size_of(path: Path) -> tuple[int, int]:
    """Width and height from the header of a PNG."""
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert content[-8:-4] == b"IEND"
    return struct.unpack(">II", content[16:24])


def test_a_png_is_written_when_there_are_returns(tmp_path: Path) -> None:
    path = draw_learning_curve(tmp_path / "runs" / "curve.png", CURVE, "CartPole-v1")
    assert path == tmp_path / "runs" / "curve.png"
    # 7 x 4 inches at 120 dots each
    assert size_of(path) == (840, 480)
    assert [entry.name for entry in path.parent.iterdir()] == ["curve.png"]


def test_a_png_is_written_when_there_is_nothing_to_draw(tmp_path: Path) -> None:
    path = draw_learning_curve(tmp_path / "curve.png", LearningCurve(), "x")
    assert size_of(path) == (840, 480)


@pytest.mark.parametrize("part", ["episodes", "parts", "evaluations"])
def test_the_picture_differs_when_a_part_of_the_curve_does(tmp_path: Path, part: str) -> None:
    whole = draw_learning_curve(tmp_path / "a.png", CURVE, "x").read_bytes()
    less = dataclasses.replace(CURVE, **{part: []})
    assert draw_learning_curve(tmp_path / "b.png", less, "x").read_bytes() != whole
    assert draw_learning_curve(tmp_path / "c.png", CURVE, "other").read_bytes() != whole


def test_no_figure_stays_open_when_it_was_drawn(tmp_path: Path) -> None:
    from matplotlib import pyplot

    before = pyplot.get_fignums()
    draw_learning_curve(tmp_path / "curve.png", CURVE, "x")
    assert pyplot.get_fignums() == before


@pytest.mark.parametrize("module", ["matplotlib", "matplotlib.pyplot"])
def test_the_error_says_how_to_install_when_matplotlib_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    if module == "matplotlib.pyplot":
        monkeypatch.delattr("matplotlib.pyplot", raising=False)
    with pytest.raises(MissingExtraError, match=r"pip install 'metta-rl\[plot\]'"):
        draw_learning_curve(tmp_path / "curve.png", CURVE, "x")
    assert not (tmp_path / "curve.png").exists()
