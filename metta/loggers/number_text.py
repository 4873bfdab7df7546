"""Numbers for people: returns, scores and losses with the digits that matter."""

import math

__all__ = ["shown_number"]

_DIGITS = 4
_WHOLE_FROM, _LARGE_FROM = 10 ** (_DIGITS - 1), 1e12


def shown_number(value: float | None) -> str:
    """Four significant digits, and never fewer than the whole part; a dash for None and NaN.

    0.0312 is shown as it is, 487.2516 as 487.3, -1234.5678 as -1,235.
    """
    if value is None or math.isnan(value):
        return "-"
    if _WHOLE_FROM <= abs(value) < _LARGE_FROM:
        return f"{value:,.0f}"
    return f"{value:.{_DIGITS}g}"
