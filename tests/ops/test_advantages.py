import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from metta.ops import advantages as module
from metta.ops.advantages import _reference_gae, _reference_vtrace, _require_alike, gae, vtrace

VTRACE = {"gamma": 0.9, "gae_lambda": 0.8, "rho_clip": 1.2, "c_clip": 0.9}

# float32 keeps 7 digits, and sums of a dozen terms lose one
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5}


def random_log_ratios(shape: torch.Size, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(99)
    return 0.7 * torch.randn(shape, dtype=dtype, generator=generator)


def brute_force_gae(rollout, gamma, gae_lambda):
    """A_t = sum over k = t .. end of t's episode of (gamma * lambda)^(k - t) * delta_k."""
    rewards, values, next_values, terminated, ended = (tensor.tolist() for tensor in rollout)
    num_steps, num_envs = rollout.rewards.shape
    result = [[0.0] * num_envs for _ in range(num_steps)]
    for n in range(num_envs):
        for t in range(num_steps):
            for k in range(t, num_steps):
                bootstrap = 0.0 if terminated[k][n] else gamma * next_values[k][n]
                delta = rewards[k][n] + bootstrap - values[k][n]
                result[t][n] += (gamma * gae_lambda) ** (k - t) * delta
                if ended[k][n]:
                    break
    return torch.tensor(result, dtype=torch.float64)


def brute_force_vtrace(rollout, log_ratios, gamma, gae_lambda, rho_clip, c_clip):
    """Espeholt et al. (2018), eq. 1 with lambda inside c, and the advantage below eq. 4."""
    rewards, values, next_values, terminated, ended = (tensor.tolist() for tensor in rollout)
    num_steps, num_envs = rollout.rewards.shape
    ratios = [[math.exp(x) for x in row] for row in log_ratios.tolist()]

    def one_step_error(k, n, next_value):
        bootstrap = 0.0 if terminated[k][n] else gamma * next_value
        return min(rho_clip, ratios[k][n]) * (rewards[k][n] + bootstrap - values[k][n])

    targets = [list(row) for row in values]
    for n in range(num_envs):
        for t in range(num_steps):
            trace = 1.0
            for k in range(t, num_steps):
                targets[t][n] += gamma ** (k - t) * trace * one_step_error(k, n, next_values[k][n])
                trace *= gae_lambda * min(c_clip, ratios[k][n])
                if ended[k][n]:
                    break
    advantages = [[0.0] * num_envs for _ in range(num_steps)]
    for n in range(num_envs):
        for t in range(num_steps):
            inside = t + 1 < num_steps and not ended[t][n]
            next_target = targets[t + 1][n] if inside else next_values[t][n]
            advantages[t][n] = one_step_error(t, n, next_target)
    return tuple(torch.tensor(x, dtype=torch.float64) for x in (advantages, targets))


@pytest.fixture(params=["default", "fallback"])
def kernel(request, monkeypatch):
    """Each test below runs on whatever is installed, and again without the C kernels."""
    if request.param == "fallback":
        monkeypatch.setattr(module, "_native", None)


def test_advantages_are_known_when_one_episode_terminates_and_one_is_cut():
    # gamma 0.5, lambda 0.5; column 0 terminates in row 1, column 1 reaches its time limit there
    rewards = torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    values = torch.tensor([[0.5, 0.5], [1.0, 1.0], [4.0, 4.0]])
    next_values = torch.tensor([[1.0, 1.0], [8.0, 8.0], [2.0, 2.0]])
    terminated = torch.tensor([[False, False], [True, False], [False, False]])
    ended = torch.tensor([[False, False], [True, True], [False, False]])
    # deltas: row 0 1 + 0.5 * 1 - 0.5; row 1 2 - 1 or 2 + 0.5 * 8 - 1; row 2 3 + 0.5 * 2 - 4
    expected = torch.tensor([[1.0 + 0.25 * 1.0, 1.0 + 0.25 * 5.0], [1.0, 5.0], [0.0, 0.0]])
    result = gae(rewards, values, next_values, terminated, ended, gamma=0.5, gae_lambda=0.5)
    assert torch.equal(result, expected)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(7, 5), (5, 9), (1, 4), (6, 1), (40, 4)])
@pytest.mark.parametrize("consistent", [False, True])
def test_gae_equals_the_explicit_sum_when_episodes_end_in_every_way(
    make_rollout, shape, dtype, consistent
):
    rollout = make_rollout(*shape, dtype=dtype, consistent=consistent)
    result = gae(*rollout, gamma=0.97, gae_lambda=0.9)
    tolerance = TOLERANCES[dtype]
    expected = brute_force_gae(rollout, gamma=0.97, gae_lambda=0.9)
    assert result.dtype == dtype
    torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(7, 5), (5, 9), (1, 4), (6, 1), (40, 4)])
def test_vtrace_equals_the_explicit_sum_when_episodes_end_in_every_way(make_rollout, shape, dtype):
    rollout = make_rollout(*shape, dtype=dtype)
    log_ratios = random_log_ratios(rollout.rewards.shape, dtype)
    result = vtrace(*rollout, log_ratios, **VTRACE)
    expected_advantages, expected_targets = brute_force_vtrace(rollout, log_ratios, **VTRACE)
    bounds = {"rtol": TOLERANCES[dtype], "atol": TOLERANCES[dtype]}
    torch.testing.assert_close(result.advantages.double(), expected_advantages, **bounds)
    torch.testing.assert_close(result.targets.double(), expected_targets, **bounds)


@settings(max_examples=40, deadline=None)
@given(
    num_steps=st.integers(1, 12),
    num_envs=st.integers(1, 6),
    seed=st.integers(0, 10_000),
    gamma=st.floats(0.0, 1.0),
)
def test_advantages_equal_returns_minus_values_when_lambda_is_one(
    make_rollout, num_steps, num_envs, seed, gamma
):
    rollout = make_rollout(num_steps, num_envs, seed=seed, consistent=True)
    rewards, values, next_values, terminated, ended = rollout
    following = next_values[-1]  # return of the state that the last row reaches
    returns = torch.empty_like(values)
    for t in reversed(range(num_steps)):
        following = torch.where(ended[t], next_values[t], following)
        following = rewards[t] + gamma * torch.where(terminated[t], 0.0, following)
        returns[t] = following
    result = gae(*rollout, gamma=gamma, gae_lambda=1.0)
    torch.testing.assert_close(result, returns - values, rtol=1e-11, atol=1e-11)


@settings(max_examples=40, deadline=None)
@given(
    num_steps=st.integers(1, 12),
    num_envs=st.integers(1, 6),
    seed=st.integers(0, 10_000),
    gae_lambda=st.floats(0.0, 1.0),
    clip=st.sampled_from([1.0, 1.5, math.inf]),
)
def test_vtrace_targets_equal_gae_plus_values_when_ratios_are_one(
    make_rollout, num_steps, num_envs, seed, gae_lambda, clip
):
    rollout = make_rollout(num_steps, num_envs, seed=seed)
    on_policy = torch.zeros_like(rollout.rewards)
    coefs = {"gamma": 0.95, "gae_lambda": gae_lambda}
    result = vtrace(*rollout, on_policy, **coefs, rho_clip=clip, c_clip=clip)
    assert torch.equal(result.targets, gae(*rollout, **coefs) + rollout.values)


@pytest.mark.usefixtures("kernel")
def test_vtrace_advantages_equal_gae_when_ratios_and_lambda_are_one(make_rollout):
    rollout = make_rollout(9, 6, consistent=True)
    coefs = {"gamma": 0.95, "gae_lambda": 1.0}
    on_policy = torch.zeros_like(rollout.rewards)
    result = vtrace(*rollout, on_policy, **coefs, rho_clip=1.0, c_clip=1.0)
    torch.testing.assert_close(result.advantages, gae(*rollout, **coefs), rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("kernel")
def test_results_stay_finite_when_masked_entries_are_nan(make_rollout):
    rollout = make_rollout(7, 5)
    rollout.next_values[rollout.terminated] = math.nan
    rollout.rewards[4:, 2] = math.nan  # column 2 is cut in row 2: its next episode must not leak
    log_ratios = torch.zeros_like(rollout.rewards)
    result = torch.stack(
        [gae(*rollout, gamma=0.9, gae_lambda=0.9), *vtrace(*rollout, log_ratios, **VTRACE)]
    )
    assert result[:, :3].isfinite().all()
    assert result[:, :, [0, 1, 3, 4]].isfinite().all()
    assert result[:, 4, 2].isnan().all()


@pytest.mark.usefixtures("kernel")
def test_results_equal_those_of_copies_when_inputs_are_not_contiguous(make_rollout):
    rollout = make_rollout(7, 5)
    log_ratios = random_log_ratios(rollout.rewards.shape)
    strided = [tensor.t().contiguous().t() for tensor in (*rollout, log_ratios)]
    strided[1] = rollout.values.repeat_interleave(2, dim=1)[:, ::2]
    strided[0] = torch.ones((), dtype=torch.float64).expand(7, 5)
    assert not any(tensor.is_contiguous() for tensor in strided)
    compact = [tensor.contiguous() for tensor in strided]
    coefs = {"gamma": 0.9, "gae_lambda": 0.8}
    assert torch.equal(gae(*strided[:5], **coefs), gae(*compact[:5], **coefs))
    for ours, theirs in zip(vtrace(*strided, **VTRACE), vtrace(*compact, **VTRACE), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.usefixtures("kernel")
def test_inputs_are_untouched_and_detached_when_they_carry_gradients(make_rollout):
    rollout = make_rollout(7, 5)
    inputs = (*rollout, random_log_ratios(rollout.rewards.shape))
    for tensor in inputs:
        tensor.requires_grad_(tensor.is_floating_point())
    before = [tensor.detach().clone() for tensor in inputs]
    results = [gae(*rollout, gamma=0.9, gae_lambda=0.9), *vtrace(*inputs, **VTRACE)]
    assert not any(result.requires_grad for result in results)
    assert all(torch.equal(old, new) for old, new in zip(before, inputs, strict=True))
    pointers = {tensor.data_ptr() for tensor in (*inputs, *results)}
    assert len(pointers) == len(inputs) + len(results)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_results_are_empty_when_the_rollout_is_empty(make_rollout, shape):
    rollout = make_rollout(*shape)
    log_ratios = torch.zeros(shape, dtype=torch.float64)
    assert gae(*rollout, gamma=0.9, gae_lambda=0.9).shape == shape
    assert [x.shape for x in vtrace(*rollout, log_ratios, **VTRACE)] == [shape, shape]


def test_the_fallback_serves_when_the_dtype_has_no_kernel(make_rollout):
    rollout = make_rollout(7, 5, dtype=torch.bfloat16)
    result = gae(*rollout, gamma=0.9, gae_lambda=0.9)
    assert result.dtype == torch.bfloat16
    assert torch.equal(result, _reference_gae(*rollout, gamma=0.9, gae_lambda=0.9))
    ratios = torch.ones_like(rollout.rewards)
    ours = vtrace(*rollout, ratios.log(), **VTRACE)
    assert torch.equal(ours.targets, _reference_vtrace(*rollout, ratios, **VTRACE).targets)


def test_the_fallback_serves_when_tensors_are_not_on_the_cpu(make_rollout):
    rollout = [tensor.to("meta") for tensor in make_rollout(7, 5)]
    results = [
        gae(*rollout, gamma=0.9, gae_lambda=0.9),
        *vtrace(*rollout, torch.zeros_like(rollout[0]), **VTRACE),
    ]
    assert [(x.device.type, tuple(x.shape)) for x in results] == [("meta", (7, 5))] * 3


def test_a_value_error_names_the_argument_when_dtypes_are_mixed(make_rollout):
    rollout = make_rollout(4, 4)
    mixed = rollout._replace(values=rollout.values.float())
    with pytest.raises(ValueError, match=r"values has shape \[4, 4\], torch.float32"):
        gae(*mixed, gamma=0.9, gae_lambda=0.9)
    with pytest.raises(ValueError, match=r"log_ratios has shape \[4, 4\], torch.float32"):
        vtrace(*rollout, torch.zeros(4, 4), **VTRACE)


@pytest.mark.parametrize(
    ("arrays", "masks", "message"),
    [
        ({"rewards": (3, 2), "values": (2, 3)}, {}, r"values has shape \[2, 3\]"),
        ({"rewards": (6,)}, {}, r"rewards must have shape \[T, N\], got \[6\]"),
        ({"rewards": (3, 2)}, {"terminated": (3, 1)}, r"terminated has shape \[3, 1\]"),
    ],
)
def test_a_value_error_names_the_argument_when_shapes_differ(arrays, masks, message):
    # asked directly: in tests the annotations of `gae` refuse such shapes first
    with pytest.raises(ValueError, match=message):
        _require_alike(
            {name: torch.zeros(shape) for name, shape in arrays.items()},
            {name: torch.zeros(shape, dtype=torch.bool) for name, shape in masks.items()},
        )


def test_a_value_error_names_the_mask_when_it_is_not_boolean():
    with pytest.raises(ValueError, match=r"terminated has .*torch.float32.* must .*torch.bool"):
        _require_alike({"rewards": torch.zeros(3, 2)}, {"terminated": torch.zeros(3, 2)})
