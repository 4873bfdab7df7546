"""Policies for other programs: ONNX and `torch.export` files, each compared with its policy first.

Metta never reads exported files of others: it only loads the bytes that this process has just written.
"""

import importlib
import importlib.util
import io
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.export import ExportedProgram

from metta.agent.policy import Policy
from metta.errors import ConfigError, MissingExtraError, NonFiniteError, PolicyError, did_you_mean
from metta.files import atomic_write
from metta.store.checkpoints.finite_state import non_finite
from metta.store.exports.check import check_exported, example_inputs
from metta.store.exports.graph import PolicyGraph

__all__ = ["FORMATS", "Export", "export_policy"]

FORMATS = ("onnx", "torch")
"""Formats of exported policies: ``onnx`` for ONNX runtimes, ``torch`` for `torch.export.load` (.pt2)."""
_ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_EXAMPLE_ROWS = 3

Runner = Callable[[Mapping[str, Tensor]], dict[str, np.ndarray]]


@dataclass(frozen=True)
class Export:
    """An exported policy: its path, its inputs and outputs, and how well it agrees."""

    path: Path
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    largest_difference: float
    """From the policy, over all compared outputs, relative to the largest number of each row."""


def export_policy(
    policy: Policy,
    path: str | os.PathLike[str],
    *,
    format: str,
    action_mask: bool | None = None,
) -> Export:
    """Write the deterministic part of a policy as a file of another format, and check that it agrees.

        export_policy(metta.load_policy("first:best").policy, "policy.onnx", format="onnx")

    Inputs and outputs are those of `PolicyGraph`, for any number of rows. `action_mask` is whether masks
    are an input; None: if the observation space has one. The file is read again and compared on random
    observations; if it disagrees nothing is written, and `PolicyError` says by how much.
    """
    if format not in FORMATS:
        raise ConfigError(
            f"format={format!r} is not one of {FORMATS}{did_you_mean(format, FORMATS)}"
        )
    if format == "onnx":
        _require_onnx()
    broken = non_finite(policy.state_dict())
    if broken:
        raise NonFiniteError(f"the policy is not exported: {broken} hold NaN or infinity")
    graph = PolicyGraph(policy, with_mask=_takes_masks(policy, action_mask))
    data = _made(graph, policy, format)
    differences = []

    def write(target: Path) -> None:
        target.write_bytes(data)
        if target.read_bytes() != data:
            raise PolicyError(f"{str(path)!r} does not hold what was written; check the disk")
        run = _onnx_runner(data) if format == "onnx" else _torch_runner(data)
        differences.append(check_exported(run, policy, with_mask=graph.with_mask))

    written = atomic_write(path, write)
    names = tuple(graph.input_names), tuple(graph.output_names)
    return Export(written, *names, largest_difference=differences[0])


def _takes_masks(policy: Policy, wanted: bool | None) -> bool:
    if wanted and not policy.action_spec.mask_size:
        raise ConfigError(f"action_mask=True, but actions of {policy.action_space} have no masks")
    return policy.obs_spec.mask_path is not None if wanted is None else wanted


def _require_onnx() -> None:
    for package in _ONNX_PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, "onnx", "exporting to ONNX")


def _made(graph: PolicyGraph, policy: Policy, format: str) -> bytes:
    inputs = example_inputs(graph.policy, _EXAMPLE_ROWS, with_mask=graph.with_mask)
    rows = torch.export.Dim("batch")
    about = json.dumps(
        {
            "policy_architecture": policy.architecture_hash(),
            "policy_hash": policy.parameter_hash(),
            "observation_space": policy.obs_spec.describe(),
            "action_space": str(policy.action_space),
        }
    )
    try:
        with _quiet(), torch.no_grad():
            shapes = ({name: {0: rows} for name in inputs},)
            program = torch.export.export(graph, (inputs,), dynamic_shapes=shapes)
            for node in program.graph.nodes:  # they hold lines and paths of the source
                node.meta.pop("stack_trace", None)
            if format == "onnx":
                return _onnx_bytes(program, graph, about)
            buffer = io.BytesIO()
            torch.export.save(program, buffer, extra_files={"metta.json": about})
            return buffer.getvalue()
    except Exception as error:
        raise PolicyError(
            f"this policy cannot be exported as {format}: {type(error).__name__}: {error}; a network must "
            "take any number of rows, and decide nothing by the values of its tensors"
        ) from error


def _onnx_bytes(program: ExportedProgram, graph: PolicyGraph, about: str) -> bytes:
    made = torch.onnx.export(
        program,
        (),
        dynamo=True,
        verbose=False,
        input_names=graph.input_names,
        output_names=graph.output_names,
    )
    assert made is not None
    proto = made.model_proto
    for node in proto.graph.node:
        del node.metadata_props[:]
    del proto.graph.value_info[:]  # shapes inside the graph, under the exporter's names
    for value in [*proto.graph.input, *proto.graph.output]:
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    entry = proto.metadata_props.add()
    entry.key, entry.value = "metta", about
    content: bytes = proto.SerializeToString()
    return content


def _torch_runner(data: bytes) -> Runner:
    with _quiet():
        module = torch.export.load(io.BytesIO(data)).module()

    def run(inputs: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
        with torch.no_grad():
            return {name: value.numpy() for name, value in module(dict(inputs)).items()}

    return run


def _onnx_runner(data: bytes) -> Runner:
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    taken = {one.name for one in session.get_inputs()}
    given = [one.name for one in session.get_outputs()]

    def run(inputs: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
        arrays = {name: value.numpy() for name, value in inputs.items() if name in taken}
        return dict(zip(given, session.run(given, arrays), strict=True))

    return run


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide what torch's exporters print for their own developers."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
