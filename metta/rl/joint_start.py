"""Ranks begin a run together: with the same settings, the same checkpoint and the same weights."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from metta.errors import RankError
from metta.rl.ranks import Ranks
from metta.rl.resume.conditions import RunConditions
from metta.rl.session import RunSession
from metta.rl.training_components import TrainingComponents
from metta.stateful import digest_of
from metta.store.checkpoints.files import read_checkpoint

__all__ = ["begin_together", "shared_values"]


def shared_values(ranks: Ranks, values: Mapping[str, Any]) -> dict[str, Any]:
    """The plain values that the first rank gives, on every rank."""
    found: dict[str, Any] = json.loads(ranks.share(json.dumps(dict(values)).encode())[0])
    return found


def begin_together(parts: TrainingComponents, session: RunSession | None) -> None:
    """The other ranks restore the checkpoint of the first one; `RankError` where ranks differ then."""
    ranks = parts.ranks
    if ranks.size == 1:
        return
    restored = None if session is None else session.restored_path
    shared = shared_values(
        ranks, {"path": restored and str(restored), "plan": dataclasses.asdict(parts.plan)}
    )
    if not ranks.is_master:
        parts.conditions.follow_plan(shared["plan"])
        if parts.config.checkpoint.checkpoint_interval:
            parts.environments.prepare()
        if shared["path"] is not None:
            _restore(parts, shared["path"])
    _require_equal(parts)


def _restore(parts: TrainingComponents, path: str) -> None:
    """Everything but the conditions, which the first rank has compared."""
    snapshot, own = dict(read_checkpoint(path).snapshot), parts.conditions
    snapshot[RunConditions.state_name] = {"version": own.state_version, "state": own.state_dict()}
    parts.registry.restore(snapshot)


def _require_equal(parts: TrainingComponents) -> None:
    """What every rank has must be the same on all of them."""
    ranks = parts.ranks
    replicated = {
        "weights": parts.policy.parameter_hash(),
        "optimizer": digest_of(parts.optimizer.state_dict()),
        "counters": digest_of(parts.state.state_dict()),
        "plan": digest_of(dataclasses.asdict(parts.plan)),
    }
    found = [json.loads(text) for text in ranks.share(json.dumps(replicated).encode())]
    for rank, other in enumerate(found):
        differing = [name for name, digest in other.items() if digest != found[0][name]]
        if differing:
            raise RankError(
                f"rank {rank} begins with other {', '.join(differing)} than rank 0; start every rank with "
                "the same command, the same version of metta and the same kind of machine"
            )
