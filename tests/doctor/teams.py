"""Sound environments of many agents, who come and go at different times."""

from typing import Any

import numpy as np
from gymnasium import spaces

from tests.doctor.planted_faults import Walk


class Timed(Walk):
    """Is cut after `length` steps and ends in no other way; shows how many were made."""

    length = 20

    def observe(self) -> Any:
        return np.array([np.clip(self.place, -0.1, 0.1) + 2, self.steps + 5], np.float32)

    def reply(self, over: bool, late: bool) -> Any:
        return self.observe(), self.reward(), False, self.steps >= self.length, {}


class Short(Timed):
    """Many episodes in few steps."""

    length = 12


class Guests:
    """Each agent walks alone: it is cut after its steps, which it sees.

    One is there when an episode begins; in each step another joins, also of those who left before.
    After 30 steps all arrive, and it is over.
    """

    names: tuple[str, ...] = ("one", "two", "three")
    walk: type[Timed] = Short
    is_cut = True
    """Otherwise they end after these steps."""

    def __init__(self) -> None:
        self.possible_agents = list(self.names)
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-9.0, 99.0, (2,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        if seed is not None:
            self.seeds = np.random.default_rng(seed)
        self.now, self.agents, self.waiting = 0, [], list(self.names)
        self.walks: dict[str, Walk] = {}
        first = self.names[0]
        return {first: self._joined(first)}, {first: {}}

    def _joined(self, name: str) -> Any:
        self.waiting.remove(name)
        self.agents.append(name)
        self.walks[name] = self.walk()
        return self.walks[name].reset(seed=int(self.seeds.integers(1 << 30)))[0]

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        self.now += 1
        replies = {name: self.walks[name].step(action) for name, action in actions.items()}
        late = self.now >= 30
        seen = {name: reply[0] for name, reply in replies.items()}
        over = {name: late or (reply[3] and not self.is_cut) for name, reply in replies.items()}
        cut = {name: reply[3] and not over[name] for name, reply in replies.items()}
        joining = self.joining() if not late else []
        for name in replies:
            if over[name] or cut[name]:
                self.agents.remove(name)
                self.waiting.append(name)
        seen |= {name: self._joined(name) for name in joining}
        rewards = {name: reply[1] for name, reply in replies.items()}
        return seen, rewards, over, cut, {name: {} for name in replies}

    def joining(self) -> list[str]:
        return self.waiting[:1]

    def close(self) -> None:
        return None


class Ending(Guests):
    """What an agent sees announces its end, which is a rule of the task."""

    walk, is_cut = Timed, False


class Die(Short):
    """Shows a die, which tells nothing: beginnings, ends and all between look alike."""

    def observe(self) -> Any:
        return self.np_random.integers(1, 4, 1).repeat(2).astype(np.float32)


class Dice(Guests):
    """Six agents, of whom one is there at a time."""

    names, walk = ("one", "two", "three", "four", "five", "six"), Die

    def joining(self) -> list[str]:
        return self.waiting[:1] if not self.agents else []


class Return(Timed):
    """Goes away and comes back to where it began, whatever is done."""

    def observe(self) -> Any:
        return np.array([1 + min(self.steps, self.length - self.steps), 1], np.float32)


class Returns(Guests):
    """All begin alike, and are cut where they began."""

    walk = Return
