"""Finds out, on throwaway environments, how environments can be part of a checkpoint.

That an environment can be pickled or copied proves nothing: some come back fresh, some changed. So
it is tried. One environment continues from a cut; another one is brought to the same cut and gets the same
actions; everything that a trainer would see must then be equal to the bit.
"""

import contextlib
import functools
import random
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from metta.envs.restore.global_generators import global_generators_kept
from metta.envs.restore.own_state import lasting_wrapper
from metta.envs.restore.row_places import RowPlace, bring_row, row_states
from metta.envs.rows.action_masks import draw_action
from metta.envs.rows.gym_adapter import GymRows, RowArrays
from metta.envs.rows.row_spec import EnvFactory, GymEnv, RowSpec, build_env
from metta.envs.vec_env import RestoreClass, RestoreSupport
from metta.errors import ConfigError, EnvError, StateError
from metta.seeding import numpy_generator

__all__ = ["check_restore"]

_SEED, _OTHER_SEED = 20_240_229, 7
_CUTS = ((True, 11), (True, 0), (False, 3), (True, 29))
"""Where the original is cut: whether an episode is begun for it, and how many steps are then taken."""
_STEPS_BEFORE_CUTS, _STEPS_AFTER_CUT, _STEPS_IN_NEXT_EPISODE = 8, 48, 16
_SECONDS = 2.0
"""Enough for each class: slow environments are compared at fewer cuts, over fewer steps."""
_MIN_STEPS = 3


def check_restore(
    factory: EnvFactory | Sequence[EnvFactory],
    spec: RowSpec,
    wanted: RestoreClass | Literal["auto"] = "auto",
    *,
    in_use: Collection[GymEnv] = (),
) -> RestoreSupport:
    """The best class that environments of these factories can have, or the `wanted` one.

    Environments made here are closed again; a factory that returns one of those `in_use` is not tried. A
    wanted class that fails its test is a `ConfigError`.
    """
    if wanted == "boundary":
        return RestoreSupport("boundary", "as asked for")
    factories = [factory] if callable(factory) else factory
    trial = _Trial(_distinct(factories), spec, in_use)
    against: dict[RestoreClass, str] = {}
    names: list[RestoreClass] = ["snapshot", "repeat"] if wanted == "auto" else [wanted]
    for name in names:
        reason = trial.reason_against(_WAYS[name])
        if reason is None:
            return RestoreSupport(name, "; ".join(against.values()))
        against[name] = reason
    reasons = "; ".join(f"not {name}: {reason}" for name, reason in against.items())
    if wanted != "auto":
        raise ConfigError(
            f"environments of class {wanted!r} were asked for, but these are {reasons}; ask for 'auto' "
            "to get the best class that they can have"
        )
    return RestoreSupport("boundary", reasons)


class _Player:
    """One environment, stepped as a trainer would step it."""

    def __init__(self, env: GymEnv, spec: RowSpec) -> None:
        self._arrays = RowArrays.allocate(spec.obs_spec, 1, spec.mask_size)
        self._rows = GymRows([env], spec, self._arrays, 0)
        self._action_space = spec.action_space
        self._obs = spec.obs_spec.zeros(1)
        self._actions: list[np.ndarray] = []
        """Of the unfinished episode."""

    def refuse_lasting_statistics(self) -> None:
        name = lasting_wrapper(self._rows.envs[0])
        if name is not None:
            raise EnvError(
                f"{name} keeps statistics from episode to episode, which repeated actions do not bring "
                "back; normalise with normalize_observations=true and normalize_returns=true instead"
            )

    def begin(self, seed: int) -> None:
        self._rows.reset([seed], self._obs)
        self._actions = []

    def begin_fresh(self) -> "_Seen":
        self._rows.begin_fresh(self._obs)
        self._actions = []
        return self._seen()

    def step(self, action: np.ndarray) -> "_Seen":
        self._actions.append(action)
        # a copy: an environment may keep the action, or change it
        self._rows.step(action[None].copy(), self._obs)
        if self._arrays.starts[0]:
            self._actions = []
        return self._seen()

    def draw_action(self, generator: np.random.Generator) -> np.ndarray:
        masks = self._arrays.action_mask
        return draw_action(self._action_space, None if masks is None else masks[0], generator)

    def take_state(self) -> RowPlace:
        """Where this player is now, by the state of its environment."""
        state = _as_saved(row_states(self._rows)[0])
        return RowPlace(state["seed"], state["episode"], state["env"], np.empty(0))

    def take_actions(self) -> RowPlace:
        """The same by the seed and the actions of the unfinished episode."""
        seed, episode = int(self._rows.row_seeds[0]), int(self._rows.episodes[0])
        return RowPlace(seed, episode, None, np.array(self._actions))

    def bring_to(self, place: RowPlace) -> None:
        bring_row(self._rows, 0, place, self._obs)

    def _seen(self) -> "_Seen":
        arrays = self._arrays
        seen = [(f"observation {key!r}", array.tobytes()) for key, array in self._obs.items()]
        if arrays.action_mask is not None:
            seen.append(("action mask", arrays.action_mask.tobytes()))
        seen.append(("reward", arrays.rewards.tobytes()))
        seen.append(
            ("end of the episode", arrays.terminated.tobytes() + arrays.truncated.tobytes())
        )
        if self._rows.any_cut:
            seen += [(f"final observation {k!r}", v.tobytes()) for k, v in arrays.final_obs.items()]
        for _, numbers in self._rows.infos:
            seen += [(f"info {name!r}", np.float64(x).tobytes()) for name, x in numbers.items()]
        return seen


_Seen = list[tuple[str, bytes]]
"""All that a trainer gets to see of a step, by name."""
_Take = Callable[[_Player], RowPlace]

_WAYS: dict[RestoreClass, _Take] = {
    "snapshot": _Player.take_state,
    "repeat": _Player.take_actions,
    # fresh episodes are equal where repeated ones are
    "sync_reset": _Player.take_actions,
}


class _Trial:
    """Tries one class after another, on environments of every factory."""

    def __init__(
        self, factories: Sequence[EnvFactory], spec: RowSpec, in_use: Collection[GymEnv]
    ) -> None:
        self._factories, self._spec = factories, spec
        self._known_envs = list(in_use)
        self._deadline = 0.0

    def reason_against(self, take: _Take) -> str | None:
        """Why environments cannot be brought to a cut in this way; None where they can."""
        self._deadline = time.monotonic() + _SECONDS
        try:
            with global_generators_kept():
                for factory in self._factories:
                    self._compare_cuts(factory, take)
        except (EnvError, StateError) as error:
            return str(error)
        return None

    def _compare_cuts(self, factory: EnvFactory, take: _Take) -> None:
        generator = numpy_generator(_SEED, "restore check")
        with self._player(factory) as original:
            if take is not _Player.take_state:
                original.refuse_lasting_statistics()
            original.begin(_SEED)
            take(original)  # what gives no state need not be played
            # what survives a reset must be there at the first cut already
            self._play_on(original, generator, _STEPS_BEFORE_CUTS)
            for begins, num_steps in _CUTS:
                if begins:
                    original.begin_fresh()
                self._play_on(original, generator, num_steps)
                place = take(original)
                actions, seen = self._play_on(original, generator, _STEPS_AFTER_CUT)
                begun = original.begin_fresh()
                more, seen_more = self._play_on(original, generator, _STEPS_IN_NEXT_EPISODE)
                with self._player(factory) as other:
                    _lead_astray(other)
                    other.bring_to(place)
                    _repeat(other, actions, seen)
                    _compare(begun, other.begin_fresh(), 0)
                    _repeat(other, more, seen_more)
                if time.monotonic() > self._deadline:
                    return

    def _play_on(
        self, player: _Player, generator: np.random.Generator, num_steps: int
    ) -> tuple[list[np.ndarray], list[_Seen]]:
        """Random legal actions, and what they gave."""
        actions, seen = [], []
        for step in range(num_steps):
            if step >= _MIN_STEPS and time.monotonic() > self._deadline:
                break
            actions.append(player.draw_action(generator))
            seen.append(player.step(actions[-1]))
        return actions, seen

    @contextlib.contextmanager
    def _player(self, factory: EnvFactory) -> Iterator[_Player]:
        env = build_env(factory, 0)
        if any(env is known for known in self._known_envs):
            raise EnvError(
                "the environment exists once only, so nothing can be tried on it; give an id or a "
                "factory that makes a new one at each call"
            )
        self._known_envs.append(env)
        try:
            yield _Player(env, self._spec)
        finally:
            # a throwaway that fails to close does not rule out a class
            with contextlib.suppress(Exception):
                env.close()


def _as_saved(state: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint makes of a row's state; `StateError` where it would not take it."""
    from metta.state_tree import pack_state, unpack_state  # they load torch; workers do without

    packed, tensors = pack_state({"environments": {"state": {"rows": [state]}}})
    saved: dict[str, Any] = unpack_state(packed, tensors)["environments"]["state"]["rows"][0]
    return saved


def _lead_astray(player: _Player) -> None:
    """A player must reach the cut from any state."""
    generator = numpy_generator(_OTHER_SEED, "restore check")
    player.begin(_OTHER_SEED)
    for _ in range(3):
        player.step(player.draw_action(generator))
    _stir_global_generators()


def _repeat(player: _Player, actions: list[np.ndarray], expected: list[_Seen]) -> None:
    for step, (action, seen) in enumerate(zip(actions, expected, strict=True), 1):
        _compare(seen, player.step(action), step)
        _stir_global_generators()


def _compare(expected: _Seen, found: _Seen, step: int) -> None:
    if expected == found:
        return
    names = [before[0] for before in expected if before not in found]
    raise EnvError(
        f"the same seed and actions gave another {(names or ['result'])[0]} at step {step}"
    )


def _distinct(factories: Sequence[EnvFactory]) -> list[EnvFactory]:
    """One of each: rows often have one and the same, or the same with the same arguments."""
    found: dict[tuple[Any, ...], EnvFactory] = {}
    for factory in factories:
        key: tuple[Any, ...] = (id(factory),)
        if isinstance(factory, functools.partial):
            arguments = [*factory.args, *factory.keywords, *factory.keywords.values()]
            key = (id(factory.func), *map(id, arguments))
        found.setdefault(key, factory)
    return list(found.values())


def _stir_global_generators() -> None:
    """Draw from them, as other code in the process may: it reveals environments that depend on them."""
    random.random()
    np.random.random()  # noqa: NPY002 (that generator is meant)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.rand(())
