"""Lines of a file from both ends, and lines that nobody can read."""

import io
import random
from pathlib import Path

import pytest

from metta.errors import EventLogError
from metta.loggers.events import reader as event_reader
from metta.loggers.events.reader import lines_backwards, lines_from


@pytest.mark.parametrize("seed", range(20))
def test_lines_are_the_same_from_both_ends(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = random.Random(seed)
    monkeypatch.setattr(event_reader, "_BLOCK", numbers.randrange(1, 40))
    monkeypatch.setattr(event_reader, "_MAX_BLOCK", 64)
    content = bytes(numbers.choice(b"ab\n") for _ in range(numbers.randrange(300)))
    stream = io.BytesIO(content)
    forwards = list(lines_from(stream, 0, "x"))
    assert b"".join(line for _, line in forwards) == content[: content.rfind(b"\n") + 1]
    assert list(lines_backwards(stream, len(content), "x")) == forwards[::-1]


def test_a_line_that_is_too_long_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_reader, "MAX_LINE_BYTES", 1000)
    stream = io.BytesIO(b"a\n" + b"x" * 200_000 + b"\n")
    with pytest.raises(EventLogError, match="a line of more than 1,000 bytes"):
        list(lines_from(stream, 0, tmp_path))
    with pytest.raises(EventLogError, match="a line of more than 1,000 bytes"):
        list(lines_backwards(stream, 200_003, tmp_path))
