"""Batch arithmetic: legal minibatch sizes, and sizes proposed for a machine."""

from dataclasses import dataclass

from metta.errors import ConfigError

__all__ = [
    "BatchPlan",
    "check_minibatch_size",
    "minibatch_sizes",
    "nearest_divisors",
    "propose_batch",
]

_TARGET_BATCH = 2048
_TARGET_MINIBATCHES = 4
_ENVS_PER_CORE = 8
_MAX_HORIZON = 2048
_USUAL_HORIZON = 128
_MIN_HORIZON = 8
_MEMORY_SHARE = 0.25


@dataclass(frozen=True)
class BatchPlan:
    """Sizes that divide each other, and why they were chosen."""

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
    that differ by at most one (and into fewer parts if there are fewer samples).
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


def check_minibatch_size(
    size: int | None, *, horizon: int, rows: int, segment_length: int = 1
) -> None:
    """Check that minibatches of `size` samples divide a rollout; `ConfigError` names sizes that do.

    Recurrent policies take whole segments of `segment_length` steps.
    """
    batch = horizon * rows
    if size is None or (batch % size == 0 and size % segment_length == 0):
        return
    wanted = max(1, size // segment_length)
    legal = [d * segment_length for d in nearest_divisors(batch // segment_length, wanted)]
    segments = f" in segments of {segment_length} steps" if segment_length > 1 else ""
    raise ConfigError(
        f"minibatch_size={size} does not divide the batch of {batch} (horizon {horizon} x {rows} rows)"
        f"{segments}; try minibatch_size={' or '.join(str(d) for d in legal)}"
    )


def propose_batch(
    *,
    agents_per_env: int = 1,
    cores: int,
    memory_bytes: int,
    row_bytes: int,
    bptt_horizon: int = 16,
    num_envs: int | None = None,
    horizon: int | None = None,
) -> BatchPlan:
    """Sizes for a machine: environments from cores, steps from the target batch and from memory.

    `row_bytes` is what one agent's step takes in a rollout (observation, action and about ten numbers).
    Sizes are powers of two (times `agents_per_env`), so that minibatches and segments divide. A given
    `num_envs` or `horizon` is kept, and the rest fitted to it.

        plan = propose_batch(cores=8, memory_bytes=16 << 30, row_bytes=28_224)
        print(plan.explanation)
    """
    _check_counts(agents_per_env=agents_per_env, cores=cores, row_bytes=row_bytes)
    budget = int(memory_bytes * _MEMORY_SHARE)
    env_bytes, shortest = row_bytes * agents_per_env, horizon or _MIN_HORIZON
    _check_memory(num_envs or 1, shortest, env_bytes, budget)
    envs_because = "num_envs as set"
    if num_envs is None:
        envs_because = f"{cores} cores x {_ENVS_PER_CORE}"
        most = min(_ENVS_PER_CORE * cores // agents_per_env, budget // (env_bytes * shortest))
        num_envs = _power_of_two_at_most(most)
    rows = num_envs * agents_per_env
    steps_because = "as set"
    if horizon is None:
        fits, wanted = budget // (row_bytes * rows), max(_USUAL_HORIZON, _TARGET_BATCH // rows)
        horizon = _power_of_two_at_most(min(wanted, fits, _MAX_HORIZON))
        target = f"the target of {_TARGET_BATCH} samples or {_USUAL_HORIZON} steps"
        steps_because = f"limited by {'memory' if fits < wanted else target}"
    batch = rows * horizon
    segment = nearest_divisors(horizon, bptt_horizon)[0]
    minibatch = segment * _minibatch_segments(batch // segment)
    return BatchPlan(
        num_envs=num_envs,
        horizon=horizon,
        minibatch_size=minibatch,
        bptt_horizon=segment,
        batch_size=batch,
        explanation=(
            f"{envs_because} -> {num_envs} envs x {agents_per_env} agents = {rows} rows; "
            f"horizon {horizon} ({steps_because}) -> batch {batch} = {batch // minibatch} minibatches "
            f"of {minibatch}; {batch * row_bytes / 1e6:.1f} MB of {budget / 1e6:.0f} MB allowed"
        ),
    )


def _minibatch_segments(segments: int) -> int:
    """Whole segments per minibatch, so that recurrent policies can be cut this way too."""
    return nearest_divisors(segments, max(1, segments // _TARGET_MINIBATCHES))[0]


def _check_memory(num_envs: int, steps: int, env_bytes: int, budget: int) -> None:
    needed = num_envs * steps * env_bytes
    if needed > budget:
        raise ConfigError(
            f"num_envs={num_envs} and {steps} steps need {needed:,} bytes, but only {budget:,} "
            f"({_MEMORY_SHARE:.0%} of memory) may be used; shrink the observation, num_envs or the "
            "horizon, or use a machine with more memory"
        )


def _check_counts(**counts: int) -> None:
    for name, value in counts.items():
        if value < 1:
            raise ConfigError(f"{name}={value}; it must be at least 1")


def _power_of_two_at_most(value: int) -> int:
    return 1 << (max(1, value).bit_length() - 1)
