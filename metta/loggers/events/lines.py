"""Lines of an event log: how an event is written, read and checked.

A line ends with a checksum of itself and, through that of the line before it, of all lines above:

    {"run":"6f63...","sequence":7,"time":1794954040.3,"kind":"metrics","payload":{...},"check":"0f9a31c2"}

Lines of logs from before checksums have none, and are read all the same.
"""

import json
import math
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from metta.loggers.events.plain_json import to_json

__all__ = [
    "MAX_LINE_BYTES",
    "Event",
    "event_line",
    "follows",
    "has_check",
    "link_of",
    "parse_event",
    "whole_number",
]

MAX_LINE_BYTES = 64 * 2**20
"""Longer lines are neither written nor read."""
_MAX_RUN = 200
_LIMIT = 2**63
_CHECK = re.compile(rb',"check":"([0-9a-f]{8})"\}\n\Z')
_CHECK_BYTES = len(b',"check":"00000000"}\n')
_FIELDS = frozenset({"run", "sequence", "time", "kind", "payload"})


@dataclass(frozen=True)
class Event:
    """One line of the log; (run, sequence) identifies it."""

    run: str
    sequence: int
    time: float
    """Seconds since 1970."""
    kind: str
    payload: dict[str, Any]


def event_line(event: Mapping[str, Any], link: int) -> bytes:
    """An event as a line; `link` is that of the line before it, 0 for the first line.

    ValueError if the line would be longer than what is read.
    """
    body = to_json(event)[:-1].encode()
    if len(body) + _CHECK_BYTES > MAX_LINE_BYTES:
        raise ValueError(f"it takes {len(body):,} bytes; an event has at most {MAX_LINE_BYTES:,}")
    return b'%b,"check":"%08x"}\n' % (body, zlib.crc32(body, link))


def has_check(line: bytes) -> bool:
    """Whether a line ends with a checksum."""
    return _CHECK.search(line, max(0, len(line) - _CHECK_BYTES)) is not None


def link_of(line: bytes) -> int:
    """What ties the next line to this one."""
    found = _CHECK.search(line, max(0, len(line) - _CHECK_BYTES))
    return zlib.crc32(line) if found is None else zlib.crc32(found[0], int(found[1], 16))


def follows(line: bytes, link: int) -> bool:
    """Whether a line is as written, after a line with this link; True for a line without a checksum."""
    found = _CHECK.search(line, max(0, len(line) - _CHECK_BYTES))
    return found is None or zlib.crc32(line[: found.start()], link) == int(found[1], 16)


def parse_event(line: bytes) -> Event:
    """The event of a line; every way in which a line can be wrong is a `ValueError`."""
    try:
        found = json.loads(line.decode(), parse_constant=_no_number)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(found, dict) or found.keys() - {"check"} != _FIELDS:
        raise ValueError("it has other fields than an event")
    if "check" in found and not has_check(line):
        raise ValueError("its checksum is malformed")
    run, kind, payload = found["run"], found["kind"], found["payload"]
    if not isinstance(run, str) or not 0 < len(run) <= _MAX_RUN:
        raise ValueError(f"run={run!r:.80} must be a text of 1 to {_MAX_RUN} characters")
    if not isinstance(kind, str) or not isinstance(payload, dict):
        raise ValueError("kind must be a text and payload a mapping")
    time = found["time"]
    if not isinstance(time, int | float) or isinstance(time, bool) or not _is_finite(time):
        raise ValueError(f"time={time!r:.80} must be a number")
    return Event(run, whole_number(found["sequence"], "sequence"), float(time), kind, payload)


def whole_number(value: Any, name: str) -> int:
    """A whole number of 64 bits; else a ValueError, which calls it `name`."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or value % 1 != 0 or not -_LIMIT <= value < _LIMIT:
        raise ValueError(f"{name}={value!r:.80} must be a whole number of 64 bits")
    return int(value)


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:
        return False


def _no_number(_: str) -> None:
    """NaN and infinity, which JSON does not have."""
