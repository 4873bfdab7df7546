"""Checks that play the same episodes again: seeding, actions without effect, masks that do not fit."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from metta.doctor.players import Leaves, Player, Seen, Stepped, draw_actions
from metta.doctor.report import Finding, verdict
from metta.envs.rows.action_masks import draw_action, mask_layout_of
from metta.errors import EnvError

__all__ = ["check_actions", "check_masks", "check_seeding"]

_SEED = 31
_REPEATED_STEPS = 128
_TRIALS, _TRIAL_STEPS = 12, 64
_MAX_PARTS = 64
_MASK_TRIALS = 24
_NAMED = 4
_Played = list[tuple[list[np.ndarray], Stepped]]
"""Actions, and what they gave."""


def check_seeding(player: Player, other: Player) -> Iterator[Finding]:
    """The same seed and actions give the same episodes; `other` may be the same player.

    Yields a problem, or one `ok`.
    """
    first, played = _play(player, _SEED, _REPEATED_STEPS, until_over=False)
    if not _same(first, other.reset(_SEED)):
        yield Finding(
            "seeding",
            "warning",
            f"two resets with seed {_SEED} begin with different observations",
            "reset() ignores its seed, or draws from a generator of its own: no run can be repeated, and "
            "a resumed run differs",
            "call super().reset(seed=seed) first, and draw everything from self.np_random",
        )
        return
    for step, (actions, expected) in enumerate(played, 1):
        stepped = other.step(actions)
        if not _same(stepped, expected):
            what = "a new episode begins" if stepped.ended.any() else "step() goes"
            yield Finding(
                "seeding",
                "warning",
                f"with equal seeds and actions, {what} differently at step {step}",
                "something random in it does not follow from the seed (np.random, random, the clock, the "
                "order of a set), or a state survives reset()",
                "draw everything from self.np_random, and set every attribute anew in reset()",
            )
            return
    yield Finding("seeding", "ok", f"equal seeds and actions gave {_REPEATED_STEPS} equal steps")


def check_actions(player: Player) -> Iterator[Finding]:
    """Each part of the action changes something; only for environments that obey their seeds."""
    count = int(np.prod(player.action_space.shape or (1,)))
    dead = tried = list(range(min(count, _MAX_PARTS)))
    for seed in range(_SEED, _SEED + _TRIALS):
        _, usual = _play(player, seed, _TRIAL_STEPS)
        dead = [part for part in dead if not _shows(player, part, seed, usual)]
        if not dead:
            which = "every part" if len(tried) == count else f"each of the first {len(tried)} parts"
            yield Finding("actions", "ok", f"{which} of the action has an effect")
            return
    steps = _TRIALS * _TRIAL_STEPS
    named = ", ".join(map(str, dead[:_NAMED])) + (", ..." if len(dead) > _NAMED else "")
    yield Finding(
        "actions",
        "warning",
        f"no action changes anything in {steps} steps"
        if len(dead) == count
        else f"of the action's {count} parts, those of index {named} change nothing in {steps} steps",
        "the environment does not read them, or what they do is neither observed nor rewarded; noise that "
        "has no effect slows learning",
        "remove them from action_space, or check the index with which step() reads them",
    )


def _shows(player: Player, part: int, seed: int, usual: _Played) -> bool:
    """Whether changing one part of every action shows in what a row sees or earns."""
    seen = player.reset(seed)
    generator = np.random.default_rng(seed + 1)
    for actions, expected in usual:
        stepped = player.step(_varied(player, actions, part, seen, generator))
        if not _same(stepped, expected):
            return True
        seen = stepped
    return False


def _play(
    player: Player, seed: int, steps: int, *, until_over: bool = True
) -> tuple[Seen, _Played]:
    """What is seen first, then actions and results; by default until an episode ended in every row."""
    first, generator = player.reset(seed), np.random.default_rng(seed)
    seen = first
    played: _Played = []
    over = np.zeros(player.num_rows, np.bool_)
    for _ in range(steps):
        actions = draw_actions(player, seen, generator)
        stepped = player.step([action.copy() for action in actions])
        played.append((actions, stepped))
        over |= stepped.ended
        if over.all() and until_over:
            break
        seen = stepped
    return first, played


def _varied(
    player: Player,
    actions: Sequence[np.ndarray],
    part: int,
    seen: Seen,
    generator: np.random.Generator,
) -> list[np.ndarray]:
    """The same actions with another legal value in one part of each."""
    varied = []
    for action, mask in zip(actions, seen.row_masks(player.num_rows), strict=True):
        other = draw_action(player.action_space, mask, generator)
        for _ in range(8):
            if other.flat[part] != action.flat[part]:
                break
            other = draw_action(player.action_space, mask, generator)
        changed = action.copy()
        changed.flat[part] = other.flat[part]
        varied.append(changed)
    return varied


def check_masks(player: Player) -> Iterator[Finding]:
    """Actions that a mask forbids have less effect than those it allows; for one seeded environment."""
    layout = mask_layout_of(player.action_space)
    is_simple = layout is not None and len(layout.part_sizes) == 1 and player.num_rows == 1
    if not player.mask_size or not is_simple:
        return
    effects: dict[bool, list[bool]] = {True: [], False: []}
    for trial in range(_MASK_TRIALS):
        for is_legal, found in effects.items():
            effect = _effect(player, _SEED + trial // 4, trial % 4 * 3, is_legal=is_legal)
            found += [] if effect is None else [effect]
    if not effects[False]:
        yield Finding("action mask", "note", "the masks that were seen forbid nothing")
        return
    legal, illegal = (sum(found) / max(1, len(found)) for found in effects.values())
    shown = f"allowed actions change what is seen in {legal:.0%} of tries, forbidden ones in {illegal:.0%}"
    yield verdict(
        "action mask",
        "fault" if illegal > 0.5 > legal else "ok",
        shown,
        "the mask forbids what works and allows what does not: it is inverted, or belongs to another state",
        "give True where an action is legal, for the observation that is returned with the mask",
    )


def _effect(player: Player, seed: int, steps: int, *, is_legal: bool) -> bool | None:
    """Whether an allowed or forbidden action changes what is seen; None if there is none to take."""
    first, played = _play(player, seed, steps)
    seen: Seen = played[-1][1] if played else first
    if seen.mask is None or (played and played[-1][1].ended.any()):
        return None
    choices = np.flatnonzero(seen.mask[0] == is_legal)
    if not len(choices):
        return None
    space = player.action_space
    assert isinstance(space, spaces.Discrete)
    number = choices[seed % len(choices)] + space.start
    try:
        stepped = player.step([np.asarray(number, space.dtype)])
    except EnvError:
        return False  # it refuses the action, as it should
    return None if stepped.ended.any() else not _same_leaves(stepped.obs, seen.obs)


def _same(one: Seen, two: Seen) -> bool:
    """Whether all that a trainer would see is equal; both are steps, or neither."""
    columns: tuple[dict[str, Any], dict[str, Any]] = vars(one), vars(two)
    names = [name for name in ("mask", "rewards", "terminated", "truncated") if name in columns[0]]
    return _same_leaves(one.obs, two.obs) and all(
        np.array_equal(*(column[name] for column in columns)) for name in names
    )


def _same_leaves(one: Leaves, two: Leaves) -> bool:
    return all(np.array_equal(one[key], two[key]) for key in one)
