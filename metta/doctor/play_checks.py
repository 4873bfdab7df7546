"""Checks of what was recorded: numbers, scales, and how episodes end."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from metta.doctor.recording import Ending, Recording, flat
from metta.doctor.report import Finding
from metta.train.train_config import AgentConfig

__all__ = ["check_endings", "check_final_observations", "check_observations", "check_rewards"]

_LARGE_OBSERVATION = 1e3
_FLOAT32_DIGITS = 1e-6
_LARGE_REWARD = 1e4
_SMALL_REWARD = 1e-4
_SHORTEST_LIMIT = 16
"""Fixed lengths below this are rules of the task rather than time limits."""
_ROUND = 50


def check_observations(recording: Recording, agent: AgentConfig) -> Iterator[Finding]:
    """Finite, of a usable scale, and not always the same."""
    is_constant = True
    for leaf in recording.player.obs_spec.leaves:
        values = recording.leaf(leaf.key)
        if leaf.dtype.kind == "f" and not np.isfinite(values).all():
            bad = ~np.isfinite(values.reshape(len(values), -1)).all(1)
            yield Finding(
                "finite numbers",
                "fault",
                f"observation {leaf.key!r} is NaN or infinite in {bad.sum()} of {len(bad)} steps",
                "no policy can learn from it: training stops with an EnvError where it meets one",
                "find the division or logarithm behind it, or clip the observation in a wrapper",
            )
            continue
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
    per_element = values.reshape(len(values), -1)
    moving = per_element.std(0)
    level = np.abs(per_element).max(0)
    is_lost = (moving > 0) & (moving < _FLOAT32_DIGITS * level)
    if is_lost.any():
        yield Finding(
            "observation scale",
            "fault",
            f"{shown}, and {int(is_lost.sum())} of its numbers vary by less than their seventh digit",
            "metta keeps float observations as float32, in which such changes vanish",
            "subtract the offset in the environment or a wrapper, e.g. a position relative to the start",
        )
    elif largest > _LARGE_OBSERVATION and not agent.normalize_observations:
        yield Finding(
            "observation scale",
            "warning",
            shown,
            "networks begin with weights for inputs of about 1; larger ones saturate them",
            "set normalize_observations=true, or scale the observation in a wrapper",
        )
    else:
        yield Finding("observation scale", "ok", shown)


def check_rewards(recording: Recording, agent: AgentConfig) -> Iterator[Finding]:
    """Finite, and of a usable scale."""
    rewards = recording.rewards
    if not np.isfinite(rewards).all():
        bad = int((~np.isfinite(rewards)).sum())
        yield Finding(
            "finite numbers",
            "fault",
            f"the reward is NaN or infinite in {bad} of {len(rewards)} steps",
            "no policy can learn from it: training stops with an EnvError where it meets one",
            "find the division or logarithm behind it",
        )
        return
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
    reason = _merged_because(recording, time_limit)
    if reason:
        yield Finding(
            "terminated and truncated",
            "fault",
            f"{shown}: {reason}",
            "a time limit that is reported as terminated teaches that the state where it strikes is worth "
            "nothing; metta bootstraps its value if it is reported as truncated",
            "return terminated=False, truncated=True where only the time is up, or leave the limit to "
            "gymnasium.wrappers.TimeLimit",
        )
    else:
        yield Finding("episodes", "ok", shown)


def _endless(recording: Recording, time_limit: int | None) -> Finding:
    steps = len(recording.steps)
    if time_limit is not None and time_limit > steps:
        return Finding(
            "episodes",
            "note",
            f"no episode ended in {steps} steps; they are cut after {time_limit}",
        )
    return Finding(
        "episodes",
        "warning",
        f"no episode ended in {steps} steps of random actions",
        "without ends there are no returns to show, and no resets to learn from other beginnings",
        "truncate episodes with gymnasium.wrappers.TimeLimit(env, max_episode_steps=1000), or check the "
        "condition that should end them",
    )


def _merged_because(recording: Recording, time_limit: int | None) -> str:
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
    if longest == time_limit and len(at_limit) > 1:
        return f"{len(at_limit)} terminated at {longest} steps, the time limit, and none was truncated"
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
    before, others = vectors[last], vectors[~last]
    above = before.min(0) > others.max(0)
    below = before.max(0) < others.min(0)
    return bool((above | below).any())


def check_final_observations(recording: Recording) -> Iterator[Finding]:
    """Where an episode is cut, its last observation is its own, not the next one's first."""
    cut = [e for e in recording.endings if e.truncated and not e.terminated and e.final is not None]
    if len(cut) < 2 or not np.isfinite(recording.vectors).all():
        return
    if _are_of_the_next(recording, cut) or _look_like_starts(recording, cut):
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
        yield Finding("final observation", "ok", f"of {len(cut)} truncated episodes it is their own")


def _final(ending: Ending) -> np.ndarray:
    assert ending.final is not None
    return flat({key: leaf[None] for key, leaf in ending.final.items()})[0]


def _are_of_the_next(recording: Recording, cut: list[Ending]) -> bool:
    """Whether each equals what its row sees next, and observations are not equal all the time."""
    vectors = recording.vectors
    is_next = [np.array_equal(_final(e), vectors[e.step + 1, e.row]) for e in cut]
    return len(cut) > 2 and all(is_next) and _share_of_starts(recording) < 0.5


def _share_of_starts(recording: Recording) -> float:
    """How often an observation inside an episode equals a first one."""
    vectors, starts = recording.vectors, recording.starts
    firsts = {vector.tobytes() for vector in vectors[starts]}
    inside = vectors[~starts]
    return float(np.mean([vector.tobytes() in firsts for vector in inside])) if len(inside) else 1.0


def _look_like_starts(recording: Recording, cut: list[Ending]) -> bool:
    """Whether the last step of each jumps further than any other, to where episodes begin."""
    vectors, starts = recording.vectors, recording.starts
    scale = vectors.reshape(-1, vectors.shape[-1]).std(0)
    vectors = vectors / np.where(scale > 0, scale, 1.0)
    jumps = np.linalg.norm(np.diff(vectors, axis=0), axis=-1)[~starts[1:]]
    firsts = vectors[starts]
    finals = np.stack([_final(ending) / np.where(scale > 0, scale, 1.0) for ending in cut])
    before = np.stack([vectors[ending.step, ending.row] for ending in cut])
    if not len(jumps) or len(firsts) < 3:
        return False
    last_jumps = np.linalg.norm(finals - before, axis=-1)
    between = np.linalg.norm(firsts[:, None] - firsts[None], axis=-1)
    np.fill_diagonal(between, np.inf)
    room = between.min(1).max() + 1e-9
    to_first = np.linalg.norm(finals[:, None] - firsts[None], axis=-1).min(1)
    usual = float(np.quantile(jumps, 0.99))
    far = np.mean(last_jumps > 1.5 * usual)
    return bool(far > 0.5 and (to_first <= room).all())
