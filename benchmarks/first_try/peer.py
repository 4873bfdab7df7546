"""One training with the defaults of Stable-Baselines3; prints its score as JSON.

python -m benchmarks.first_try.peer CartPole-v1 1
"""

import importlib
import json
import sys
import time
from typing import Any

import gymnasium
import numpy as np
import torch

from benchmarks.first_try.tasks import Task, task_named

EPISODES = 20


def make_env(task: Task) -> gymnasium.Env[Any, Any]:
    if task.needs:
        importlib.import_module(task.needs)
    env = gymnasium.make(task.env)
    if task.sb3_wrapper == "flat":
        return gymnasium.wrappers.FlattenObservation(env)
    if task.sb3_wrapper == "minigrid":
        from minigrid.wrappers import FlatObsWrapper

        return FlatObsWrapper(env)
    return env


def make_frames(task: Task, seed: int, *, ends_with_life: bool) -> Any:
    """A game as the recipes of its zoo play it; the frames that the id skips would be skipped twice.

    It learns from lives. It is scored by whole games, as metta is: otherwise the ball would be served for
    it after each life.
    """
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    rules = {"terminal_on_life_loss": ends_with_life}
    game = make_atari_env(task.env, 1, seed, wrapper_kwargs=rules, env_kwargs={"frameskip": 1})
    return VecFrameStack(game, 4)


def train(task: Task, seed: int) -> Any:
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    env: Any
    policy = "MlpPolicy"
    if task.sb3_wrapper == "rows":
        from benchmarks.first_try.rows import RowsVecEnv

        env = RowsVecEnv(task.env, seed)
    elif task.sb3_wrapper == "atari":
        importlib.import_module(task.needs)
        env, policy = make_frames(task, seed, ends_with_life=True), "CnnPolicy"
    else:
        env = make_vec_env(lambda: make_env(task), 1, seed)
    model = PPO(policy, env, seed=seed, device="cpu")
    model.learn(task.steps)
    return model


def play(model: Any, task: Task, seed: int) -> list[float]:
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    env: Any
    if task.sb3_wrapper == "rows":
        from benchmarks.first_try.rows import RowsVecEnv

        return RowsVecEnv(task.env, seed + 1000).play(model, EPISODES)
    if task.sb3_wrapper == "atari":
        env = make_frames(task, seed + 1000, ends_with_life=False)
    else:
        env = make_vec_env(lambda: make_env(task), 1, seed + 1000)
    returns, _ = evaluate_policy(
        model, env, EPISODES, deterministic=False, return_episode_rewards=True
    )
    return [float(value) for value in returns]


def main() -> None:
    task, seed = task_named(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    begin = time.perf_counter()
    model = train(task, seed)
    seconds = time.perf_counter() - begin
    score = float(np.mean(play(model, task, seed)))
    print(json.dumps({"score": score, "seconds": seconds}))


if __name__ == "__main__":
    main()
