"""The environments of the comparison: family, steps, and whether recipes were tuned on them."""

from dataclasses import dataclass

__all__ = ["TASKS", "Task", "task_named"]


@dataclass(frozen=True)
class Task:
    """An environment that both libraries train on for the same number of agent steps."""

    env: str
    """As `metta train` takes it."""
    family: str
    steps: int
    is_tuned: bool = False
    """Recipes were tuned on this one; the others were only looked at in the end."""
    needs: str = ""
    """A module whose import registers the environment with Gymnasium."""
    sb3_wrapper: str = ""
    """What Stable-Baselines3 needs to read it: ``flat``, ``minigrid``, ``atari`` or ``rows``."""


_MINATAR = "benchmarks.first_try.minatar_envs"

TASKS = (
    Task("CartPole-v1", "classic control", 40_000, is_tuned=True),
    Task("MountainCar-v0", "classic control", 50_000, is_tuned=True),
    Task("Pendulum-v1", "classic control", 50_000, is_tuned=True),
    Task("Acrobot-v1", "classic control", 50_000, is_tuned=True),
    Task("MountainCarContinuous-v0", "classic control", 40_000),
    Task("FrozenLake-v1", "toy text", 50_000, is_tuned=True),
    Task("Taxi-v4", "toy text", 50_000, is_tuned=True),
    Task("Blackjack-v1", "toy text", 30_000, sb3_wrapper="flat"),
    Task("LunarLander-v3", "Box2D", 60_000, is_tuned=True),
    Task("LunarLanderContinuous-v3", "Box2D", 60_000),
    Task("BipedalWalker-v3", "Box2D", 60_000, is_tuned=True),
    Task("HalfCheetah-v5", "MuJoCo", 60_000, is_tuned=True),
    Task("Hopper-v5", "MuJoCo", 60_000, is_tuned=True),
    Task("InvertedDoublePendulum-v5", "MuJoCo", 50_000, is_tuned=True),
    Task("Reacher-v5", "MuJoCo", 50_000, is_tuned=True),
    Task("InvertedPendulum-v5", "MuJoCo", 40_000),
    Task("Walker2d-v5", "MuJoCo", 60_000),
    Task("Swimmer-v5", "MuJoCo", 60_000, is_tuned=True),
    Task("Ant-v5", "MuJoCo", 50_000),
    Task("Pusher-v5", "MuJoCo", 50_000),
    Task("MiniGrid-DoorKey-5x5-v0", "MiniGrid", 60_000, True, "minigrid", "minigrid"),
    Task("MiniGrid-Empty-5x5-v0", "MiniGrid", 30_000, False, "minigrid", "minigrid"),
    Task("MiniGrid-Unlock-v0", "MiniGrid", 60_000, False, "minigrid", "minigrid"),
    Task("MiniGrid-LavaGapS5-v0", "MiniGrid", 50_000, False, "minigrid", "minigrid"),
    Task("MiniGrid-Dynamic-Obstacles-5x5-v0", "MiniGrid", 50_000, False, "minigrid", "minigrid"),
    Task(f"{_MINATAR}:MinAtar/Breakout-v1", "MinAtar", 60_000, is_tuned=True),
    Task(f"{_MINATAR}:MinAtar/SpaceInvaders-v1", "MinAtar", 60_000),
    Task(f"{_MINATAR}:MinAtar/Asterix-v1", "MinAtar", 60_000),
    Task("flappy_bird_gymnasium:FlappyBird-v0", "FlappyBird", 50_000, is_tuned=True),
    Task("grid/gather", "metta's grid world", 100_000, True, "", "rows"),
    Task("grid/maze", "metta's grid world", 100_000, False, "", "rows"),
    Task("pettingzoo:mpe2.simple_spread_v3", "PettingZoo", 60_000, True, "", "rows"),
    Task("pettingzoo:mpe2.simple_push_v3", "PettingZoo", 60_000, False, "", "rows"),
    Task("mettagrid:arena_small", "mettagrid", 60_000, False, "", "rows"),
    Task("ALE/Pong-v5", "Atari", 12_000, False, "ale_py", "atari"),
    Task("ALE/Breakout-v5", "Atari", 12_000, True, "ale_py", "atari"),
)


def task_named(env: str) -> Task:
    """The task of this environment."""
    return next(task for task in TASKS if task.env == env)
