"""Rows of metta's vector environments as a vector environment of Stable-Baselines3.

Worlds of many agents have no other door there: each agent becomes an environment.
"""

from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import VecEnv

from metta.envs.factory import make_vec_env, row_seeds


class RowsVecEnv(VecEnv):
    """One world; every agent's row is an environment with a flat observation."""

    def __init__(self, env_id: str, seed: int) -> None:
        from gymnasium import spaces

        self.rows = make_vec_env(env_id, num_envs=1)
        self.leaves = self.rows.obs_spec.leaves
        self.seeds = row_seeds(seed, self.rows.num_rows)
        self.store = {
            leaf.key: np.zeros((self.rows.num_rows, *leaf.shape), leaf.dtype)
            for leaf in self.leaves
        }
        size = self._flat().shape[1]
        space = spaces.Box(-np.inf, np.inf, (size,), np.float32)
        super().__init__(self.rows.num_rows, space, self.rows.action_space)
        self.returns = np.zeros(self.num_envs)
        self.lengths = np.zeros(self.num_envs, int)

    def _flat(self) -> np.ndarray:
        parts = []
        for leaf in self.leaves:
            values = self.store[leaf.key].reshape(self.rows.num_rows, -1)
            if leaf.categories:
                parts += [
                    np.eye(n, dtype=np.float32)[values[:, at]]
                    for at, n in enumerate(leaf.categories)
                ]
            else:
                parts.append(values.astype(np.float32))
        return np.concatenate(parts, 1)

    def reset(self) -> np.ndarray:
        self.rows.reset(self.seeds, self.store)
        return self._flat()

    def step_async(self, actions: np.ndarray) -> None:
        self.rows.send(0, actions)

    def step_wait(self) -> Any:
        result = self.rows.recv(0, self.store)
        done = result.terminated | result.truncated
        self.returns += result.rewards
        self.lengths += 1
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for row in np.flatnonzero(done):
            infos[row]["episode"] = {"r": self.returns[row], "l": self.lengths[row], "t": 0}
            self.returns[row] = self.lengths[row] = 0
        return self._flat(), result.rewards.copy(), done, infos

    def play(self, model: Any, episodes: int) -> list[float]:
        found: list[float] = []
        obs = self.reset()
        while len(found) < episodes * self.num_envs:
            self.step_async(model.predict(obs, deterministic=False)[0])
            obs, _, _, infos = self.step_wait()
            found += [float(info["episode"]["r"]) for info in infos if "episode" in info]
        return found

    def close(self) -> None:
        self.rows.close()

    def env_is_wrapped(self, *_: Any, **__: Any) -> list[bool]:
        return [False] * self.num_envs

    def get_attr(self, *_: Any, **__: Any) -> list[Any]:
        return [None] * self.num_envs

    def set_attr(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError

    def env_method(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError
