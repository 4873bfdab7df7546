"""Checks that play the same episodes again: seeding, actions without effect, masks that do not fit."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from gymnasium import spaces

from metta.doctor.players import Player, PlayError, Seen, Stepped, draw_actions
from metta.doctor.report import Finding
from metta.envs.rows.action_masks import draw_action, mask_layout_of

__all__ = ["check_actions", "check_masks", "check_seeding"]

_SEED = 31
_REPEATED_STEPS = 128
_TRIALS, _TRIAL_STEPS = 12, 64
_MAX_COMPONENTS = 64
_MASK_TRIALS = 24
_NAMED = 4


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
    space = player.action_space
    count = _num_components(space)
    dead = [part for part in range(min(count, _MAX_COMPONENTS)) if _is_dead(player, part)]
    if not dead:
        yield Finding("actions", "ok", "every part of the action has an effect")
        return
    steps = _TRIALS * _TRIAL_STEPS
    if len(dead) == count:
        found = f"no action changes anything in {steps} steps"
    else:
        named = ", ".join(map(str, dead[:_NAMED])) + (", ..." if len(dead) > _NAMED else "")
        found = f"parts {named} of {count} of the action change nothing in {steps} steps"
    yield Finding(
        "actions",
        "warning",
        found,
        "the environment does not read them, or what they do is neither observed nor rewarded; noise that "
        "has no effect slows learning",
        "remove them from action_space, or check the index with which step() reads them",
    )


def _num_components(space: spaces.Space) -> int:  # type: ignore[type-arg]  # its element does not matter
    return 1 if isinstance(space, spaces.Discrete) else int(np.prod(space.shape or (1,)))


def _is_dead(player: Player, part: int) -> bool:
    """Whether changing one part of every action never showed in what a row saw or earned."""
    return not any(_shows(player, part, _SEED + trial) for trial in range(_TRIALS))


def _shows(player: Player, part: int, seed: int) -> bool:
    _, usual = _play(player, seed, _TRIAL_STEPS)
    seen = player.reset(seed)
    generator = np.random.default_rng(seed + 1)
    for actions, expected in usual:
        stepped = player.step(_varied(player, actions, part, seen, generator))
        if not _same(stepped, expected):
            return True
        if stepped.ended.all():
            return False
        seen = stepped
    return False


def _play(
    player: Player, seed: int, steps: int, *, until_over: bool = True
) -> tuple[Seen, list[tuple[list[np.ndarray], Stepped]]]:
    """What is seen first, then actions and results; by default until an episode ended in every row."""
    first, generator = player.reset(seed), np.random.default_rng(seed)
    seen = first
    played: list[tuple[list[np.ndarray], Stepped]] = []
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
    masks = [None] * player.num_rows if seen.mask is None else list(seen.mask)
    varied = []
    for action, mask in zip(actions, masks, strict=True):
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
    if not player.mask_size or layout is None or len(layout.part_sizes) != 1:
        return
    tally = {True: [0, 0], False: [0, 0]}
    for trial in range(_MASK_TRIALS):
        for is_legal in (True, False):
            effect = _effect(player, _SEED + trial // 4, trial % 4 * 3, is_legal=is_legal)
            if effect is not None:
                tally[is_legal][0] += 1
                tally[is_legal][1] += effect
    (num_legal, legal_effects), (num_illegal, illegal_effects) = tally[True], tally[False]
    if not num_illegal:
        yield Finding("action mask", "note", "the masks that were seen forbid nothing")
        return
    legal, illegal = legal_effects / max(1, num_legal), illegal_effects / num_illegal
    shown = f"allowed actions change what is seen in {legal:.0%} of tries, forbidden ones in {illegal:.0%}"
    if illegal > 0.5 > legal:
        yield Finding(
            "action mask",
            "fault",
            shown,
            "the mask forbids what works and allows what does not: it is inverted, or belongs to another "
            "state",
            "give True where an action is legal, for the observation that is returned with the mask",
        )
    else:
        yield Finding("action mask", "ok", shown)


def _effect(player: Player, seed: int, steps: int, *, is_legal: bool) -> bool | None:
    """Whether an allowed or forbidden action changes what is seen; None if there is none to take."""
    first, played = _play(player, seed, steps)
    seen: Seen = played[-1][1] if played else first
    if seen.mask is None or (played and played[-1][1].ended.any()):
        return None
    choices = np.flatnonzero(seen.mask[0] == is_legal)
    if player.num_rows != 1 or not len(choices):
        return None
    space = player.action_space
    assert isinstance(space, spaces.Discrete)
    number = choices[seed % len(choices)] + space.start
    try:
        stepped = player.step([np.asarray(number, space.dtype)])
    except PlayError:
        return False  # it refuses the action, as it should
    if stepped.ended.any():
        return None
    return not _same(dataclasses.replace(stepped, mask=None), dataclasses.replace(seen, mask=None))


def _same(one: Seen, two: Seen) -> bool:
    """Whether all that a trainer would see is equal."""
    equal = all(_equal(one.obs[key], two.obs[key]) for key in one.obs)
    if isinstance(one, Stepped) and isinstance(two, Stepped):
        equal = equal and _equal(one.rewards, two.rewards)
        equal = equal and _equal(one.terminated, two.terminated)
        equal = equal and _equal(one.truncated, two.truncated)
    return equal


def _equal(one: np.ndarray, two: np.ndarray) -> bool:
    return bool(np.array_equal(one, two, equal_nan=one.dtype.kind == "f"))
