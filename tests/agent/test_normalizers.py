import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from metta.agent.factory import make_policy
from metta.agent.normalizers import ObsNormalizer, ReturnNormalizer, RunningNormalizer
from metta.agent.policy import Policy
from metta.spaces import obs_spec_of
from metta.train.train_config import AgentConfig

T, N = 6, 5
SPACE = spaces.Dict(
    {
        "speed": spaces.Box(-np.inf, np.inf, (3,)),
        "choice": spaces.Discrete(4),
        "camera": spaces.Box(0, 255, (6, 6, 3), np.uint8),
        "bits": spaces.MultiBinary(2),
    }
)
NORMALISED = AgentConfig(normalize_observations=True, normalize_returns=True, hidden_size=8)


def data(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 5.0 + 3.0 * torch.randn(shape, generator=generator)


def ones(count: int) -> Tensor:
    return torch.ones(count)


def rollout(seed: int = 0) -> dict[str, Tensor]:
    generator = np.random.Generator(np.random.PCG64(seed))
    return {
        "observations/speed": data(T, N, 3, seed=seed),
        "observations/choice": torch.from_numpy(generator.integers(0, 4, (T, N))),
        "observations/camera": torch.from_numpy(
            generator.integers(0, 256, (T, N, 6, 6, 3)).astype(np.uint8)
        ),
        "observations/bits": torch.from_numpy(generator.integers(0, 2, (T, N, 2)).astype(np.int8)),
        "returns": 100.0 + 20.0 * data(T, N, seed=seed + 1),
        "valid": torch.ones(T, N, dtype=torch.bool),
    }


def obs_of(columns: dict[str, Tensor]) -> dict[str, Tensor]:
    start = len("observations/")
    return {k[start:]: v for k, v in columns.items() if k.startswith("observations/")}


@pytest.fixture
def policy() -> Policy:
    return make_policy(SPACE, spaces.Discrete(3), NORMALISED)


def test_nothing_changes_when_nothing_was_seen():
    normalizer, values = RunningNormalizer((3,)), data(10, 3)
    assert torch.equal(normalizer.normalize(values), values)
    assert torch.equal(normalizer.denormalize(values), values)


def test_nothing_changes_when_only_masked_rows_were_seen():
    normalizer, values = RunningNormalizer((3,)), data(10, 3)
    normalizer.update(values, torch.zeros(10))
    assert torch.equal(normalizer.normalize(values), values)
    assert normalizer.count == 0


def test_data_has_mean_zero_and_deviation_one_when_seen():
    normalizer, values = RunningNormalizer((3,)), data(500, 3)
    normalizer.update(values[:200], ones(200))
    normalizer.update(values[200:], ones(300))
    found = normalizer.normalize(values).double()
    torch.testing.assert_close(found.mean(0), torch.zeros(3).double(), rtol=0, atol=1e-6)
    torch.testing.assert_close(
        found.std(0, unbiased=False), torch.ones(3).double(), rtol=0, atol=1e-6
    )
    # float32 numbers around 5 keep six decimals
    torch.testing.assert_close(
        normalizer.denormalize(normalizer.normalize(values)), values, rtol=0, atol=5e-6
    )


def test_masked_rows_do_not_count_when_they_hold_anything():
    plain, masked, values = RunningNormalizer((3,)), RunningNormalizer((3,)), data(40, 3)
    plain.update(values[::2], ones(20))
    weights = torch.zeros(40, dtype=torch.bool)
    weights[::2] = True
    values[1::2] = torch.nan
    masked.update(values, weights)
    for name, buffer in plain.named_buffers():
        torch.testing.assert_close(getattr(masked, name), buffer, rtol=1e-12, atol=0)


def test_digits_are_kept_when_the_mean_is_large():
    normalizer = RunningNormalizer(())
    values = 1e6 + torch.arange(8.0).double()
    normalizer.update(values, ones(8))
    # variance of 0..7 = (64 - 1) / 12
    assert normalizer.scale.item() == pytest.approx((63 / 12) ** 0.5, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_moments_stay_exact_when_the_module_is_cast(dtype):
    normalizer = RunningNormalizer((3,))
    normalizer.update(data(50, 3).double() + 1e-9, ones(50))
    before = {name: getattr(normalizer, name).clone() for name in ("count", "mean", "m2")}
    scale = normalizer.scale.clone()
    assert normalizer.to(dtype) is normalizer
    for name, moments in before.items():
        assert getattr(normalizer, name).dtype == torch.float64
        assert torch.equal(getattr(normalizer, name), moments)
    assert normalizer.scale.dtype == dtype
    assert torch.equal(normalizer.to(torch.float32).scale, scale)


def test_scale_has_all_digits_when_cast_to_float64():
    normalizer, values = RunningNormalizer((3,)), data(50, 3).double()
    normalizer.update(values, ones(50))
    found = normalizer.double().normalize(values)
    torch.testing.assert_close(found.mean(0), torch.zeros(3).double(), rtol=0, atol=1e-12)


def test_counting_goes_on_when_float32_would_stop_counting():
    normalizer = RunningNormalizer(())
    normalizer.count.fill_(2**24)  # from here on float32 ignores + 1
    normalizer.float()
    normalizer.update(torch.zeros(1), ones(1))
    assert normalizer.count.item() == 2**24 + 1


def test_values_are_clipped_when_far_from_the_mean():
    normalizer = ObsNormalizer(obs_spec_of(spaces.Box(-1, 1, (2,))), clip=2.0)
    normalizer.update("obs", data(50, 2), ones(50))
    found = normalizer("obs", torch.tensor([[1e6, -1e6], [5.0, 5.0]]))
    assert found[0].tolist() == [2.0, -2.0]
    assert found[1].abs().max() < 1.0


def test_only_floats_are_normalised_when_leaves_are_mixed():
    normalizer = ObsNormalizer(obs_spec_of(SPACE), clip=10.0)
    assert normalizer.keys == ("speed",)
    columns = obs_of(rollout())
    for key, leaf in columns.items():
        normalizer.update(key, leaf.flatten(0, 1), ones(T * N))
        same = torch.equal(normalizer(key, leaf), leaf)
        assert same == (key != "speed")


@pytest.mark.parametrize("key", ["joint.angle", "values", "type", "training"])
def test_any_key_is_taken_when_torch_forbids_it_as_a_module_name(key):
    space = spaces.Dict({key: spaces.Box(-1, 1, (2,)), "other": spaces.Box(-1, 1, (2,))})
    policy = make_policy(space, spaces.Discrete(2), NORMALISED)
    normalizer = policy.obs_normalizer
    normalizer.update(key, data(50, 2), ones(50))
    assert normalizer.leaf(key).count == 50
    assert normalizer.leaf("other").count == 0


def test_forward_changes_no_moment_when_training(policy):
    policy.train()
    before = policy.parameter_hash()
    policy(obs_of(rollout()))
    assert policy.parameter_hash() == before


def test_moments_follow_the_valid_rows_when_a_policy_is_updated(policy):
    columns = rollout()
    columns["valid"][2:, 1:] = False
    columns["observations/speed"][3, 3] = torch.nan
    columns["returns"][3, 3] = torch.nan
    policy.update_normalizers(columns)
    policy.update_value_scale(columns)
    valid = columns["valid"]
    speed = policy.obs_normalizer.leaf("speed")
    seen = columns["observations/speed"][valid].double()
    assert speed.count == valid.sum()
    torch.testing.assert_close(speed.mean, seen.mean(0), rtol=0, atol=1e-12)
    torch.testing.assert_close(speed.scale.double(), seen.std(0, unbiased=False), rtol=1e-6, atol=0)
    returns = columns["returns"][valid].double()
    torch.testing.assert_close(policy.return_normalizer.mean, returns.mean(), rtol=1e-12, atol=0)


def test_policy_sees_normalised_observations_when_updated(policy):
    columns = rollout()
    policy.update_normalizers(columns)
    seen = {}
    policy.module.register_forward_pre_hook(lambda _, inputs: seen.update(inputs[0]))
    policy(obs_of(columns))
    torch.testing.assert_close(seen["speed"].mean(0), torch.zeros(3), rtol=0, atol=1e-5)
    assert torch.equal(seen["camera"], columns["observations/camera"].flatten(0, 1).float())


def test_values_are_in_raw_units_when_returns_are_normalised(policy):
    plain = copy.deepcopy(policy)
    columns = rollout()
    policy.return_normalizer.update(columns["returns"].flatten(), ones(T * N))
    obs = obs_of(columns)
    scale, shift = policy.return_normalizer.scale, policy.return_normalizer.shift
    assert scale > 10
    wanted = plain(obs).value * scale + shift
    torch.testing.assert_close(policy(obs).value, wanted, rtol=1e-5, atol=0)
    assert policy.value_scale is policy.return_normalizer.scale
    assert plain.value_scale == 1.0


def test_value_scale_is_one_when_returns_are_not_normalised():
    assert make_policy(spaces.Box(-1, 1, (2,)), spaces.Discrete(2)).value_scale == 1.0


def test_return_normaliser_is_a_scalar_when_made():
    assert ReturnNormalizer().scale.shape == ()


def test_everything_comes_back_when_the_state_is_loaded(policy):
    policy.update_normalizers(rollout())
    state = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    assert {name for name in state if "normalizer" in name} == {
        f"{where}.{name}"
        for where in ("obs_normalizer.leaves.0", "return_normalizer")
        for name in ("count", "mean", "m2", "shift", "scale")
    }
    other = make_policy(SPACE, spaces.Discrete(3), NORMALISED, seed=9)
    other.load_state_dict(state)
    assert other.parameter_hash() == policy.parameter_hash()
    obs = obs_of(rollout(seed=5))
    assert torch.equal(other(obs).dist_params, policy(obs).dist_params)
    assert torch.equal(other(obs).value, policy(obs).value)
    for trained in (policy, other):
        trained.update_normalizers(rollout(seed=7))
    assert other.parameter_hash() == policy.parameter_hash()


def test_moments_stay_float64_when_a_whole_policy_is_cast(policy):
    policy.update_normalizers(rollout())
    before = policy.obs_normalizer.leaf("speed").mean.clone()
    policy.double().float()
    after = policy.obs_normalizer.leaf("speed").mean
    assert torch.equal(after, before)
    assert policy.return_normalizer.count.dtype == torch.float64
