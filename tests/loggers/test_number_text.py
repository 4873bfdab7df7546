import math

import pytest

from metta.loggers.number_text import shown_number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0312, "0.0312"),
        (-1234.5678, "-1,235"),
        (487.2516, "487.3"),
        (21.0, "21"),
        (0.0, "0"),
        (1_000_000.4, "1,000,000"),
        (3.2e-7, "3.2e-07"),
        (1e30, "1e+30"),
        (None, "-"),
        (math.nan, "-"),
        (-math.inf, "-inf"),
    ],
)
def test_significant_digits_show_whatever_the_size_of_a_number(
    value: float | None, text: str
) -> None:
    assert shown_number(value) == text
