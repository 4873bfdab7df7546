"""What carts and grid worlds share: turns, memory of the caller, and promises."""

from collections.abc import Callable

import numpy as np
import pytest

from metta.envs.backends.kernel_vec_env import KernelVecEnv
from metta.envs.cartpole import CartPoleVecEnv
from metta.envs.grid import GridVecEnv, GridWorldConfig
from metta.errors import ConfigError, EnvError

PAIR = GridWorldConfig(width=8, height=8, num_agents=2, num_resources=2, horizon=20)
both_kinds = pytest.mark.parametrize(
    "make", [lambda: CartPoleVecEnv(4), lambda: GridVecEnv([PAIR], 2)], ids=["carts", "grid"]
)
Make = Callable[[], KernelVecEnv]
SEEDS = [3, 0, 4, 0]


@both_kinds
def test_promises_are_as_asked_for_when_less_is_wanted(make: Make) -> None:
    env = make()
    env.reset(SEEDS, env.obs_spec.zeros(4))
    assert env.prepare_restore("sync_reset").restore_class == "sync_reset"
    assert env.state_dict() == {"class": "boundary"}
    assert env.load_state_dict({"class": "boundary"}) is None
    with pytest.raises(ConfigError, match="give their state"):
        env.prepare_restore("repeat")


@both_kinds
def test_calls_are_refused_when_out_of_turn(make: Make) -> None:
    env = make()
    with pytest.raises(EnvError, match=r"send\(0\) was called out of turn: reset"):
        env.send(0, np.zeros(4, np.int64))
    with pytest.raises(EnvError, match=r"run_steps\(\) was called out of turn: reset"):
        env.run_steps(None, None, 0)  # type: ignore[arg-type]  # refused before it is looked at
    env.close()
    with pytest.raises(EnvError, match="closed"):
        env.reset(SEEDS, env.obs_spec.zeros(4))


@both_kinds
def test_observations_are_the_same_when_the_callers_memory_is_strided(make: Make) -> None:
    env = make()
    env.prepare_restore()
    wanted = env.obs_spec.zeros(4)["obs"]
    strided = np.zeros((4, 2 * wanted.shape[1]), wanted.dtype)[:, ::2]
    env.reset(SEEDS, {"obs": strided})
    env.reset(SEEDS, {"obs": wanted})
    np.testing.assert_array_equal(strided, wanted)
    for _ in range(25):
        state = env.state_dict()
        for out in (wanted, strided):
            env.load_state_dict(state)
            env.send(0, np.ones(4, np.int64))
            env.recv(0, {"obs": out})
        np.testing.assert_array_equal(strided, wanted)
    env.send(0, np.zeros(4, np.int64))
    for wrong in (wanted[:3], wanted.astype(np.float64)):
        with pytest.raises(EnvError, match=r"obs_spec\.zeros"):
            env.recv(0, {"obs": wrong})
