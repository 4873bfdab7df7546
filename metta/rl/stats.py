"""From trackers, buffers and networks to one flat row of metrics; `docs/metrics.md` names every key."""

import dataclasses
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from metta.loggers.monitor import SystemMonitor, cleanup_monitoring, setup_monitoring
from metta.loggers.sinks.console import progress_line
from metta.rl.collect.sharded_collector import Experience
from metta.rl.training_state import StatsTracker
from metta.sim.scores import EvalRewardSummary

__all__ = [
    "Span",
    "SystemMonitor",
    "cleanup_monitoring",
    "compute_grad_stats",
    "compute_weight_stats",
    "experience_stats",
    "hyperparameters_of",
    "log_training_progress",
    "process_stats",
    "setup_monitoring",
]

_logger = logging.getLogger("metta")

_PARAMETERS = frozenset({"learning_rate", "clip_coef", "ent_coef"})
_SHOWN_ELSEWHERE = frozenset({"episode_return", "agent_step", "epoch"})
_EXPERIENCE_COLUMNS = ("rewards", "values", "advantages", "returns")


class Span(NamedTuple):
    """The stretch of training that a row covers."""

    num_epochs: int
    num_steps: int
    seconds: Mapping[str, float]
    """Of each timer in this stretch; ``total`` is wall time."""
    total_seconds: Mapping[str, float]
    """Of each timer since training began in this process."""


def process_stats(
    stats_tracker: StatsTracker,
    losses_stats: Mapping[str, float],
    *,
    agent_step: int,
    epoch: int,
    eval_scores: EvalRewardSummary | None = None,
    span: Span | None = None,
    sections: Mapping[str, Mapping[str, float]] | None = None,
) -> dict[str, float]:
    """One row of metrics.

    Rollout statistics are means over the episodes in the tracker. `sections` are metrics
    that go below a separate name: ``{"monitor": {"rss_mib": 812.0}}`` gives ``monitor/rss_mib``.
    """
    row = {
        "metric/agent_step": float(agent_step),
        "metric/epoch": float(epoch),
        "overview/reward": stats_tracker.mean_return,
        "overview/episodes": float(len(stats_tracker.rollout_stats.get("episode_return", ()))),
    }
    if span is not None:
        row |= _timing(span)
    for name, number in losses_stats.items():
        if name not in _SHOWN_ELSEWHERE:
            row[f"{_section_of(name)}/{name}"] = number
    for name, number in stats_tracker.summary().items():
        row[_env_key(name)] = number
    if eval_scores is not None:
        row |= eval_scores.to_metrics()
    for section, numbers in (sections or {}).items():
        for name, number in numbers.items():
            row[f"{section}/{name}"] = number
    return row


def _timing(span: Span) -> dict[str, float]:
    row = {f"timing_cumulative/{name}": spent for name, spent in span.total_seconds.items()}
    if span.num_epochs > 0:
        for name, spent in span.seconds.items():
            row[f"timing_per_epoch/{name}"] = spent / span.num_epochs
        total = span.seconds.get("total", 0.0)
        row["overview/sps"] = span.num_steps / total if total > 0 else math.nan
    row["metric/total_time"] = span.total_seconds.get("total", math.nan)
    row["metric/train_time"] = span.total_seconds.get("train", math.nan)
    return row


def _section_of(name: str) -> str:
    if name in _PARAMETERS:
        return "parameters"
    return "experience" if name == "explained_variance" else "losses"


def _env_key(name: str) -> str:
    """``episode_return``: ``env_episode/return``; ``env/a/b``: ``env_a/b``; ``env/a``: ``env_info/a``."""
    kind, _, rest = name.partition("/")
    if not rest:
        group, _, key = name.partition("_")
        return f"env_{group}/{key or group}"
    group, _, key = rest.partition("/") if kind == "env" else (kind, "/", rest)
    return f"env_{group}/{key}" if key else f"env_info/{group}"


def experience_stats(experience: Experience | Mapping[str, Tensor] | None) -> dict[str, float]:
    """Mean and deviation over the valid steps of a rollout's columns, and the share of valid steps."""
    data: Mapping[str, Tensor] = {}
    if experience is not None:
        data = experience if isinstance(experience, Mapping) else experience.run_columns
    lag = getattr(experience, "policy_lag", None)
    names = [name for name in _EXPERIENCE_COLUMNS if name in data]
    if not names or data[names[0]].numel() == 0:
        return {}
    # a handful of small arrays: operations of torch would cost more than the sums themselves
    table = np.array([data[name].detach().cpu().numpy().ravel() for name in names])
    share = 1.0
    if "valid" in data:
        valid = data["valid"].cpu().numpy().ravel()
        share = np.count_nonzero(valid) / valid.size
    if share == 0.0:
        return {"valid_share": share}
    kept = table if share == 1.0 else table[:, valid]
    means, deviations = kept.mean(1).tolist(), kept.std(1).tolist()
    row = {f"{name}_mean": mean for name, mean in zip(names, means, strict=True)}
    row |= {f"{name}_std": std for name, std in zip(names, deviations, strict=True)}
    row |= {} if lag is None else {"policy_lag": float(lag)}
    return {**row, "valid_share": share}


def compute_grad_stats(policy: nn.Module) -> dict[str, float]:
    """Norm, mean and deviation of the present gradients, of all and of each layer.

    After an update these are the gradients of its last minibatch: before clipping with `FlatAdam`,
    after it with optimizers of torch.
    """
    return _tensor_stats(policy, lambda parameter: parameter.grad)


def compute_weight_stats(policy: nn.Module) -> dict[str, float]:
    """Norm, mean and deviation of the weights, of all and of each layer."""
    return _tensor_stats(policy, lambda parameter: parameter)


@torch.no_grad()
def _tensor_stats(
    policy: nn.Module, pick: Callable[[nn.Parameter], Tensor | None]
) -> dict[str, float]:
    """Keys ``norm``, ``mean``, ``std`` and ``<layer>/norm`` ...; waits for the device once."""
    named = [(name, pick(parameter)) for name, parameter in policy.named_parameters()]
    found = [(_layer_of(name), tensor) for name, tensor in named if tensor is not None]
    if not found:
        return {}
    tensors = [tensor.float() for _, tensor in found]
    norms = torch.stack(torch._foreach_norm(tensors))
    sums = torch.stack([tensor.sum() for tensor in tensors])
    table = torch.stack([norms, sums]).double().cpu().tolist()
    parts: dict[str, list[tuple[int, float, float]]] = {}
    for (layer, tensor), norm, total in zip(found, *table, strict=True):
        parts.setdefault(layer, []).append((tensor.numel(), norm, total))
    stats = _moments([part for layer in parts.values() for part in layer])
    for layer, members in parts.items():
        stats |= {f"{layer}/{name}": number for name, number in _moments(members).items()}
    return stats


def _layer_of(name: str) -> str:
    """The submodule of the network that a parameter of a `Policy` belongs to."""
    return name.removeprefix("module.").split(".", 1)[0]


def _moments(parts: Iterable[tuple[int, float, float]]) -> dict[str, float]:
    """Of tensors given by size, norm and sum."""
    sizes, norms, sums = zip(*parts, strict=True)
    squares, count = sum(norm**2 for norm in norms), sum(sizes)
    mean = sum(sums) / count
    variance = squares / count - mean**2
    # NaN passes through: max() would turn it into zero
    std = 0.0 if variance < 0 else math.sqrt(variance)
    return {"norm": math.sqrt(squares), "mean": mean, "std": std}


def hyperparameters_of(config: Any) -> dict[str, float]:
    """The numbers of a `TrainerConfig` or `TrainingConfig` that steer learning; none of anything else."""
    trainer = getattr(config, "trainer", config)
    found: dict[str, float] = {}
    for part in ("ppo", "optimizer", "rollout"):
        settings = getattr(trainer, part, None)
        if dataclasses.is_dataclass(settings):
            for field in dataclasses.fields(settings):
                value = getattr(settings, field.name)
                if isinstance(value, int | float):
                    found[f"{part}/{field.name}"] = float(value)
    for name in ("total_timesteps", "seed"):
        if hasattr(trainer, name):
            found[name] = float(getattr(trainer, name))
    return found


def log_training_progress(
    metrics: Mapping[str, float], *, agent_step: int, total_timesteps: int | None = None
) -> str:
    """Log in one line how far training is, to the logger `metta`; returns the line."""
    line = progress_line(metrics, agent_step, total_timesteps)
    _logger.info("%s", line)
    return line
