"""Checks of what was recorded: numbers, scales, and how episodes end."""

from collections import Counter
from collections.abc import Iterator

import gymnasium
import numpy as np
from gymnasium.wrappers import TimeLimit

from metta.doctor.recording import Ending, Recording, flat
from metta.doctor.report import Finding, verdict
from metta.envs.rows.row_spec import GymEnv
from metta.train.train_config import AgentConfig

__all__ = [
    "check_endings",
    "check_final_observations",
    "check_observations",
    "check_rewards",
    "time_limit_of",
]

_LARGE_OBSERVATION = 1e3
_LARGE_REWARD = 1e4
_SMALL_REWARD = 1e-4
_SHORTEST_LIMIT = 16
"""Fixed lengths below this are rules of the task rather than time limits."""
_ROUND = 50
_ENDLESS_STEPS = 500
_MIN_COMPARED, _MAX_COMPARED = 4, 512
_FEW = 0.3


def check_observations(recording: Recording, agent: AgentConfig) -> Iterator[Finding]:
    """Of a usable scale, and not always the same."""
    is_constant = True
    for leaf in recording.player.obs_spec.leaves:
        values = recording.leaf(leaf.key)
        is_constant = is_constant and bool((values == values[:1]).all())
        if leaf.kind == "box" and not leaf.is_image:
            yield from _scale(leaf.key, values.astype(np.float64), agent)
    if is_constant:
        yield Finding(
            "observations",
            "warning",
            f"all {len(recording.seen)} observations are equal",
            "the policy cannot see what it does",
            "return the state that decides what to do next; check that it is read after the step",
        )


def _scale(key: str, values: np.ndarray, agent: AgentConfig) -> Iterator[Finding]:
    largest, spread = float(np.abs(values).max()), float(values.std())
    shown = f"observation {key!r} reaches {largest:.3g} (deviation {spread:.3g})"
    is_large = largest > _LARGE_OBSERVATION and not agent.normalize_observations
    yield verdict(
        "observation scale",
        "warning" if is_large else "ok",
        shown,
        "networks begin with weights for inputs of about 1; larger ones saturate them",
        "set normalize_observations=true, or scale the observation in a wrapper",
    )


def check_rewards(recording: Recording, agent: AgentConfig) -> Iterator[Finding]:
    """Of a usable scale."""
    rewards = recording.rewards
    low, high = float(rewards.min(initial=0.0)), float(rewards.max(initial=0.0))
    largest = max(-low, high)
    shown = f"rewards from {low:.4g} to {high:.4g}"
    if largest > _LARGE_REWARD and not agent.normalize_returns:
        yield Finding(
            "reward scale",
            "warning",
            shown,
            "the value loss grows with the square of the returns and drowns the policy's gradient",
            "set normalize_returns=true, or scale rewards to about 1 in the environment",
        )
    elif largest == 0:
        yield Finding(
            "reward scale",
            "note",
            f"every reward of {len(rewards)} random steps is 0",
            "rewards are sparse, or missing",
            "if they are sparse, PPO needs luck or an entropy bonus (ent_coef=0.01) to find the first",
        )
    elif largest < _SMALL_REWARD and not agent.normalize_returns:
        yield Finding(
            "reward scale",
            "note",
            shown,
            "values this small are learned slowly",
            "set normalize_returns=true, or scale rewards to about 1 in the environment",
        )
    else:
        yield Finding("reward scale", "ok", shown)


def time_limit_of(env: GymEnv) -> int | None:
    """Steps after which a wrapper of gymnasium cuts episodes."""
    limits, current = [], env
    while isinstance(current, gymnasium.Wrapper):
        if isinstance(current, TimeLimit):
            limits.append(int(current._max_episode_steps))
        current = current.env
    return min(limits, default=None)


def check_endings(recording: Recording, time_limit: int | None) -> Iterator[Finding]:
    """Episodes end, and terminal states are told apart from time limits."""
    endings = recording.endings
    if not endings:
        yield _endless(recording, time_limit)
        return
    lengths = sorted(ending.length for ending in endings)
    cut = sum(ending.truncated and not ending.terminated for ending in endings)
    shown = (
        f"{len(endings)} episodes of {lengths[0]} to {lengths[-1]} steps (median "
        f"{lengths[len(lengths) // 2]}), {len(endings) - cut} terminated and {cut} truncated"
    )
    reason = _merged_because(recording)
    if reason:
        yield Finding(
            "terminated and truncated",
            "fault",
            f"{shown}: {reason}",
            "a time limit that is reported as terminated teaches that the state where it strikes is worth "
            "nothing; metta bootstraps its value if it is reported as truncated",
            "return terminated=False, truncated=True where only the time is up, or leave the limit to the "
            "setting wrappers=[TimeLimit(N)]",
        )
    else:
        yield Finding("episodes", "ok", shown)


def _endless(recording: Recording, time_limit: int | None) -> Finding:
    steps = len(recording.steps)
    if time_limit is not None and time_limit > steps:
        found = f"no episode ended in {steps} steps; they are cut after {time_limit}"
        return Finding("episodes", "note", found)
    if steps < _ENDLESS_STEPS:
        found = f"no episode ended in {steps} steps, which are too few to judge"
        return Finding("episodes", "note", found)
    return Finding(
        "episodes",
        "warning",
        f"no episode ended in {steps} steps of random actions",
        "if they need not end, evaluation waits for them, there are no returns to show, and no resets to "
        "learn from other beginnings",
        "cut them: wrappers=[TimeLimit(1000)]; or check the condition that should end them",
    )


def _merged_because(recording: Recording) -> str:
    """Why the two flags seem to be one; empty if they do not."""
    endings = recording.endings
    both = sum(ending.terminated and ending.truncated for ending in endings)
    if len(endings) > 1 and both == len(endings):
        return "every one of them is both"
    if any(ending.truncated for ending in endings):
        return ""
    counts = Counter(ending.length for ending in endings)
    longest = max(counts)
    at_limit = [ending for ending in endings if ending.length == longest]
    needed = 2 if longest % _ROUND == 0 else 3
    nearby = max((counts[length] for length in range(longest - 5, longest)), default=0)
    if longest < _SHORTEST_LIMIT or len(at_limit) < needed or len(at_limit) <= 2 * nearby:
        return ""
    if _end_is_visible(recording, at_limit):
        return ""
    return (
        f"{len(at_limit)} terminated at exactly {longest} steps, none later and none truncated, and "
        "nothing in the observation announces it"
    )


def _end_is_visible(recording: Recording, endings: list[Ending]) -> bool:
    """Whether a number of the observation, such as a clock, takes a value only before these ends."""
    vectors = recording.vectors
    last = np.zeros(vectors.shape[:2], np.bool_)
    for ending in endings:
        last[ending.step, ending.row] = True
    before, others = vectors[last], vectors[recording.acted & ~last]
    above = before.min(0) > others.max(0)
    below = before.max(0) < others.min(0)
    return bool((above | below).any())


def check_final_observations(recording: Recording) -> Iterator[Finding]:
    """Where an episode is cut, its last observation is its own, not the next one's first."""
    cut = [e for e in recording.endings if e.truncated and not e.terminated and e.final is not None]
    if len(cut) < 2:
        return
    if _look_like_starts(recording, cut):
        yield Finding(
            "final observation",
            "fault",
            f"the last observations of {len(cut)} truncated episodes are first observations of the next",
            "the environment resets itself before it returns the last observation, so the value after "
            "a time limit is taken from another episode",
            "return the observation that the last action led to; a vector environment gives it in "
            "info['final_obs'] (AutoresetMode.SAME_STEP), or resets in the next step (NEXT_STEP)",
        )
    else:
        yield Finding(
            "final observation", "ok", f"of {len(cut)} truncated episodes it is their own"
        )


def _final(ending: Ending) -> np.ndarray:
    assert ending.final is not None
    return np.asarray(flat({key: leaf[None] for key, leaf in ending.final.items()})[0])


def _needed_endings(recording: Recording) -> int:
    """More where every episode begins alike: an episode may end there by chance."""
    firsts = recording.vectors[recording.starts]
    return _MIN_COMPARED if (firsts != firsts[:1]).any() else 4 * _MIN_COMPARED


def _look_like_starts(recording: Recording, cut: list[Ending]) -> bool:
    """Whether each is as close to where episodes begin as these are to each other, and few others are."""
    vectors, starts = recording.vectors, recording.starts
    scale = vectors.reshape(-1, vectors.shape[-1]).std(0)
    scale = np.where(scale > 0, scale, 1.0)
    firsts = vectors[starts][:_MAX_COMPARED] / scale
    within = recording.acted & ~starts
    inside = vectors[within][:: max(1, within.sum() // _MAX_COMPARED)] / scale
    finals = np.stack([_final(ending) for ending in cut]) / scale
    if len(firsts) < _MIN_COMPARED or len(finals) < _needed_endings(recording) or not len(inside):
        return False
    between = _distances(firsts, firsts)
    np.fill_diagonal(between, np.inf)
    room = float(between.min(1).max()) + 1e-6
    is_close = _distances(finals, firsts).min(1) <= room
    return bool(is_close.all() and (_distances(inside, firsts).min(1) <= room).mean() < _FEW)


def _distances(some: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Of each of some vectors ``[N, D]`` to each of others ``[M, D]``: ``[N, M]``."""
    squares = np.square(some).sum(1)[:, None] + np.square(others).sum(1)[None]
    return np.asarray(np.sqrt(np.maximum(squares - 2 * some @ others.T, 0.0)))
