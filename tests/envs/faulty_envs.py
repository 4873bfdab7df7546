"""Environments that go wrong in one chosen way; free of pytest, so that workers start quickly."""

import os
import signal
import sys
import time
from typing import Any

import numpy as np
from gymnasium import spaces

from metta.envs.toy import CountdownEnv


class SimulatorError(RuntimeError):
    """An error that only the environment knows."""


class FaultyEnv(CountdownEnv):
    """Counts to nine, but does something bad in its `at`-th step (0: in reset)."""

    def __init__(self, fault: str, at: int = 3) -> None:
        super().__init__(length=9)
        self.fault, self.at = fault, at

    def reset(self, **kwargs: Any) -> Any:
        result = super().reset(**kwargs)
        return result if self.at else self._misbehave(result)

    def step(self, action: int) -> Any:
        result = super().step(action)
        return self._misbehave(result) if self.steps == self.at else result

    def _misbehave(self, result: Any) -> Any:
        match self.fault:
            case "raise":
                raise SimulatorError("the simulator lost its mind")
            case "sys_exit":
                sys.exit(5)
            case "exit":
                os._exit(3)
            case "exit_with_child":
                if os.fork():
                    os._exit(3)
                # a child that holds the pipes of the worker open for a while
                time.sleep(3)
                os._exit(0)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "segfault":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "hang":
                time.sleep(600)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
        return result

    def close(self) -> None:
        if self.fault == "close":
            raise SimulatorError("the simulator would not stop")


class ReplyEnv(CountdownEnv):
    """Returns whatever reward, observation or info it was told to."""

    def __init__(self, **reply: Any) -> None:
        super().__init__(length=2)
        self.reply = reply

    def step(self, action: int) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return (
            self.reply.get("observation", observation),
            self.reply.get("reward", reward),
            terminated,
            truncated,
            self.reply.get("info", info),
        )


class WorldEnv(CountdownEnv):
    """Tells about the process it lives in, at the end of each one-step episode."""

    def __init__(self) -> None:
        super().__init__(length=1)

    def step(self, action: int) -> Any:
        observation, reward, terminated, truncated, _ = super().step(action)
        info = {
            "pid": os.getpid(),
            "threads": int(os.environ["OMP_NUM_THREADS"]),
            "marker": int(os.environ.get("METTA_TEST_MARKER", "-1")),
            "main_is_bare": not hasattr(sys.modules["__main__"], "__file__"),
        }
        return observation, reward, terminated, truncated, info


class MaskedEnv(CountdownEnv):
    """Gives the masks of a list, one after another, in `info`; None leaves the mask out."""

    def __init__(self, masks: list[Any], action_space: Any = None) -> None:
        super().__init__(length=50)
        self.action_space = spaces.Discrete(3) if action_space is None else action_space
        self.masks = masks

    def reset(self, **kwargs: Any) -> Any:
        observation, _ = super().reset(**kwargs)
        return observation, self._info()

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, self._info()

    def _info(self) -> dict[str, Any]:
        mask = self.masks[min(self.steps, len(self.masks) - 1)]
        return {} if mask is None else {"action_mask": mask}


class OtherSpaceEnv(CountdownEnv):
    """Like a countdown, with an action more."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Discrete(3)


class WideBoxEnv(CountdownEnv):
    """Promises float64 observations."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0.0, 9.0, (1,), np.float64)


class StrangerEnv(CountdownEnv):
    """Observes the number of its process after the first step: no other process can repeat it."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0.0, np.inf, (1,), np.float32)
        self.has_begun = False

    def reset(self, **kwargs: Any) -> Any:
        self.has_begun = True
        return super().reset(**kwargs)

    def step(self, action: int) -> Any:
        if not self.has_begun:
            raise SimulatorError("reset was never called")
        observation, *rest = super().step(action)
        return (observation * os.getpid(), *rest)
