"""Forged policy files whose digests are right; they must still fit."""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from metta.store.content_digest import CONTENT_KEY, sha256_of_tensors

Knowing = Callable[[Path, Random], Any]


def rewrite(path: Path, change: Callable[[dict[str, Any], dict[str, Tensor]], Any]) -> None:
    """Change manifest and tensors of a file, and write it with a digest that agrees."""
    with safetensors.safe_open(path, framework="pt") as opened:
        manifest = json.loads(opened.metadata()["manifest"])
        tensors = {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118  # not a mapping
    change(manifest, tensors)
    manifest[CONTENT_KEY] = sha256_of_tensors(manifest, tensors)
    safetensors.torch.save_file(tensors, path, metadata={"manifest": json.dumps(manifest)})


def _tensor(change: Callable[[Tensor], Tensor]) -> Knowing:
    def lie(path: Path, random: Random) -> None:
        def apply(_: dict[str, Any], tensors: dict[str, Tensor]) -> None:
            name = random.choice(
                [n for n, t in tensors.items() if t.is_floating_point() and t.ndim]
            )
            tensors[name] = change(tensors[name]).contiguous()

        rewrite(path, apply)

    return lie


def _agent(**settings: Any) -> Knowing:
    return lambda path, _: rewrite(
        path, lambda manifest, _: manifest["metadata"]["agent"].update(settings)
    )


def _manifest(**parts: Any) -> Knowing:
    return lambda path, _: rewrite(path, lambda manifest, _: manifest.update(parts))


def _filled(value: float) -> Knowing:
    return _tensor(lambda tensor: torch.full_like(tensor, value))


nan_weights = _filled(float("nan"))
WEIGHTS: dict[str, Knowing] = {
    "weights of NaN": nan_weights,
    "weights of infinity": _filled(float("inf")),
    "weights of twice the size": _tensor(lambda tensor: torch.cat([tensor, tensor])),
    "weights of no size": _tensor(lambda tensor: tensor[:0]),
    "weights of float64": _tensor(lambda tensor: tensor.double()),
    "weights of whole numbers": _tensor(lambda tensor: tensor.view(torch.int32)),
    "a tensor more": lambda path, _: rewrite(path, lambda _, t: t.update(more=torch.zeros(1))),
    "a tensor less": lambda path, _: rewrite(path, lambda _, t: t.pop(next(iter(t)))),
    "an architecture that is another's": _manifest(policy_architecture="0" * 64),
    "metadata that are a list": _manifest(metadata=[]),
}
"""No way to load a policy takes these."""

AGENTS: dict[str, Knowing] = {
    "an agent of 2^62": _agent(hidden_size=2**62),
    "an agent of 100,000": _agent(hidden_size=100_000),
    "an agent of 10^9 layers": _agent(num_layers=10**9),
    "an agent by a path": _agent(name="os.system"),
    "an agent with a secret": _agent(_target_="os.system", _args_=["true"]),
    "an agent of texts": _agent(hidden_size="__import__('os')"),
    "an agent that is a list": lambda path, _: rewrite(
        path, lambda m, _: m["metadata"].update(agent=["os.system"])
    ),
    "an agent that is a text": lambda path, _: rewrite(
        path, lambda m, _: m["metadata"].update(agent="metta.agent:boom")
    ),
}
"""These matter to those who rebuild a policy from its file; weights may go into a policy that is given."""
