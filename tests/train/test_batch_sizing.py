import pytest
from hypothesis import given
from hypothesis import strategies as st

from metta.errors import ConfigError
from metta.train import machine
from metta.train.batch_sizing import (
    BatchPlan,
    check_minibatch_size,
    minibatch_sizes,
    nearest_divisors,
    propose_batch,
)
from metta.train.machine import physical_memory_bytes, plan_config
from metta.train.settings import apply_settings
from metta.train.train_config import TrainingConfig

GIGABYTE = 1 << 30


@pytest.mark.parametrize(
    ("batch", "num", "size", "sizes"),
    [
        (8, 4, None, [2, 2, 2, 2]),
        (10, 4, None, [3, 3, 2, 2]),
        (3, 4, None, [1, 1, 1]),
        (1, 1, None, [1]),
        (12, 4, 6, [6, 6]),
        (12, 4, 12, [12]),
    ],
)
def test_sizes_are_the_known_ones_when_a_batch_is_split(
    batch: int, num: int, size: int | None, sizes: list[int]
) -> None:
    assert minibatch_sizes(batch, num, size) == sizes


@given(st.integers(1, 10_000), st.integers(1, 64))
def test_every_sample_is_used_once_when_a_batch_is_split(batch: int, num: int) -> None:
    sizes = minibatch_sizes(batch, num, None)
    assert sum(sizes) == batch
    assert len(sizes) == min(num, batch)
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_the_neighbours_divide_when_a_size_does_not(batch: int, wanted: int) -> None:
    near = nearest_divisors(batch, wanted)
    assert near
    assert all(batch % size == 0 for size in near)
    legal = [size for size in range(1, batch + 1) if batch % size == 0]
    assert near == [d for d in legal if d <= wanted][-1:] + [d for d in legal if d > wanted][:1]


def test_legal_sizes_are_named_when_a_minibatch_does_not_divide() -> None:
    with pytest.raises(
        ConfigError, match=r"minibatch_size=100 does not divide the batch of 1024.*64 or 128"
    ):
        minibatch_sizes(1024, 4, 100)


def test_horizon_and_rows_are_named_when_a_minibatch_does_not_fit() -> None:
    with pytest.raises(ConfigError, match=r"1024 \(horizon 128 x 8 rows\); try .*=64 or 128"):
        check_minibatch_size(100, horizon=128, rows=8)


def test_whole_segments_are_wanted_when_a_policy_is_recurrent() -> None:
    check_minibatch_size(64, horizon=128, rows=8, segment_length=16)
    with pytest.raises(ConfigError, match="in segments of 16 steps; try minibatch_size=16"):
        check_minibatch_size(8, horizon=128, rows=8, segment_length=16)


@given(
    st.integers(1, 40), st.integers(1, 40), st.sampled_from([1, 2, 4]), st.integers(1, 2000)
)  # fmt: skip
def test_a_named_size_is_legal_when_another_is_refused(
    segments: int, rows: int, length: int, size: int
) -> None:
    shape = {"horizon": segments * length, "rows": rows, "segment_length": length}
    try:
        check_minibatch_size(size, **shape)
    except ConfigError as error:
        for legal in str(error).rpartition("minibatch_size=")[2].split(" or "):
            check_minibatch_size(int(legal), **shape)


MACHINES = {
    "agents_per_env": st.integers(1, 64),
    "cores": st.integers(1, 256),
    "memory_bytes": st.integers(GIGABYTE // 4, 1024 * GIGABYTE),
    "row_bytes": st.integers(1, 100_000),
    "bptt_horizon": st.integers(1, 64),
    "num_envs": st.none() | st.integers(1, 64),
    "horizon": st.none() | st.integers(1, 300),
}


def propose(**machine: int) -> BatchPlan | None:
    try:
        return propose_batch(**machine)
    except ConfigError:
        return None  # too little memory; there is a test of its own for the message


@given(st.fixed_dictionaries(MACHINES))
def test_all_sizes_divide_when_a_batch_is_proposed(machine: dict) -> None:
    if (plan := propose(**machine)) is None:
        return
    rows = plan.num_envs * machine["agents_per_env"]
    assert plan.batch_size == rows * plan.horizon
    assert plan.batch_size % plan.minibatch_size == 0
    assert plan.horizon % plan.bptt_horizon == 0
    assert plan.minibatch_size % plan.bptt_horizon == 0
    assert plan.bptt_horizon <= machine["bptt_horizon"]
    check_minibatch_size(
        plan.minibatch_size, horizon=plan.horizon, rows=rows, segment_length=plan.bptt_horizon
    )


@given(st.fixed_dictionaries(MACHINES))
def test_memory_is_respected_when_a_batch_is_proposed(machine: dict) -> None:
    if (plan := propose(**machine)) is not None:
        assert plan.batch_size * machine["row_bytes"] <= machine["memory_bytes"] / 4


@given(st.fixed_dictionaries(MACHINES))
def test_given_sizes_stay_when_a_batch_is_proposed(machine: dict) -> None:
    if (plan := propose(**machine)) is not None:
        assert machine["num_envs"] in (None, plan.num_envs)
        assert machine["horizon"] in (None, plan.horizon)


@given(st.fixed_dictionaries(MACHINES))
def test_the_explanation_gives_the_numbers_when_a_batch_is_proposed(machine: dict) -> None:
    if (plan := propose(**machine)) is not None:
        for number in (plan.num_envs, plan.horizon, plan.batch_size, plan.minibatch_size):
            assert f" {number}" in plan.explanation


def test_the_plan_is_the_known_one_when_the_machine_is_usual() -> None:
    plan = propose_batch(cores=8, memory_bytes=16 * GIGABYTE, row_bytes=100)
    # 8 cores x 8 = 64 envs; 128 steps; batch 8192; four minibatches
    assert (plan.num_envs, plan.horizon, plan.minibatch_size) == (64, 128, 2048)
    assert "8 cores x 8 -> 64 envs" in plan.explanation
    assert "limited by the target" in plan.explanation


def test_the_horizon_shrinks_when_memory_is_short() -> None:
    # 64 envs x 1 MB x 8 steps is all that a quarter of 2 GB holds
    plan = propose_batch(cores=8, memory_bytes=2 * GIGABYTE, row_bytes=1 << 20)
    assert (plan.num_envs, plan.horizon) == (64, 8)
    assert "limited by memory" in plan.explanation


def test_a_config_error_says_what_to_do_when_not_even_one_environment_fits() -> None:
    with pytest.raises(ConfigError, match="shrink the observation"):
        propose_batch(cores=1, memory_bytes=GIGABYTE, row_bytes=GIGABYTE)


@pytest.mark.parametrize("field", ["cores", "agents_per_env", "row_bytes"])
def test_a_config_error_names_the_field_when_a_count_is_zero(field: str) -> None:
    machine = {"cores": 1, "memory_bytes": GIGABYTE, "row_bytes": 8} | {field: 0}
    with pytest.raises(ConfigError, match=f"{field}=0; it must be at least 1"):
        propose_batch(**machine)


def test_memory_is_that_of_the_machine_when_it_is_asked() -> None:
    assert GIGABYTE // 8 < physical_memory_bytes() < 1 << 60


def test_only_open_settings_change_when_a_config_is_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 4)
    monkeypatch.setattr(machine, "physical_memory_bytes", lambda: GIGABYTE)
    config = apply_settings(TrainingConfig(), {"horizon": 100, "num_minibatches": 4})
    was_set = {"trainer.rollout.horizon", "trainer.ppo.num_minibatches"}
    planned, plan = plan_config(config, was_set, agents_per_env=1, row_bytes=64)
    assert (planned.trainer.rollout.num_envs, planned.trainer.rollout.horizon) == (32, 100)
    assert planned.trainer.rollout.bptt_horizon == plan.bptt_horizon == 10
    assert planned.trainer.ppo.minibatch_size is None
    assert plan.batch_size == 3200
