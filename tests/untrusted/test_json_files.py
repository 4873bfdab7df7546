"""JSON is measured before anything is built from it."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metta.errors import UnsafeFileError
from metta.untrusted.json_files import brief, parse_json, read_json

DATA = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(alphabet=st.sampled_from(list('[]{},:"\\a\n é'))),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='[{",\\b'), inner),
)  # fmt: skip


@given(DATA)
def test_data_returns_when_brackets_and_quotes_stand_in_texts(data: Any) -> None:
    text = json.dumps(data)
    assert parse_json(text) == data
    assert parse_json(text.encode()) == data


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


def test_a_text_is_read_when_it_is_just_within_the_limits() -> None:
    parse_json(nested(32))
    parse_json("[" + "1," * 9 + "1]", max_values=10)
    parse_json('["' + "[" * 100 + '"]')
    parse_json("1" * 100)
    parse_json('{"a":1,"b":{"a":1}}')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (nested(33), "deeper than 32 levels"),
        ('{"a":' * 40, "deeper than 32 levels"),
        ("[" * 400_000, "deeper than 32 levels"),
        ("[" + "0," * 600_000 + "0]", "more than 500000 values"),
        ("[" + "{}," * 300_000 + "{}]", "more than 500000 values"),
        ('""' * 1_500_000, "more than 500000 values"),
        ('{"a":1,"b":2,"a":3}', "'a' occurs twice"),
        ('{"x":[{"a":1,"a":1}]}', "'a' occurs twice"),
        ("1" * 101, "101 digits"),
        ("NaN", "NaN is not JSON"),
        ("[-Infinity]", "-Infinity is not JSON"),
        ("", "Expecting value"),
        ("[1", "Expecting"),
        ("[] []", "Extra data"),
        (b"\xff", "utf-8"),
        ("\ufeff1", "BOM"),
    ],
    ids=range(16),
)
def test_a_value_error_says_why_when_a_text_is_no_good_json(text: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_json(text)


def test_numbers_that_are_none_are_read_when_they_are_allowed() -> None:
    assert parse_json("[Infinity, 1]", allow_nan=True) == [math.inf, 1]


def test_an_unsafe_file_error_names_the_file_when_it_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text('{"a": 1}')
    assert read_json(path) == {"a": 1}
    with pytest.raises(UnsafeFileError, match="has 8 bytes; JSON files of up to 7 bytes"):
        read_json(path, max_bytes=7)
    with pytest.raises(UnsafeFileError, match="deeper than 0 levels"):
        read_json(path, max_depth=0)
    path.write_text("[1, 2")
    with pytest.raises(UnsafeFileError, match=r"file\.json' is damaged or unsafe: Expecting"):
        read_json(path)


def test_a_message_stays_short_when_a_value_is_long() -> None:
    assert brief("a\n") == repr("a\n")
    assert len(brief("x" * 10_000)) < 210
