"""Many agents, many worlds: a curriculum, an evaluation with intervals, and a replay to look at.

Four agents share one policy. They learn to gather and deliver in worlds that differ in walls and
resources; worlds in which they improve come more often. Afterwards the policy is evaluated in each world,
and one episode is recorded.

python examples/gather_together.py [--steps N] [--replay FILE]
"""

import argparse

from metta import PPOTrainer
from metta.curriculum import Curriculum
from metta.replays.file import save_replay
from metta.replays.playback import text_of
from metta.replays.recording import record_episode
from metta.rl.evaluate.evaluator import PolicyEvaluator
from metta.train.presets import grid_config
from metta.train.sim_config import SimulationConfig, SimulationSuiteConfig
from metta.train.train_config import CurriculumConfig, EvaluationConfig

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=250_000, help="agent steps")
parser.add_argument("--replay", default="gather.replay", help="where an episode is kept")
options = parser.parse_args()

WORLDS = {
    "open": {},
    "scarce": {"num_resources": 6},
    "walls": {"wall_density": 0.2},
    "empty": {"num_resources": 0},  # nothing to learn: it should come seldom
}
curriculum = Curriculum(CurriculumConfig(kind="learning_progress", env="grid/gather", tasks=WORLDS))
suite = SimulationSuiteConfig(
    name="worlds",
    simulations={
        f"grid/{name}": SimulationConfig(env="grid/gather", env_kwargs=world, num_episodes=20)
        for name, world in WORLDS.items()
    },
)
evaluator = PolicyEvaluator(suite, EvaluationConfig())

with PPOTrainer(None, curriculum, config=grid_config(), seed=1) as trainer:
    evaluator.evaluate(trainer.policy)
    before = evaluator.statistics()
    trainer.train(options.steps)
    evaluator.evaluate(trainer.policy)
    for name, now in evaluator.statistics().items():
        print(
            f"{name:12} {before[name].value:6.2f} -> {now.value:6.2f} ({now.low:.2f} to {now.high:.2f})"
        )
    shares = curriculum.scores.counts / max(1, curriculum.scores.counts.sum())
    print({name: f"{share:.0%}" for name, share in zip(curriculum.names, shares, strict=True)})
    replay = record_episode(trainer.policy, curriculum.task, seed=1, greedy=False)

save_replay(options.replay, replay)
print(text_of(replay, replay.info.num_steps // 2, color=False))
print(f"watch it: metta replay {options.replay}")
