import logging
import math

import numpy as np
import pytest
import torch
from torch import nn

from metta.rl.learn.optimizer import FlatAdam
from metta.rl.stats import (
    Span,
    compute_grad_stats,
    compute_weight_stats,
    experience_stats,
    hyperparameters_of,
    log_training_progress,
    process_stats,
)
from metta.rl.training_state import StatsTracker
from metta.sim.scores import EvalRewardSummary
from metta.train.train_config import PPOConfig, TrainerConfig, TrainingConfig


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(3, 4)
        self.heads = nn.ModuleDict({"actor": nn.Linear(4, 2), "critic": nn.Linear(4, 1)})


class Wrapped(nn.Module):
    """As a `Policy` holds its network."""

    def __init__(self) -> None:
        super().__init__()
        self.module = Network()


def tracker(**stats: list[float]) -> StatsTracker:
    tracker = StatsTracker()
    tracker.add_rollout_stats({name.replace("__", "/"): numbers for name, numbers in stats.items()})
    tracker.add_returns(stats.get("episode_return", []))
    return tracker


def test_means_divide_by_episodes_when_statistics_have_different_lengths() -> None:
    stats = tracker(
        episode_return=[10.0, 20.0, 60.0], env__success=[1.0, 0.0], env__agent__hp=[4.0]
    )
    row = process_stats(stats, {}, agent_step=512, epoch=3)
    assert row == {
        "metric/agent_step": 512.0,
        "metric/epoch": 3.0,
        "overview/reward": 30.0,
        "overview/episodes": 3.0,
        "env_episode/return": 30.0,
        "env_info/success": 0.5,
        "env_agent/hp": 4.0,
    }


def test_the_return_is_nan_and_no_statistic_appears_when_no_episode_has_ended() -> None:
    row = process_stats(tracker(episode_return=[]), {}, agent_step=1, epoch=1)
    assert math.isnan(row["overview/reward"])
    assert row["overview/episodes"] == 0.0
    assert not [key for key in row if key.startswith("env_")]


def test_the_tracker_is_left_alone_when_a_row_is_made() -> None:
    stats = tracker(episode_return=[1.0])
    before = stats.state_dict()
    process_stats(stats, {}, agent_step=1, epoch=1)
    assert stats.state_dict() == before


def test_metrics_go_to_their_sections_when_an_epoch_reports_them() -> None:
    losses = {
        "policy_loss": 0.1,
        "custom/aux": 0.2,
        "explained_variance": 0.3,
        "learning_rate": 0.4,
        "clip_coef": 0.5,
        "ent_coef": 0.6,
        "episode_return": 7.0,
        "agent_step": 8.0,
        "epoch": 9.0,
    }
    row = process_stats(tracker(), losses, agent_step=1, epoch=1)
    assert {key: value for key, value in row.items() if value < 1} == {
        "losses/policy_loss": 0.1,
        "losses/custom/aux": 0.2,
        "experience/explained_variance": 0.3,
        "parameters/learning_rate": 0.4,
        "parameters/clip_coef": 0.5,
        "parameters/ent_coef": 0.6,
        "overview/episodes": 0.0,
    }
    assert 7.0 not in row.values()


def test_time_is_per_epoch_when_a_row_covers_several() -> None:
    seconds, total = {"train": 1.0, "total": 4.0}, {"train": 10.0, "total": 40.0}
    row = process_stats(tracker(), {}, agent_step=1, epoch=1, span=Span(2, 800, seconds, total))
    assert row["overview/sps"] == 200.0
    assert (row["timing_per_epoch/train"], row["timing_per_epoch/total"]) == (0.5, 2.0)
    assert (row["timing_cumulative/train"], row["timing_cumulative/total"]) == (10.0, 40.0)
    assert (row["metric/train_time"], row["metric/total_time"]) == (10.0, 40.0)


def test_no_speed_is_claimed_when_a_row_covers_no_epoch() -> None:
    span = Span(0, 0, {"total": 1.0}, {"total": 9.0})
    row = process_stats(tracker(), {}, agent_step=1, epoch=1, span=span)
    assert "overview/sps" not in row
    assert "timing_per_epoch/total" not in row
    assert row["metric/total_time"] == 9.0


def test_scores_and_sections_appear_when_they_are_given() -> None:
    scores = EvalRewardSummary({"task/a": 1.0, "task/b": 3.0})
    sections = {"monitor": {"rss_mib": 5.0}, "grad": {}}
    row = process_stats(tracker(), {}, agent_step=1, epoch=1, eval_scores=scores, sections=sections)
    assert (row["eval_task/score"], row["eval_task/a"], row["eval_task/b"]) == (2.0, 1.0, 3.0)
    assert row["monitor/rss_mib"] == 5.0


def test_moments_are_those_of_valid_steps_when_some_are_invalid() -> None:
    rewards = torch.tensor([[1.0, 2.0], [6.0, math.nan]])
    values = torch.tensor([[1.0, 1.0], [1.0, 50.0]])
    valid = torch.tensor([[True, True], [True, False]])
    found = experience_stats({"rewards": rewards, "values": values, "valid": valid})
    assert found == {
        "rewards_mean": 3.0,
        "rewards_std": pytest.approx(np.std([1.0, 2.0, 6.0]), rel=1e-6),  # float32
        "values_mean": 1.0,
        "values_std": 0.0,
        "valid_share": 0.75,
    }


def test_nothing_is_said_of_experience_when_there_is_none() -> None:
    assert experience_stats(None) == {}
    assert experience_stats({}) == {}
    assert experience_stats({"rewards": torch.zeros(0, 4)}) == {}
    nothing = {"rewards": torch.ones(1, 2), "valid": torch.zeros(1, 2, dtype=torch.bool)}
    assert experience_stats(nothing) == {"valid_share": 0.0}
    assert experience_stats({"rewards": torch.ones(1, 2)})["valid_share"] == 1.0


def test_weights_are_described_by_layer_when_a_policy_is_given() -> None:
    torch.manual_seed(0)
    policy = Wrapped()
    stats = compute_weight_stats(policy)
    assert {key.split("/")[0] for key in stats if "/" in key} == {"encoder", "heads"}
    flat = torch.cat([p.detach().flatten() for p in policy.parameters()]).double().numpy()
    heads = torch.cat([p.detach().flatten() for p in policy.module.heads.parameters()]).double()
    # float32 sums of a few dozen numbers
    assert stats["norm"] == pytest.approx(np.linalg.norm(flat), rel=1e-6)
    assert stats["mean"] == pytest.approx(flat.mean(), rel=1e-5)
    assert stats["std"] == pytest.approx(flat.std(), rel=1e-5)
    assert stats["heads/norm"] == pytest.approx(float(heads.norm()), rel=1e-6)
    assert stats["heads/std"] == pytest.approx(float(heads.std(correction=0)), rel=1e-5)


def test_gradients_are_described_when_there_are_some() -> None:
    policy = Wrapped()
    assert compute_grad_stats(policy) == {}
    policy.module.encoder.weight.grad = torch.full((4, 3), 2.0)
    stats = compute_grad_stats(policy)
    assert stats == {
        "norm": pytest.approx(math.sqrt(48.0)), "mean": 2.0, "std": pytest.approx(0.0, abs=1e-6),
        "encoder/norm": pytest.approx(math.sqrt(48.0)), "encoder/mean": 2.0,
        "encoder/std": pytest.approx(0.0, abs=1e-6),
    }  # fmt: skip


def test_gradients_are_at_hand_when_the_flat_optimizer_has_stepped() -> None:
    policy = Wrapped()
    optimizer = FlatAdam(policy.parameters(), lr=0.1)
    policy.module.encoder(torch.ones(1, 3)).sum().backward()
    optimizer.apply(torch.tensor(0.5), torch.tensor(True))
    assert compute_grad_stats(policy)["encoder/mean"] == 1.0  # before clipping
    assert compute_grad_stats(policy)["heads/norm"] == 0.0


def test_bad_gradients_are_seen_when_they_are_not_finite() -> None:
    policy = Wrapped()
    policy.module.encoder.bias.grad = torch.tensor([1.0, math.nan, 0.0, 0.0])
    assert all(math.isnan(number) for number in compute_grad_stats(policy).values())
    policy.module.encoder.bias.grad = torch.tensor([1.0, math.inf, 0.0, 0.0])
    assert compute_grad_stats(policy)["norm"] == math.inf


def test_nothing_is_changed_when_weights_are_described() -> None:
    policy, state = Wrapped(), torch.get_rng_state()
    before = [p.detach().clone() for p in policy.parameters()]
    compute_weight_stats(policy)
    assert all(torch.equal(p, q) for p, q in zip(policy.parameters(), before, strict=True))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("whole", [True, False])
def test_settings_are_numbers_when_a_configuration_is_given(whole: bool) -> None:
    trainer = TrainerConfig(ppo=PPOConfig(gamma=0.5, target_kl=None), seed=7)
    found = hyperparameters_of(TrainingConfig(trainer=trainer) if whole else trainer)
    assert (found["ppo/gamma"], found["seed"]) == (0.5, 7.0)
    assert found["ppo/normalize_advantages"] == 1.0
    assert "ppo/target_kl" not in found
    assert all(isinstance(value, float) for value in found.values())


def test_there_are_no_settings_when_there_is_no_configuration() -> None:
    assert hyperparameters_of(None) == {}


def test_progress_is_one_line_when_it_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "metta"):
        line = log_training_progress({"overview/sps": 10.0}, agent_step=50, total_timesteps=100)
    assert caplog.messages == [line]
    assert "50 / 100 steps" in line
    assert line.endswith("ETA 0:00:05")
