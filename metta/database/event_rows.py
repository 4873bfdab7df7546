"""Turns an event into rows. Pure: does not use a database."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from metta.loggers.events.lines import Event, whole_number

__all__ = ["EventRows", "rows_of"]

_EPOCHS = re.compile(r":(\d{1,18})-(\d{1,18})$")
"""The end of an id from `StatsClient.create_epoch`."""
_MAX_NAME = 500
"""Characters of a name that are kept: keys of databases are limited to about 2,700 bytes."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class EventRows:
    """The rows of an event, still without run and sequence, and with names as texts."""

    event: Event
    rows: dict[str, list[Row]] = field(default_factory=dict)
    """Table -> rows."""
    run: Row = field(default_factory=dict)
    """Changes of the run itself."""
    rewinds_to: int | None = None
    """Earlier rows of later epochs no longer count."""
    payload: Mapping[str, Any] | None = None
    """What no table has a column for."""

    @property
    def is_known(self) -> bool:
        """Whether metta knows events of this kind; of others only the payload is kept."""
        return self.event.kind in _READERS


def rows_of(event: Event) -> EventRows:
    """The rows of an event; a `ValueError` says why metta cannot have written it."""
    found = _READERS.get(event.kind, _keep)(event, event.payload)
    found.run["last_event"] = event.time
    return found


def _keep(event: Event, payload: Mapping[str, Any]) -> EventRows:
    return EventRows(event, payload=payload)


def _run_start(event: Event, payload: Mapping[str, Any]) -> EventRows:
    run = {
        "name": _text(payload.get("name", ""), "name"),
        "attributes": _mapping(payload.get("attributes", {}), "attributes"),
        "started": event.time,
        "ended": None,
        "outcome": None,
        "reason": None,
    }
    return EventRows(event, run=run, rewinds_to=_from_epoch(payload), payload=payload)


def _rewind(event: Event, payload: Mapping[str, Any]) -> EventRows:
    return EventRows(event, rewinds_to=_from_epoch(payload), payload=payload)


def _from_epoch(payload: Mapping[str, Any]) -> int:
    return whole_number(payload.get("from_epoch", 0), "from_epoch")


def _run_end(event: Event, payload: Mapping[str, Any]) -> EventRows:
    run = {
        "ended": event.time,
        "outcome": _text(payload.get("outcome", "done"), "outcome"),
        "reason": _text(payload.get("reason", ""), "reason"),
    }
    return EventRows(event, run=run, payload=payload)


def _epoch(event: Event, payload: Mapping[str, Any]) -> EventRows:
    row = {
        "start_epoch": whole_number(payload.get("start_epoch"), "start_epoch"),
        "epoch": whole_number(payload.get("end_epoch"), "end_epoch"),
        "attributes": _mapping(payload.get("attributes", {}), "attributes"),
    }
    return EventRows(event, {"epochs": [row]})


def _metrics(event: Event, payload: Mapping[str, Any]) -> EventRows:
    where = _moment(payload)
    numbers = _named_numbers(payload.get("metrics"), "metrics")
    rows = [{**where, "name": name, "value": value} for name, value in numbers.items()]
    return EventRows(event, {"metric_values": rows}, run=where)


def _episodes(event: Event, payload: Mapping[str, Any]) -> EventRows:
    span = _EPOCHS.search(str(payload.get("epoch_id") or ""))
    start, end = (int(span[1]), int(span[2])) if span else (None, None)
    stats = {
        _text(name, "statistic")[:_MAX_NAME]: [_number(value) for value in _sequence(values)]
        for name, values in _mapping(payload.get("stats"), "stats").items()
    }
    returns = stats.pop("episode_return", [])
    lengths = stats.pop("episode_length", [])
    num_episodes = len(returns) or len(lengths) or max(map(len, stats.values()), default=0)
    rows = [
        {
            "number": number,
            "start_epoch": start,
            "epoch": end,
            "episode_return": returns[number] if number < len(returns) else None,
            "episode_length": lengths[number] if number < len(lengths) else None,
        }
        for number in range(num_episodes)
    ]
    others = [
        {"name": name, "number": number, "epoch": end, "value": value}
        for name, values in stats.items()
        for number, value in enumerate(values)
    ]
    return EventRows(event, {"episodes": rows, "episode_values": others})


def _evaluation(event: Event, payload: Mapping[str, Any]) -> EventRows:
    where = _moment(payload)
    scores = _mapping(payload.get("scores"), "scores")
    found = _named_numbers(scores.get("simulation_scores", scores), "simulation_scores")
    about = {
        **where,
        "policy_uri": _optional_text(payload.get("policy_uri"), "policy_uri"),
        "suite": _optional_text(payload.get("suite"), "suite") or "",
        "time": event.time,
    }
    rows = [
        {
            "simulation": name,
            "epoch": where["epoch"],
            "category": name.split("/", 1)[0],
            "score": score,
        }
        for name, score in found.items()
    ]
    played = scores.get("episodes", {}) if "simulation_scores" in scores else {}
    others = _simulation_episodes(where["epoch"], _mapping(played, "episodes"))
    if "simulation_scores" in scores and "late_row" in scores:  # no event `metrics` has these
        numbers = _named_numbers(scores["late_row"], "late_row")
        values = [{**where, "name": name, "value": value} for name, value in numbers.items()]
        others = {**others, "metric_values": values}
    return EventRows(event, {"evaluations": [about], "simulation_scores": rows, **others})


def _simulation_episodes(epoch: int, played: Mapping[str, Any]) -> dict[str, list[Row]]:
    """Rows of the episodes of an evaluation, and of their agents if the event has them."""
    episodes: list[Row] = []
    agents: list[Row] = []
    named = {_text(name, "simulation")[:_MAX_NAME]: entry for name, entry in played.items()}
    for simulation, entry in named.items():
        where = {"simulation": simulation, "epoch": epoch}
        about = _mapping(entry, "episodes")
        lengths = list(_sequence(about.get("lengths", [])))
        for number, value in enumerate(_sequence(about.get("returns", []))):
            length = _number(lengths[number]) if number < len(lengths) else None
            numbers = {"episode_return": _number(value), "episode_length": length}
            episodes.append({**where, "number": number, **numbers})
        agents += [{**where, **row} for row in _agent_rows(about.get("agents"))]
    return {"simulation_episodes": episodes, "agent_values": agents}


def _agent_rows(agents: Any) -> Iterator[Row]:
    """One number each; what the environment reported has ``env/`` before its name."""
    if agents is None:
        return
    found: dict[tuple[int, int, str], float | None] = {}
    for key, name in (("returns", "episode_return"), ("lengths", "episode_length")):
        for number, values in enumerate(_sequence(_mapping(agents, "agents").get(key, []))):
            for agent, value in enumerate(_sequence(values)):
                found[number, agent, name] = _number(value)
    for number, infos in enumerate(_sequence(agents.get("infos", []))):
        for agent, info in enumerate(_sequence(infos)):
            for name, value in _named_numbers(info, "infos").items():
                found[number, agent, f"env/{name}"[:_MAX_NAME]] = value
    for (number, agent, name), value in found.items():
        yield {"number": number, "agent": agent, "name": name, "value": value}


def _policy(event: Event, payload: Mapping[str, Any]) -> EventRows:
    row = {**_moment(payload), "uri": _text(payload.get("uri"), "uri"), "time": event.time}
    return EventRows(event, {"policies": [row]})


def _replay(event: Event, payload: Mapping[str, Any]) -> EventRows:
    row = {
        **_moment(payload),
        "simulation": _text(payload.get("simulation"), "simulation"),
        "uri": _text(payload.get("uri"), "uri"),
        "policy_uri": _optional_text(payload.get("policy_uri"), "policy_uri"),
        "time": event.time,
    }
    return EventRows(event, {"replays": [row]})


def _heartbeat(event: Event, payload: Mapping[str, Any]) -> EventRows:
    numbers = {name: value for name, value in payload.items() if name != "run_id"}
    moment = {name: _optional_count(numbers.get(name)) for name in ("epoch", "agent_step")}
    row = {"time": event.time, **moment, "numbers": numbers}
    return EventRows(event, {"heartbeats": [row]}, run={"last_heartbeat": event.time})


def _moment(payload: Mapping[str, Any]) -> Row:
    return {name: whole_number(payload.get(name), name) for name in ("epoch", "agent_step")}


def _named_numbers(value: Any, name: str) -> dict[str, float | None]:
    found = _mapping(value, name).items()
    return {_text(key, name)[:_MAX_NAME]: _number(number) for key, number in found}


def _number(value: Any) -> float | None:
    """A finite number; None for any other value of a metric."""
    if not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _optional_count(value: Any) -> int | None:
    """A whole number of 64 bits; None for anything else."""
    try:
        return whole_number(value, "")
    except ValueError:
        return None


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name}={value!r:.80} must be a text")
    return value


def _optional_text(value: Any, name: str) -> str | None:
    return None if value is None else _text(value, name)


def _mapping(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name}={value!r:.80} must be a mapping")
    return value


def _sequence(value: Any) -> Iterable[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{value!r:.80} must be a list of numbers")
    return value


_READERS: dict[str, Callable[[Event, Mapping[str, Any]], EventRows]] = {
    "run_start": _run_start,
    "rewind": _rewind,
    "run_end": _run_end,
    "epoch": _epoch,
    "metrics": _metrics,
    "episodes": _episodes,
    "evaluation": _evaluation,
    "policy": _policy,
    "replay": _replay,
    "heartbeat": _heartbeat,
    "sink_failure": _keep,
    "hyperparameters": _keep,
    "log_damage": _keep,
    "collector_restart": _keep,
    "rank_restart": _keep,
}
"""Kinds that metta writes; of others the payload is kept."""
