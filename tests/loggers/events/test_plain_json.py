import json
from pathlib import Path

import numpy as np
import pytest
import torch

from metta.loggers.events.plain_json import to_json


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": 1.5, "b": [True, None, "x"]}, {"a": 1.5, "b": [True, None, "x"]}),
        (float("-inf"), None),
        ({"deep": [{"nan": float("nan")}, (1, 2)]}, {"deep": [{"nan": None}, [1, 2]]}),
        (np.float32(0.5), 0.5),
        ({"array": np.array([1.0, np.nan])}, {"array": [1.0, None]}),
        (torch.tensor([[1, 2]]), [[1, 2]]),
        ({("a", 1): np.float64("nan")}, {"('a', 1)": None}),
        (Path("a/b"), "a/b"),
        ({"set": {3}}, {"set": [3]}),
    ],
)
def test_anything_becomes_valid_json_when_it_is_logged(value: object, expected: object) -> None:
    text = to_json(value)
    assert json.loads(text) == expected
    assert "\n" not in text
    assert "NaN" not in text


def test_broken_unicode_survives_when_it_is_written_as_utf8() -> None:
    assert to_json("\ud800 ok").encode() == b'"\\ud800 ok"'
