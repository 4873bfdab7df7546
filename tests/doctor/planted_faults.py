"""Environments, networks and losses with one fault each, over a walk that is sound."""

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor, nn


class Walk(gymnasium.Env[Any, Any]):
    """Sound: walk left or right with noise; beyond 1 it ends, after 30 steps it is cut."""

    limit: int | None = 30
    observation_space: spaces.Space[Any] = spaces.Box(-3.0, 3.0, (2,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        self.place, self.speed = self.begin()
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.speed = 0.8 * self.speed + 0.05 * self.push(action) + self.noise()
        self.place += self.speed
        over, late = abs(self.place) > 1, self.limit is not None and self.steps >= self.limit
        return self.reply(bool(over), bool(late and not over))

    def begin(self) -> tuple[float, float]:
        return float(self.np_random.uniform(-0.05, 0.05)), 0.0

    def noise(self) -> float:
        return 0.02 * float(self.np_random.standard_normal())

    def push(self, action: Any) -> float:
        return 2.0 * float(action) - 1.0

    def observe(self) -> Any:
        return np.array([self.place, self.speed], np.float32)

    def reward(self) -> Any:
        return 1.0 - abs(self.place)

    def reply(self, over: bool, late: bool) -> Any:
        return self.observe(), self.reward(), over, late, {}


class MergedFlags(Walk):
    def reply(self, over: bool, late: bool) -> Any:
        return self.observe(), self.reward(), over or late, False, {}


class TwinFlags(Walk):
    def reply(self, over: bool, late: bool) -> Any:
        return self.observe(), self.reward(), over or late, over or late, {}


class UnseededReset(Walk):
    def begin(self) -> tuple[float, float]:
        return float(np.random.default_rng().uniform(-0.05, 0.05)), 0.0


class UnseededStep(Walk):
    def noise(self) -> float:
        return 0.02 * float(np.random.default_rng().standard_normal())


class HugeReward(Walk):
    def reward(self) -> float:
        return 1e6 * (1.0 - abs(self.place))


class HugeObservation(Walk):
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def observe(self) -> Any:
        return 1e5 * np.array([self.place, self.speed])


class FarObservation(Walk):
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def observe(self) -> Any:
        return 1e9 + np.array([self.place, self.speed])


class MaskInMethod(Walk):
    def action_masks(self) -> np.ndarray:
        return np.array([self.place > -0.5, self.place < 0.5])


class MaskUnderOtherName(Walk):
    def reply(self, over: bool, late: bool) -> Any:
        return *super().reply(over, late)[:4], {"legal_actions": [0]}


class MaskInOtherEntry(Walk):
    observation_space = spaces.Dict(
        {"avail_actions": spaces.MultiBinary(2), "seen": Walk.observation_space}
    )

    def observe(self) -> Any:
        return {"avail_actions": np.ones(2, np.int8), "seen": super().observe()}


class InvertedMask(Walk):
    """Actions 2 and 3 do nothing, and the mask allows only them."""

    action_space = spaces.Discrete(4)
    mask = np.array([False, False, True, True])

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        return super().reset(**kwargs)[0], {"action_mask": self.mask}

    def begin(self) -> tuple[float, float]:
        return float(self.np_random.uniform(-0.05, 0.05)), 0.0

    def step(self, action: Any) -> Any:
        if action < 2:
            self.place += self.push(action) * 0.1
        self.steps += 1
        obs = self.observe()
        return obs, 0.0, bool(abs(self.place) > 1), self.steps >= 30, {"action_mask": self.mask}


class Endless(Walk):
    limit = None

    def reply(self, over: bool, late: bool) -> Any:
        self.place = float(np.clip(self.place, -1, 1))
        return self.observe(), self.reward(), False, False, {}


class DeadDimension(Walk):
    action_space = spaces.Box(-1.0, 1.0, (3,), np.float32)

    def push(self, action: Any) -> float:
        return float(action[0] + action[1])


class AliasedBuffer(Walk):
    def observe(self) -> Any:
        if not hasattr(self, "buffer"):
            self.buffer = np.zeros(2, np.float32)
        self.buffer[:] = self.place, self.speed
        return self.buffer


class ResetsItself(Walk):
    def reply(self, over: bool, late: bool) -> Any:
        reward = self.reward()
        if over or late:
            self.place, self.speed = self.begin()
        return self.observe(), reward, over, late, {}


class RareNan(Walk):
    def observe(self) -> Any:
        obs = super().observe()
        if self.np_random.random() < 1 / 400:
            obs[1] = np.nan
        return obs


class NanReward(Walk):
    def reward(self) -> float:
        return float("nan") if self.np_random.random() < 1 / 400 else 0.0


class OutsideOfSpace(Walk):
    observation_space = spaces.Box(-0.1, 0.1, (2,), np.float32)


class WrongDtype(Walk):
    def observe(self) -> Any:
        return np.array([self.place, self.speed], np.float64)


class WrongShape(Walk):
    def observe(self) -> Any:
        return np.zeros(3, np.float32)


class NoReward(Walk):
    def reward(self) -> Any:
        return None


class TextReward(Walk):
    def reward(self) -> Any:
        return "much"


class ConstantObservation(Walk):
    def observe(self) -> Any:
        return np.zeros(2, np.float32)


class OldApi(Walk):
    def reply(self, over: bool, late: bool) -> Any:
        return self.observe(), self.reward(), over or late, {}


class RaisesLater(Walk):
    def noise(self) -> float:
        if self.steps > 20:
            raise IndexError("list index out of range")
        return 0.0


class FailsToClose(Walk):
    def close(self) -> None:
        raise OSError("no socket to close")


class RandomMask(Walk):
    """Its mask does not follow from the seed; what it shows does."""

    def reply(self, over: bool, late: bool) -> Any:
        return *super().reply(over, late)[:4], {"action_mask": self.drawn()}

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        return super().reset(**kwargs)[0], {"action_mask": self.drawn()}

    def drawn(self) -> np.ndarray:
        mask = np.zeros(2, bool)
        mask[np.random.default_rng().integers(2)] = True
        return mask


class TwoNarrowLeaves(Walk):
    """Both entries leave their bounds in each step."""

    observation_space = spaces.Dict(
        {name: spaces.Box(-1e-3, 1e-3, (1,), np.float32) for name in ("place", "steps")}
    )

    def observe(self) -> Any:
        place, steps = ([1 + abs(self.place)], [1 + self.steps])
        return {"place": np.array(place, np.float32), "steps": np.array(steps, np.float32)}


class WideActions(DeadDimension):
    action_space = spaces.Box(-1e4, 1e4, (1,), np.float32)

    def push(self, action: Any) -> float:
        return float(action[0]) / 1e4


class LosesFinalObservation(SyncVectorEnv):
    """Gives the first observation of the next episode as the last one of this."""

    def __init__(self) -> None:
        super().__init__([Walk] * 4, autoreset_mode=AutoresetMode.SAME_STEP)

    def step(self, actions: Any) -> Any:
        obs, rewards, terminated, truncated, infos = super().step(actions)
        if "final_obs" in infos:
            for row in np.flatnonzero(infos["_final_obs"]):
                infos["final_obs"][row] = obs[row].copy()
        return obs, rewards, terminated, truncated, infos


class Network(nn.Module):
    """Sound: two small networks for the walk."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.actor = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
        self.critic = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(obs), self.critic(obs)


class Lstm(nn.Module):
    """Sound: a user's own recurrent network."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell = nn.LSTMCell(2, 32)
        self.actor, self.critic = nn.Linear(32, 2), nn.Linear(32, 1)

    def initial_state(self, num_rows: int) -> dict[str, Tensor]:
        return {name: torch.zeros(num_rows, 32) for name in ("hidden", "cell")}

    def forward(self, obs: Tensor, state: dict[str, Tensor], starts: Tensor) -> dict[str, Any]:
        hidden, cell, outputs = state["hidden"], state["cell"], []
        for step in range(len(obs)):
            hidden, cell = self.kept(hidden, starts[step]), self.kept(cell, starts[step])
            hidden, cell = self.cell(obs[step], (hidden, cell))
            outputs.append(hidden)
        out = torch.stack(outputs)
        new = {"hidden": hidden, "cell": cell}
        return {"action_logits": self.actor(out), "value": self.critic(out), "state": new}

    def kept(self, state: Tensor, starts: Tensor) -> Tensor:
        return torch.where(starts[:, None], 0.0, state)


class Unforgetting(Lstm):
    def kept(self, state: Tensor, starts: Tensor) -> Tensor:
        return state


class CutActor(Network):
    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(obs).detach(), self.critic(obs)


class BlindActor(Network):
    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(0 * obs), self.critic(obs)


class MixedRows(Network):
    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(obs - obs.mean(0)), self.critic(obs)


class MixedCritic(Network):
    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(obs), self.critic(obs - obs.mean(0))


class TooManyLogits(Network):
    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(obs).repeat(1, 2), self.critic(obs)


def wrong_value_loss(new_values: Tensor, returns: Tensor) -> Tensor:
    """A value loss that is maximised."""
    return -(new_values - returns).square().mean()


def wrong_policy_loss(new_log_probs: Tensor, advantages: Tensor) -> Tensor:
    """A policy gradient that makes good actions rare."""
    return (new_log_probs * advantages).mean()


def idle_loss(rewards: Tensor) -> Tensor:
    """Of no parameter."""
    return rewards.mean()


def sound_loss(entropy: Tensor) -> Tensor:
    """A small entropy bonus."""
    return -0.01 * entropy.mean()


class NoisyReward(Walk):
    """Only what it pays does not follow from the seed."""

    def reward(self) -> float:
        return float(np.random.default_rng().random())


class TinyReward(Walk):
    def reward(self) -> float:
        return 1e-6


class Clock(Walk):
    """Always 20 steps, which it shows: the end is a rule of the task."""

    observation_space = spaces.Box(-3.0, 30.0, (2,), np.float32)

    def observe(self) -> Any:
        return np.array([self.place, self.steps], np.float32)

    def reply(self, over: bool, late: bool) -> Any:
        return self.observe(), self.reward(), self.steps >= 20, False, {}


class RandomLength(Walk):
    """16 to 20 steps, by chance: the longest are not cut."""

    def begin(self) -> tuple[float, float]:
        self.length = int(self.np_random.integers(16, 21))
        return super().begin()

    def reply(self, over: bool, late: bool) -> Any:
        return self.observe(), self.reward(), self.steps >= self.length, False, {}


class NumbersAsFlags(Walk):
    def reply(self, over: bool, late: bool) -> Any:
        return self.observe(), self.reward(), int(over), int(late), {}


class NarrowActions(DeadDimension):
    action_space = spaces.Box(-1e-3, 1e-3, (1,), np.float32)

    def push(self, action: Any) -> float:
        return 1e3 * float(action[0])


class Masked(Walk):
    """A sound mask; `forbidden` says what else is done with illegal actions."""

    action_space = spaces.Discrete(3)
    mask = np.array([True, True, False])

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        return super().reset(**kwargs)[0], {"action_mask": self.mask}

    def reply(self, over: bool, late: bool) -> Any:
        return *super().reply(over, late)[:4], {"action_mask": self.mask}


class Refuses(Masked):
    def step(self, action: Any) -> Any:
        if not self.mask[int(action)]:
            raise ValueError("an illegal move")
        return super().step(action)


class ForbidsNothing(Masked):
    mask = np.ones(3, bool)


class Stateless(Lstm):
    """Never reads its state."""

    def kept(self, state: Tensor, starts: Tensor) -> Tensor:
        return 0 * state
