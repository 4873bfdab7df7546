"""What the shards of a rank collect, put together."""

import torch

from metta import PPOTrainer
from metta.rl.collect.sharded_collector import ShardedCollector, ShardedExperience


def trainer_of(num_shards: int) -> PPOTrainer:
    return PPOTrainer(
        None, "CartPole-v1", num_envs=4, num_shards=num_shards, horizon=32, verbose=False, seed=2
    )


def test_columns_lie_side_by_side_and_are_those_of_the_last_rollout() -> None:
    with trainer_of(2) as trainer:
        collector = trainer.collector
        assert isinstance(collector, ShardedCollector)
        experience = collector.experience
        assert isinstance(experience, ShardedExperience)
        assert (experience.horizon, experience.num_rows) == (32, 4)
        found = []
        for _ in range(2):
            trainer.collect_rollouts()
            found.append(experience.columns["rewards"])
            first, second = (part.columns for part in experience.parts)
            for name, column in experience.columns.items():
                assert torch.equal(column, torch.cat([first[name], second[name]], 1)), name
        assert found[0].shape == (32, 4)
        assert found[0] is not found[1]
        assert experience.columns["rewards"] is found[1]  # joined once


def test_statistics_are_those_of_all_shards_in_their_order() -> None:
    with trainer_of(2) as trainer:
        collector = trainer.collector
        stats, num_steps = collector.collect()
        ended = [row[2] for shard in collector.shards for row in shard.meter.last_ended]
        assert stats["episode_return"] == ended
        assert len(ended) > 4
        assert num_steps == 32 * 4
        assert collector.num_episodes == len(ended)
        assert collector.is_under_way
        collector.resume_with_fresh_episodes()
        assert not collector.is_under_way
