"""From episodes to the curriculum, and back to the environments."""

from typing import Any

import gymnasium
import numpy as np
import pytest

from metta.curriculum import Curriculum
from metta.envs import make_vec_env
from metta.errors import ConfigError, EnvError, StateError
from metta.rl.collect.collector import RolloutCollector, report_scores
from metta.rl.collect.task_feed import TaskFeed
from metta.rl.ppo_trainer import PPOTrainer
from metta.stateful import digest_of
from metta.train.train_config import CurriculumConfig

SHORT = {"short": {"max_episode_steps": 7}, "long": {"max_episode_steps": 30}}


def curriculum(kind: Any = "learning_progress", **settings: Any) -> Curriculum:
    return Curriculum(CurriculumConfig(kind=kind, env="CartPole-v1", tasks=SHORT, **settings))


class FakeEnvs:
    """The part of a `TaskedVecEnv` that tasks go through; two environments of two agents."""

    num_tasks, agents_per_env = 2, 2

    def __init__(self) -> None:
        self.tasks, self.next_tasks = np.zeros(2, np.int32), np.zeros(2, np.int32)


def fed(**settings: Any) -> tuple[Any, TaskFeed]:
    envs: Any = FakeEnvs()
    feed = TaskFeed(envs, curriculum("random", **settings), seed=1)
    envs.tasks[:] = [0, 1]
    feed.after_reset()
    return envs, feed


def test_scores_are_means_over_agents_when_an_episode_ends() -> None:
    envs, feed = fed()
    envs.tasks[0] = 1  # the first environment began another task
    feed.after_step(4, slice(0, 4), np.array([True, True, False, False]))
    # agent 1 died at step 2; agents 0 and 1 are in environment 0
    report_scores(
        feed.curriculum, feed.after_rollout([(2, 1, 3.0, 2), (4, 0, 5.0, 4), (5, 2, 7.0, 5)])
    )
    assert feed.curriculum.scores.counts.tolist() == [1, 0]
    assert feed.curriculum.scores.fast[0] == 4.0
    assert feed.playing.tolist() == [1, 1]
    # agent 2 had died before; the episode ends in the next rollout
    envs.tasks[1] = 0
    feed.after_step(0, slice(0, 4), np.array([False, False, True, True]))
    report_scores(feed.curriculum, feed.after_rollout([(0, 3, 1.0, 6)]))
    assert feed.curriculum.scores.counts.tolist() == [1, 1]
    assert feed.curriculum.scores.fast[1] == 4.0


def test_nothing_is_told_when_an_episode_was_lost_with_its_worker() -> None:
    envs, feed = fed()
    feed.after_step(3, slice(0, 4), np.array([True, True, False, False]))
    report_scores(feed.curriculum, feed.after_rollout([(1, 0, 9.0, 2)], lost=[(2, 0), (2, 1)]))
    assert feed.curriculum.scores.counts.tolist() == [0, 0]
    assert feed.finished.tolist() == [0, 0]
    del envs


def test_draws_are_the_same_when_seed_and_state_are() -> None:
    drawn = []
    for seed in (1, 1, 2):
        envs: Any = FakeEnvs()
        feed = TaskFeed(envs, curriculum("random"), seed=seed)
        tasks = []
        for _ in range(32):
            feed.before_reset()
            tasks.append(envs.next_tasks.tolist())
        drawn.append(tasks)
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_episode_is_counted_with_its_task_when_a_policy_plays(num_workers: int) -> None:
    tasks = curriculum("random")
    trainer = PPOTrainer(
        None, tasks, num_envs=4, num_workers=num_workers, horizon=64, minibatch_size=64
    )
    try:
        assert trainer.env_name == "short"
        lengths = [
            length
            for _ in range(4)
            for length in (trainer.collector.collect()[0]["episode_length"])
        ]
    finally:
        trainer.env.close()
    scores = tasks.scores
    assert int(scores.counts.sum()) == len(lengths)
    assert scores.counts.min() > 5
    # no episode of the short task is longer than its limit
    assert scores.peak[0] <= 7.0 < scores.fast[1]


def test_the_run_is_equal_when_workers_step_the_tasks() -> None:
    digests = []
    for num_workers in (0, 2):
        trainer = PPOTrainer(
            None, curriculum(), num_envs=4, num_workers=num_workers, num_groups=2, horizon=32,
            minibatch_size=32,
        )  # fmt: skip
        try:
            history = trainer.train(total_timesteps=512)
        finally:
            trainer.env.close()
        assert "curriculum" in trainer.registry.names()
        digests.append((trainer.registry.digest(), digest_of(history["episode_return"])))
    assert digests[0] == digests[1]


def test_shares_are_metrics_when_there_is_a_curriculum() -> None:
    tasks = curriculum()
    trainer = PPOTrainer(None, tasks, num_envs=4, horizon=32, minibatch_size=32)
    stats, _ = trainer.collector.collect()
    trainer.env.close()
    assert stats["curriculum/probability/short"] == [float(tasks.probabilities[0])]
    assert set(tasks.metrics()) <= stats.keys()


def test_environments_are_refused_when_they_do_not_play_the_tasks() -> None:
    plain = make_vec_env("CartPole-v1", num_envs=2)
    trainer = PPOTrainer(None, "CartPole-v1", num_envs=2, horizon=8, minibatch_size=16)
    parts = trainer.policy, trainer.components.experience
    with pytest.raises(ConfigError, match="know 1 tasks, the curriculum has 2"):
        RolloutCollector(plain, *parts, curriculum=curriculum())
    entry = "vector_entry_point"
    vector = gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode=entry)
    with pytest.raises(EnvError, match="plays one task only"):
        RolloutCollector(vector, *parts, curriculum=curriculum())
    plain.close()
    trainer.env.close()


def test_a_state_is_refused_when_it_is_of_more_environments() -> None:
    _, feed = fed()
    state = feed.state_dict()
    feed.load_state_dict(state)
    with pytest.raises(StateError, match="as many as the run has"):
        feed.load_state_dict({**state, "returns": np.zeros(3)})
