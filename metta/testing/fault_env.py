"""`FaultEnv`: an environment that misbehaves on purpose, to test how a set-up handles it."""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, Literal, get_args

import gymnasium
import numpy as np

from metta.envs.workers.worker import answer_descriptor
from metta.errors import ConfigError, did_you_mean

__all__ = ["Fault", "FaultEnv", "InjectedFaultError", "ProcessFault", "ReplyFault"]

ProcessFault = Literal["exit", "segfault", "kill", "stop", "hang", "freeze", "garbage"]
"""What happens to a process; only worker processes of metta are hit."""
ReplyFault = Literal[
    "nan_obs", "inf_obs", "wrong_shape", "wrong_dtype", "text_obs",
    "nan_reward", "inf_reward", "no_reward", "text_reward", "many_rewards",
    "no_info", "too_few_values",
]  # fmt: skip
"""What is wrong with what `step` (or `reset`) returns."""
Fault = ProcessFault | ReplyFault | Literal["raise", "sys_exit", "slow"]

_FAULTS = (*get_args(ProcessFault), *get_args(ReplyFault), "raise", "sys_exit", "slow")
_FOREVER = 10**6
_GARBAGE_BYTES = 64
_EXIT_CODE = 3

Replied = tuple[Any, ...]


class InjectedFaultError(RuntimeError):
    """What `FaultEnv` raises; never raised by anything else."""


class FaultEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Wraps an environment (or a factory, or a gymnasium id) and misbehaves in one chosen way.

        make_vec_env(lambda: FaultEnv("CartPole-v1", "segfault", at_step=100, once_file=path), num_envs=4,
                     num_workers=2)

    - ``raise``, ``sys_exit``: an exception; ``slow``: `seconds` more than usual
    - ``exit``, ``segfault``, ``kill`` (what a system out of memory does): the process ends
    - ``stop``, ``hang``, ``freeze``: it no longer answers (``freeze`` also holds the interpreter lock)
    - ``garbage``: random bytes instead of an answer, on the pipe to the trainer
    - ``nan_obs``, ``inf_obs``, ``wrong_shape``, ``wrong_dtype``, ``text_obs``, ``nan_reward``,
      ``inf_reward``, ``no_reward``, ``text_reward``, ``many_rewards``, ``no_info``, ``too_few_values``: a
      bad reply

    It happens in the `at_step`-th step of this environment (from 1; 0 is every `reset` before the first
    step), or with `in_episode` in the `at_step`-th step of every episode; and in any step with
    `probability`, drawn from `seed` (None: random). With a `once_file` it happens once: the file is
    created when it does, with the process id and the monotonic time in it, and while it exists nothing
    happens, so that a restarted worker works. Faults of processes hit workers only, never the trainer.
    """

    def __init__(  # noqa: PLR0913  # what is wrong, then when: by name
        self,
        env: gymnasium.Env[Any, Any] | Callable[[], gymnasium.Env[Any, Any]] | str,
        fault: Fault,
        *,
        at_step: int | None = None,
        in_episode: bool = False,
        probability: float = 0.0,
        seed: int | None = None,
        once_file: str | os.PathLike[str] | None = None,
        seconds: float = 1.0,
    ) -> None:
        if fault not in _FAULTS:
            raise ConfigError(
                f"there is no fault {fault!r}{did_you_mean(fault, _FAULTS)}; known are "
                f"{', '.join(_FAULTS)}"
            )
        if isinstance(env, str):
            env = gymnasium.make(env, disable_env_checker=True)
        super().__init__(env if isinstance(env, gymnasium.Env) else env())
        self.fault, self.at_step, self.in_episode = fault, at_step, in_episode
        self.probability, self.seconds = probability, seconds
        self.once_file = None if once_file is None else os.fspath(once_file)
        self._generator = np.random.default_rng(seed)
        self._num_steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        if self.in_episode:
            self._num_steps = 0
        replied: Replied = self.env.reset(seed=seed, options=options)
        due = self._num_steps == self.at_step == 0
        return self._misbehave(replied) if due and self._may() else replied

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take one action."""
        self._num_steps += 1
        replied: Replied = self.env.step(action)
        due = self._num_steps == self.at_step
        due = due or (self.probability > 0 and self._generator.random() < self.probability)
        return self._misbehave(replied) if due and self._may() else replied

    def get_state(self) -> dict[str, Any]:
        """The wrapper's own state, so that a wrapped environment can still be saved."""
        return {"num_steps": self._num_steps, "generator": self._generator}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the state that `get_state` returned."""
        self._num_steps, self._generator = state["num_steps"], state["generator"]

    def _may(self) -> bool:
        """Whether the fault may happen in this process, and has not happened already."""
        if self.fault in get_args(ProcessFault) and answer_descriptor() is None:
            return False
        if self.once_file is None:
            return True
        try:
            descriptor = os.open(self.once_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            return False
        os.write(descriptor, f"{os.getpid()} {time.monotonic()}".encode())
        os.close(descriptor)
        return True

    def _misbehave(self, replied: Replied) -> Replied:
        if self.fault in get_args(ReplyFault):
            return _spoilt(self.fault, replied)
        match self.fault:
            case "raise":
                raise InjectedFaultError("this environment fails on purpose")
            case "sys_exit":
                sys.exit(_EXIT_CODE)
            case "slow":
                time.sleep(self.seconds)
            case "hang":
                time.sleep(_FOREVER)
            case "freeze":
                # a C function that keeps the interpreter lock
                ctypes.PyDLL(None).sleep(_FOREVER)
            case "garbage":
                os.write(answer_descriptor() or 0, os.urandom(_GARBAGE_BYTES))
            case _:
                _end_process(self.fault)
        return replied


def _end_process(fault: str) -> None:
    if fault == "exit":
        os._exit(_EXIT_CODE)
    number = {"segfault": signal.SIGSEGV, "kill": signal.SIGKILL, "stop": signal.SIGSTOP}[fault]
    os.kill(os.getpid(), number)


def _spoilt(fault: str, replied: Replied) -> Replied:
    """The same reply with one thing wrong; faults of step-only values do not change a reset's reply."""
    obs, *rest = replied
    if fault == "too_few_values":
        return replied[:-1]
    if fault == "no_info":
        return (*replied[:-1], None)
    if fault in _OBSERVATIONS:
        return (_in_every_leaf(_OBSERVATIONS[fault], obs), *rest)
    return (obs, _REWARDS[fault], *rest[1:]) if len(replied) > 2 else replied


def _in_every_leaf(change: Callable[[Any], Any], obs: Any) -> Any:
    if isinstance(obs, dict):
        return {key: _in_every_leaf(change, part) for key, part in obs.items()}
    if isinstance(obs, tuple):
        return tuple(_in_every_leaf(change, part) for part in obs)
    return change(obs)


def _filled(number: float) -> Callable[[Any], Any]:
    def change(leaf: Any) -> Any:
        array = np.asarray(leaf)
        return np.full_like(array, number) if array.dtype.kind == "f" else leaf

    return change


_OBSERVATIONS: dict[str, Callable[[Any], Any]] = {
    "nan_obs": _filled(np.nan),
    "inf_obs": _filled(np.inf),
    "wrong_shape": lambda leaf: np.stack([leaf, leaf]),
    "wrong_dtype": lambda leaf: np.asarray(leaf).astype(np.complex128),
    "text_obs": str,
}
_REWARDS: dict[str, Any] = {
    "nan_reward": float("nan"),
    "inf_reward": float("inf"),
    "no_reward": None,
    "text_reward": "much",
    "many_rewards": np.zeros(2),
}
