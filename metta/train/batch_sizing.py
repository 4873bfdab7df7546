"""Batch arithmetic: legal minibatch sizes, and a proposal for machines one has not met before."""

from dataclasses import dataclass

from metta.errors import ConfigError

__all__ = ["BatchPlan", "minibatch_sizes", "nearest_divisors", "propose_batch"]

_TARGET_BATCH = 2048
_TARGET_MINIBATCHES = 4
_ENVS_PER_CORE = 8
_LONGEST_HORIZON = 2048
_SHORTEST_HORIZON = 8
_MEMORY_SHARE = 0.25


@dataclass(frozen=True)
class BatchPlan:
    """Sizes that divide each other, and why they are what they are."""

    num_envs: int
    horizon: int
    minibatch_size: int
    bptt_horizon: int
    batch_size: int
    explanation: str


def nearest_divisors(batch: int, wanted: int) -> list[int]:
    """The divisors of `batch` just below and just above `wanted`."""
    divisors = sorted(
        {d for i in range(1, int(batch**0.5) + 1) if batch % i == 0 for d in (i, batch // i)}
    )
    below = [d for d in divisors if d <= wanted][-1:]
    above = [d for d in divisors if d > wanted][:1]
    return below + above


def minibatch_sizes(batch: int, num_minibatches: int, minibatch_size: int | None) -> list[int]:
    """Sizes of the minibatches of one pass over `batch` samples.

    A given `minibatch_size` must divide the batch; `num_minibatches` splits any batch, into sizes
    that differ by at most one (and into fewer parts where there are fewer samples).
    """
    if minibatch_size is not None:
        if batch % minibatch_size:
            legal = " or ".join(str(size) for size in nearest_divisors(batch, minibatch_size))
            raise ConfigError(
                f"minibatch_size={minibatch_size} does not divide the batch of {batch}; "
                f"try minibatch_size={legal}"
            )
        return [minibatch_size] * (batch // minibatch_size)
    parts = max(1, min(num_minibatches, batch))
    size, larger = divmod(batch, parts)
    return [size + 1] * larger + [size] * (parts - larger)


def propose_batch(
    *,
    agents_per_env: int = 1,
    cores: int,
    memory_bytes: int,
    row_bytes: int,
    bptt_horizon: int = 16,
) -> BatchPlan:
    """Sizes for a machine: environments from cores, steps from the target batch and from memory.

    `row_bytes` is what one agent's step takes in a rollout (observation, action and about ten numbers).
    Everything is a power of two times `agents_per_env`, so that minibatches and segments divide.

        plan = propose_batch(cores=8, memory_bytes=16 << 30, row_bytes=28_224)
        print(plan.explanation)
    """
    for name, value in (("agents_per_env", agents_per_env), ("cores", cores)):
        if value < 1:
            raise ConfigError(f"{name}={value}; it must be at least 1")
    budget = int(memory_bytes * _MEMORY_SHARE)
    smallest = row_bytes * agents_per_env * _SHORTEST_HORIZON
    if smallest > budget:
        raise ConfigError(
            f"one environment with {agents_per_env} agents needs {smallest:,} bytes for "
            f"{_SHORTEST_HORIZON} steps, but only {budget:,} ({_MEMORY_SHARE:.0%} of memory) may be "
            "used; shrink the observation or use a machine with more memory"
        )
    num_envs = _power_of_two_at_most(max(1, _ENVS_PER_CORE * cores // agents_per_env))
    while row_bytes * agents_per_env * num_envs * _SHORTEST_HORIZON > budget:
        num_envs //= 2
    rows = num_envs * agents_per_env
    fits = budget // (row_bytes * rows)
    wanted = max(128, _TARGET_BATCH // rows)
    horizon = _power_of_two_at_most(max(_SHORTEST_HORIZON, min(wanted, fits, _LONGEST_HORIZON)))
    limit = "memory" if fits < wanted else f"the target of {_TARGET_BATCH} samples or 128 steps"
    batch = rows * horizon
    minibatch = batch // _TARGET_MINIBATCHES
    segment = min(_power_of_two_at_most(bptt_horizon), horizon)
    return BatchPlan(
        num_envs=num_envs,
        horizon=horizon,
        minibatch_size=minibatch,
        bptt_horizon=segment,
        batch_size=batch,
        explanation=(
            f"{cores} cores x {_ENVS_PER_CORE} -> {num_envs} envs x {agents_per_env} agents = {rows} "
            f"rows; horizon {horizon} (limited by {limit}) -> batch {batch} = "
            f"{_TARGET_MINIBATCHES} minibatches of {minibatch}; "
            f"{batch * row_bytes / 1e6:.1f} MB of {budget / 1e6:.0f} MB allowed"
        ),
    )


def _power_of_two_at_most(value: int) -> int:
    return 1 << (max(1, value).bit_length() - 1)
