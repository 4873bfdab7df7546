"""What pydantic found wrong, in one line for people."""

from collections.abc import Iterable

from pydantic import ValidationError

from metta.errors import did_you_mean

__all__ = ["explain"]


def explain(error: ValidationError, known: Iterable[str] = ()) -> str:
    """Every problem with its place and the value found; `known` names feed the hints for unknown ones."""
    lines = []
    for problem in error.errors():
        where = ".".join(str(part) for part in problem["loc"]) or "config"
        if problem["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
            lines.append(f"unknown setting {where!r}{did_you_mean(where, known)}")
        elif problem["type"] == "value_error":
            # a rule over several fields names them itself
            lines.append(problem["msg"].removeprefix("Value error, "))
        else:
            lines.append(f"{where}: {problem['msg']} (found {problem['input']!r})")
    return "; ".join(lines)
