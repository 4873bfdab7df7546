"""The whole update: passes, stops, skipped steps, schedules, and the promise to leave its input alone."""

import copy
from typing import Any

import gymnasium
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from metta.agent.factory import make_policy
from metta.agent.policy import Policy
from metta.envs.factory import make_vec_env
from metta.envs.toy import CorridorEnv
from metta.errors import (
    ConfigError,
    MettaWarning,
    NonFiniteError,
    PolicyError,
    RolloutError,
    StateError,
)
from metta.rl.collect.buffer import RolloutBuffer
from metta.rl.collect.collector import RolloutCollector
from metta.rl.learn.custom_losses import CustomLoss
from metta.rl.learn.driver import current_log_probs
from metta.rl.learn.optimizer import make_optimizer
from metta.rl.learn.ppo import PPOOptimizer
from metta.rl.ppo_trainer import PPOTrainer
from metta.stateful import digest_of
from metta.train.train_config import AgentConfig, OptimizerConfig, PPOConfig

Collected = tuple[Policy, RolloutBuffer]


def collected(core: Any = "none", *, rows: int = 3, horizon: int = 16, **agent: Any) -> Collected:
    """A float64 policy and a rollout of it on CartPole, with both kinds of ends; segments of 4."""
    envs = make_vec_env("CartPole-v1", num_envs=rows, env_kwargs={"max_episode_steps": 12})
    config = AgentConfig(core=core, hidden_size=16, **agent)
    policy = make_policy(envs.observation_space, envs.action_space, config, seed=1).double()
    buffer = RolloutBuffer.for_env(policy, envs, horizon, bptt_horizon=4)
    RolloutCollector(envs, policy, buffer, seed=8).collect()
    envs.close()
    return policy, buffer


def learner(policy: Policy, optimizer: Any = None, **settings: Any) -> PPOOptimizer:
    chosen = settings.pop("chosen", OptimizerConfig(learning_rate=0.01))
    built = make_optimizer(policy.parameters(), chosen) if optimizer is None else optimizer
    return PPOOptimizer(policy, built, "cpu", PPOConfig(**settings), optimizer_config=chosen)


class Looks(TorchDispatchMode):
    """Counts how often somebody wants to know a number, for which a GPU would be waited for."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # reason: torch leaves it untyped
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **kwargs or {})


def test_no_number_is_looked_at_between_minibatches() -> None:
    policy, buffer = collected()

    def loss(new_values: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return new_values.square().mean(), {"largest": new_values.max()}

    counts = []
    for num_minibatches in (1, 8):
        ppo = learner(policy, num_minibatches=num_minibatches)
        with Looks() as looks:
            assert "custom/loss/largest" in ppo.update(buffer, [loss])
        counts.append(looks.count)
    assert counts[0] == counts[1] <= 4


# Input.


@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize("estimator", ["gae", "vtrace"])
def test_input_keeps_every_bit_when_it_is_learned_from(core: Any, estimator: Any) -> None:
    policy, buffer = collected(core)
    data = {name: column.clone() for name, column in buffer.columns.items()}
    before, names = digest_of(data), list(data)
    ppo = learner(policy, advantage_estimator=estimator)
    ppo.update(data)
    ppo.update(buffer)
    assert digest_of(data) == before
    assert list(data) == list(buffer.columns) == names
    assert digest_of(buffer.columns) == before


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
def test_parameters_agree_when_a_dict_or_the_buffer_is_given(core: Any) -> None:
    policy, buffer = collected(core)
    other = copy.deepcopy(policy)
    data = {name: column.clone() for name, column in buffer.columns.items()}
    first = learner(policy)
    first.update(buffer)
    learner(other).update(data)
    assert other.parameter_hash() == policy.parameter_hash()
    given = copy.deepcopy(policy)
    learner(policy).update(data)
    learner(given).update(data | first.compute_advantages(data))
    assert given.parameter_hash() == policy.parameter_hash()


def test_float_types_do_not_matter_when_data_comes_from_elsewhere() -> None:
    policy, buffer = collected()
    policy, other = policy.float(), copy.deepcopy(policy).float()
    learner(policy).update(buffer.columns)  # float64 beside a float32 policy
    flags = {
        name: column.to(torch.uint8 if column.dtype == torch.bool else column.dtype)
        for name, column in buffer.columns.items()
    }
    learner(other).update(flags)
    assert other.parameter_hash() == policy.parameter_hash()


def test_missing_and_misshapen_columns_are_named_when_data_is_checked() -> None:
    policy, buffer = collected("lstm")
    ppo, data = learner(policy), dict(buffer.columns)
    with pytest.raises(RolloutError, match=r"lacks \['log_probs', 'episode_starts'\]"):
        ppo.update({k: v for k, v in data.items() if k not in ("log_probs", "episode_starts")})
    with pytest.raises(RolloutError, match=r"recurrent_state/cell.* S divides 16"):
        ppo.update(data | {"recurrent_state/cell": torch.zeros(3, 3, 16)})
    data["rewards"] = data["rewards"].clone()
    data["rewards"][5, 2] = torch.nan
    with pytest.raises(NonFiniteError, match="'rewards' is not finite at step 5, row 2"):
        ppo.update(data)


def test_collected_rollouts_are_not_checked_again_and_bad_steps_are_still_skipped() -> None:
    policy, buffer = collected()
    before = policy.parameter_hash()
    buffer.columns["rewards"].fill_(torch.nan)
    with pytest.raises(NonFiniteError, match="optimizer steps in a row were skipped"):
        learner(policy, max_nonfinite_steps=1).update(buffer)
    assert policy.parameter_hash() == before


def test_a_rollout_is_refused_when_the_policy_gives_numbers_that_are_not_finite() -> None:
    policy, buffer = collected()
    with torch.no_grad():
        list(policy.parameters())[-1].fill_(torch.inf)  # the bias of the values
    with pytest.raises(NonFiniteError, match="'values' is not finite at step 0, row 0"):
        buffer.finalize(policy, frozenset())


def test_explained_variance_is_of_stored_values_when_an_update_moves_the_critic() -> None:
    policy, buffer = collected()
    ppo, columns = learner(policy), buffer.columns
    values = columns["values"].clone()
    returns = ppo.compute_advantages(columns)["returns"]
    found = ppo.update(buffer)["explained_variance"]
    expected = 1.0 - (returns - values).var() / returns.var()
    assert found == pytest.approx(float(expected), abs=1e-12)
    assert torch.equal(columns["values"], values)


# Minibatches.


def ids_seen(policy: Policy, buffer: RolloutBuffer, **settings: Any) -> list[Tensor]:
    """The minibatches as numbers of samples, counted step by step."""
    seen: list[Tensor] = []

    def spy(sample: Tensor, new_values: Tensor) -> Tensor:
        seen.append(sample.clone())
        return new_values.mean() * 0.0

    shape = buffer.columns["values"].shape
    column = {"sample": torch.arange(shape.numel()).reshape(shape)}
    learner(policy, **settings).update(buffer.columns | column, [spy])
    return seen


@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize(
    "split", [{"num_minibatches": 5}, {"num_minibatches": 99}, {"minibatch_size": 12}]
)
def test_every_sample_is_seen_once_per_pass_when_minibatches_are_cut(
    core: Any, split: dict[str, int]
) -> None:
    policy, buffer = collected(core)
    seen = ids_seen(policy, buffer, update_epochs=3, **split)
    per_pass = len(seen) // 3
    passes = [torch.cat([s.flatten() for s in seen[i * per_pass :][:per_pass]]) for i in range(3)]
    for one in passes:
        assert sorted(one.tolist()) == list(range(48))
    assert not torch.equal(passes[0], passes[1])
    sizes = {len(s.flatten()) for s in seen}
    assert max(sizes) - min(sizes) <= (4 if core == "lstm" else 1)


def test_steps_of_a_segment_stay_in_order_when_segments_are_shuffled() -> None:
    policy, buffer = collected("gru")
    seen = torch.cat(ids_seen(policy, buffer), 1)  # [L, segments]
    assert len(seen) == 4
    assert (seen[0] // 3 % 4 == 0).all()  # a segment begins at step 0, 4, 8 or 12
    assert (seen[1:] - seen[:-1] == 3).all()  # and continues in its own row
    assert seen[0, :12].tolist() != sorted(seen[0, :12].tolist())


@pytest.mark.parametrize(
    ("core", "size", "legal"), [("none", 10, "8 or 12"), ("lstm", 10, "8 or 12"),
                                ("lstm", 20, "16 or 24"), ("lstm", 3, "4 or 8")]
)  # fmt: skip
def test_legal_sizes_are_named_when_a_minibatch_size_does_not_divide(
    core: Any, size: int, legal: str
) -> None:
    policy, buffer = collected(core)
    with pytest.raises(ConfigError, match=rf"minibatch_size={size} .*try minibatch_size={legal}"):
        learner(policy, minibatch_size=size).update(buffer)
    for proposed in legal.split(" or "):
        learner(policy, minibatch_size=int(proposed)).update(buffer)


def test_order_depends_on_seed_and_count_when_an_update_begins() -> None:
    policy, buffer = collected()

    def order(seed: int, count: int) -> str:
        student = copy.deepcopy(policy)
        optimizer = make_optimizer(student.parameters(), OptimizerConfig())
        ppo = PPOOptimizer(student, optimizer, "cpu", PPOConfig(), seed=seed)
        ppo.load_state_dict(ppo.state_dict() | {"num_updates": count})
        ppo.update(buffer)
        return student.parameter_hash()

    assert order(1, 0) == order(1, 0)
    assert len({order(1, 0), order(2, 0), order(1, 1)}) == 3


# Early stop.


def test_update_stops_before_stepping_when_a_minibatch_exceeds_the_target() -> None:
    policy, buffer = collected()
    before_each: list[Tensor] = []
    divergences: list[float] = []

    def spy(new_log_probs: Tensor, log_probs: Tensor) -> Tensor:
        before_each.append(torch.cat([p.detach().flatten() for p in policy.parameters()]))
        log_ratio = (new_log_probs - log_probs).detach()
        divergences.append(float((log_ratio.exp() - 1 - log_ratio).mean()))
        return new_log_probs.mean() * 0.0

    stats = learner(policy, target_kl=1e-4, num_minibatches=6).update(buffer, [spy])
    assert divergences[-1] > 1e-4 >= max(divergences[:-1])
    assert 2 <= len(divergences) < 24
    assert stats["optimizer_steps"] == len(divergences) - 1
    assert stats["kl_stopped"] == 1.0
    assert stats["approx_kl"] == pytest.approx(sum(divergences) / len(divergences), rel=1e-6)
    after = torch.cat([p.detach().flatten() for p in policy.parameters()])
    assert torch.equal(after, before_each[-1])  # the offending minibatch moved nothing
    assert not torch.equal(before_each[-1], before_each[0])


def test_nothing_is_learned_when_the_first_minibatch_exceeds_the_target() -> None:
    policy, buffer = collected()
    stale = buffer.columns | {"log_probs": buffer.columns["log_probs"] - 1.0}
    ppo = learner(policy, target_kl=0.1)
    before = digest_of([policy.state_dict(), ppo.optimizer.state_dict()])
    stats = ppo.update(stale)
    assert stats["optimizer_steps"] == 0.0
    assert stats["approx_kl"] > 0.1
    assert digest_of([policy.state_dict(), ppo.optimizer.state_dict()]) == before


# Not finite.


def nan_loss(new_values: Tensor) -> Tensor:
    return new_values.mean() * torch.nan


def steep_loss(new_values: Tensor) -> Tensor:
    """Finite, but its slope is not: the root of 0."""
    return (new_values * 0.0).square().sum().sqrt()


@pytest.mark.parametrize("theirs", [False, True])
@pytest.mark.parametrize(
    ("loss", "named"), [(nan_loss, "total_loss, custom loss 'nan_loss'"), (steep_loss, "gradient")]
)
def test_steps_are_skipped_and_counted_when_a_loss_is_not_finite(
    loss: Any, named: str, theirs: bool
) -> None:
    policy, buffer = collected()
    optimizer = torch.optim.Adam(policy.parameters()) if theirs else None
    ppo = learner(policy, optimizer, max_nonfinite_steps=6, update_epochs=1)
    ppo.update(buffer)
    before = digest_of([policy.state_dict(), ppo.optimizer.state_dict()])
    with pytest.warns(
        MettaWarning, match=rf"update 2: 4 of 4 optimizer steps .*{named} became NaN"
    ):
        stats = ppo.update(buffer, [loss])
    assert stats["skipped_steps"] == 4.0
    assert stats["optimizer_steps"] == 0.0
    assert digest_of([policy.state_dict(), ppo.optimizer.state_dict()]) == before
    with pytest.raises(NonFiniteError, match=rf"6 optimizer steps in a row .*{named} became NaN"):
        ppo.update(buffer, [loss])
    assert digest_of([policy.state_dict(), ppo.optimizer.state_dict()]) == before


def test_normalisers_stay_when_a_rollout_was_too_absurd_to_learn_from() -> None:
    policy, buffer = collected(normalize_observations=True, normalize_returns=True)
    ppo = learner(policy.float(), max_nonfinite_steps=100)
    ppo.update(buffer)
    assert policy.return_normalizer is not None
    before = digest_of(policy.return_normalizer.state_dict())
    buffer.columns["rewards"][3, 1] = 1e30  # its square is not a float32
    with pytest.warns(MettaWarning, match="optimizer steps were skipped"):
        assert ppo.update(buffer)["skipped_steps"] > 0
    assert digest_of(policy.return_normalizer.state_dict()) == before
    buffer.columns["rewards"][3, 1] = 1.0
    ppo.update(buffer)
    assert policy.return_normalizer.count == 2 * buffer.columns["rewards"].numel()


def test_learning_goes_on_when_some_steps_were_skipped() -> None:
    policy, buffer = collected()
    calls: list[int] = []

    def sometimes(new_values: Tensor) -> Tensor:
        calls.append(1)
        return new_values.mean() * (torch.nan if len(calls) % 3 else 0.0)

    ppo = learner(policy, max_nonfinite_steps=3)
    with pytest.warns(MettaWarning, match="11 of 16 optimizer steps were skipped"):
        stats = ppo.update(buffer, [sometimes])
    assert stats["skipped_steps"] == 11.0
    assert stats["optimizer_steps"] == 5.0
    assert stats["policy_loss"] == stats["policy_loss"]
    assert ppo.skipped_in_a_row == 1


# Coefficients.


def test_schedules_reach_their_end_when_progress_is_one() -> None:
    policy, buffer = collected()
    chosen = OptimizerConfig(learning_rate=0.01, schedule="linear", schedule_end=0.1)
    ppo = learner(
        policy, chosen=chosen, ent_coef=0.2, clip_coef=0.3, schedule_end=0.5,
        clip_schedule="cosine", ent_schedule="linear",
    )  # fmt: skip
    for progress, rate, clip, entropy in ((0.0, 0.01, 0.3, 0.2), (1.0, 0.001, 0.15, 0.1)):
        stats = ppo.update(buffer, progress=progress)
        assert stats["learning_rate"] == pytest.approx(rate)
        assert stats["clip_coef"] == pytest.approx(clip)
        assert stats["ent_coef"] == pytest.approx(entropy)
    assert ppo.update(buffer, progress=0.5)["learning_rate"] == pytest.approx(0.0055)


def test_scheduled_coefficients_act_when_progress_is_one() -> None:
    policy, buffer = collected()
    other = copy.deepcopy(policy)
    chosen = OptimizerConfig(learning_rate=0.02, schedule="cosine", schedule_end=0.5)
    ends = {"clip_schedule": "linear", "ent_schedule": "linear", "schedule_end": 0.5}
    ppo = learner(policy, chosen=chosen, clip_coef=0.1, ent_coef=0.2, **ends)
    ppo.update(buffer, progress=1.0)
    learner(other, clip_coef=0.05, ent_coef=0.1).update(buffer)
    assert other.parameter_hash() == policy.parameter_hash()


def test_learning_rate_moves_both_ways_when_it_follows_the_kl() -> None:
    policy, buffer = collected()
    rates = []
    for desired in (1e-9, 1e3):
        chosen = OptimizerConfig(learning_rate=1e-3, schedule="adaptive_kl", desired_kl=desired)
        ppo = learner(policy, chosen=chosen)
        assert ppo.update(buffer)["learning_rate"] == 1e-3
        rates.append(ppo.learning_rate)
    assert rates == pytest.approx([1e-3 / 1.5, 1.5e-3])


def test_groups_keep_their_proportion_when_the_learning_rate_is_scheduled() -> None:
    policy, buffer = collected()
    heads = list(policy.module.heads.parameters())  # type: ignore[union-attr]
    rest = [p for p in policy.parameters() if all(p is not head for head in heads)]
    optimizer = torch.optim.Adam([{"params": rest}, {"params": heads, "lr": 0.03}], lr=0.01)
    chosen = OptimizerConfig(learning_rate=0.01, schedule="linear")
    learner(policy, optimizer, chosen=chosen).update(buffer, progress=0.5)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.005, 0.015])


# Construction.


def test_lost_parameters_are_named_when_the_optimizer_lacks_them() -> None:
    policy, _ = collected()
    some = [p for name, p in policy.named_parameters() if "critic" not in name]
    with pytest.raises(ConfigError, match=r"module\.heads\.critic\.weight"):
        PPOOptimizer(policy, torch.optim.Adam(some), "cpu", PPOConfig())
    for name, parameter in policy.named_parameters():
        parameter.requires_grad_("critic" not in name)
    PPOOptimizer(policy, torch.optim.Adam(some), "cpu", PPOConfig())  # frozen ones may be missing


def test_a_moved_policy_is_refused_when_its_optimizer_was_built_before() -> None:
    policy, buffer = collected()
    ppo = learner(policy)
    policy.float()
    with pytest.raises(StateError, match=r"was torch.float64 on cpu when its optimizer was built"):
        ppo.update(buffer)


def test_a_bare_module_is_refused_when_no_policy_wraps_it() -> None:
    module: Any = torch.nn.Linear(1, 1)
    with pytest.raises(PolicyError, match="wrap the module"):
        PPOOptimizer(module, torch.optim.Adam(module.parameters()), "cpu", PPOConfig())


# Normalised returns.


def test_values_are_raw_and_the_loss_is_scaled_when_returns_are_normalised() -> None:
    policy, buffer = collected(normalize_returns=True)
    ppo, columns = learner(policy, update_epochs=1, num_minibatches=1), dict(buffer.columns)
    columns |= ppo.compute_advantages(columns)
    raw = policy({"obs": columns["observations"]}).value.detach()
    torch.testing.assert_close(raw, columns["values"])  # nothing seen yet: deviation 1
    policy.update_value_scale(columns)
    assert policy.return_normalizer is not None
    mean, scale = columns["returns"].mean(), columns["returns"].std(correction=0)
    values = policy({"obs": columns["observations"]}).value.detach()
    torch.testing.assert_close(values, raw * scale + mean, rtol=1e-6, atol=1e-6)
    count = float(policy.return_normalizer.count)
    stats = ppo.update(columns)
    expected = 0.5 * ((values - columns["returns"]) / scale).square().mean()
    assert stats["value_loss"] == pytest.approx(float(expected), rel=1e-6)
    # the update takes the rollout in once more, which leaves mean and deviation as they are
    assert float(policy.return_normalizer.count) == count + columns["returns"].numel()


def test_the_scale_of_values_moves_before_learning_and_observations_after_it() -> None:
    seen: list[tuple[float, float]] = []

    def spy(new_values: Tensor) -> Tensor:
        assert trainer.policy.obs_normalizer is not None
        assert trainer.policy.return_normalizer is not None
        speeds = trainer.policy.obs_normalizer.leaf("obs")
        seen.append((float(trainer.policy.return_normalizer.count), float(speeds.count)))
        return new_values.mean() * 0.0

    trainer = PPOTrainer(
        None, lambda: gymnasium.make("CartPole-v1"), num_envs=2, n_steps=8, device="cpu",
        normalize_observations=True, normalize_returns=True,
        custom_losses=[CustomLoss(spy, weight=0.0)],
    )  # fmt: skip
    with trainer:
        for update in range(2):
            data = trainer.collect_rollouts()
            values = trainer.policy({"obs": data["observations"]}).value.detach()
            torch.testing.assert_close(values, data["values"], rtol=1e-5, atol=1e-5)
            trainer.learn(data)
            assert set(seen) == {(16.0 * (update + 1), 16.0 * update)}
            seen.clear()


@pytest.mark.parametrize(("estimator", "moves"), [("vtrace", True), ("gae", False)])
def test_equally_good_actions_gain_when_advantages_carry_importance_weights(
    estimator: str, moves: bool
) -> None:
    """A mean taken off after weighting is no baseline: V-trace's advantages are scaled, never shifted."""
    settings = {"num_envs": 4, "n_steps": 16, "n_epochs": 1, "num_minibatches": 1, "lr": 1e-2}
    with PPOTrainer(
        None, CorridorEnv, advantage_estimator=estimator, ent_coef=0.0, vf_coef=0.0, **settings
    ) as trainer:
        data = dict(trainer.collect_rollouts())
        ones, zeros = torch.ones_like(data["values"]), torch.zeros_like(data["values"])
        data |= {"rewards": ones, "values": zeros, "next_values": zeros}
        data |= {"terminated": ones.bool(), "truncated": zeros.bool()}
        del data["advantages"], data["returns"]
        before = current_log_probs(data, trainer.policy)
        trainer.learn(data)
        gain = float((current_log_probs(data, trainer.policy) - before).mean())
        assert (gain > 1e-3) is moves
        assert moves or abs(gain) < 1e-6


def test_the_error_says_what_to_pass_when_the_config_is_a_whole_one() -> None:
    with PPOTrainer(None, CorridorEnv) as trainer, pytest.raises(ConfigError, match="pass its ppo"):
        PPOOptimizer(trainer.policy, trainer.optimizer, "cpu", trainer.config.trainer)
