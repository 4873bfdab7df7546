import os

import numpy as np
import pytest
import torch

from metta.ops.advantages import _reference_gae, _reference_vtrace, gae, native_available, vtrace

NAMES = ["rewards", "values", "next_values", "terminated", "episode_ended"]
# float32 rounds these discounts' product differently before and after it is taken
DISCOUNTS = {"gamma": 0.98, "gae_lambda": 0.9}
VTRACE = DISCOUNTS | {"rho_clip": 1.1, "c_clip": 0.9}

needs_native = pytest.mark.skipif(
    not native_available(), reason="metta.ops._native was not built (no C compiler at install?)"
)


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dtype == right.dtype and left.numpy().tobytes() == right.numpy().tobytes()


@pytest.mark.skipif(
    os.environ.get("METTA_REQUIRE_NATIVE") != "1" and not native_available(),
    reason="metta.ops._native was not built and METTA_REQUIRE_NATIVE is not 1",
)
def test_the_extension_is_built_when_it_is_required():
    assert native_available()


@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(7, 5), (33, 17), (1, 8), (12, 1), (16, 64)])
def test_kernels_agree_to_the_bit_when_inputs_are_the_same(make_rollout, shape, dtype):
    rollout = make_rollout(*shape, dtype=dtype, seed=sum(shape))
    ratios = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype).exp()
    assert same_bits(gae(*rollout, **DISCOUNTS), _reference_gae(*rollout, **DISCOUNTS))
    log_ratios = ratios.log()
    ours = vtrace(*rollout, log_ratios, **VTRACE)
    theirs = _reference_vtrace(*rollout, log_ratios.exp(), **VTRACE)
    assert same_bits(ours.advantages, theirs.advantages)
    assert same_bits(ours.targets, theirs.targets)


@needs_native
def test_the_kernel_runs_when_tensors_are_on_the_cpu(make_rollout, monkeypatch):
    from metta.ops import advantages as module

    calls = []
    monkeypatch.setattr(module, "_reference_gae", lambda *_, **__: calls.append("gae"))
    monkeypatch.setattr(module, "_reference_vtrace", lambda *_, **__: calls.append("vtrace"))
    rollout = make_rollout(7, 5, dtype=torch.float32)
    gae(*rollout, gamma=0.9, gae_lambda=0.9)
    vtrace(*rollout, torch.zeros(7, 5), **VTRACE)
    assert calls == []


def arguments(dtype=np.float32, shape=(3, 4)):
    """Good arguments of both kernels, by name; `out` stands for both outputs of V-trace too."""
    arrays = {name: np.ones(shape, dtype) for name in [*NAMES[:3], "ratios", "out", "targets_out"]}
    return arrays | {name: np.zeros(shape, np.bool_) for name in NAMES[3:]}


def call_gae(arrays):
    from metta.ops import _native

    _native.gae(*(arrays[name] for name in NAMES), 0.9, 0.8, arrays["out"])


def call_vtrace(arrays):
    from metta.ops import _native

    inputs = [arrays[name] for name in [*NAMES, "ratios"]]
    _native.vtrace(*inputs, 0.9, 0.8, 1.0, 1.0, arrays["out"], arrays["targets_out"])


def read_only(array):
    array.flags.writeable = False
    return array


FLOATS, BOOLS = np.ones((3, 4), np.float32), np.zeros((3, 4), np.bool_)
BAD_ARRAYS = {
    "list": ("rewards", [[1.0] * 4] * 3, TypeError, "rewards must support the buffer protocol"),
    "none": ("out", None, TypeError, "buffer protocol, got NoneType"),
    "bytes": ("values", bytes(48), TypeError, "values must hold float32 or float64.*'B'"),
    "integers": ("rewards", FLOATS.astype(np.int32), TypeError, "rewards must hold .*'i'"),
    "half": ("rewards", FLOATS.astype(np.float16), TypeError, "rewards must hold .*'e'"),
    "complex": ("values", FLOATS.astype(np.complex64), TypeError, "values must hold .*'Zf'"),
    "big endian": ("values", FLOATS.astype(">f4"), TypeError, "values must hold .*'>f'"),
    "other float": ("next_values", FLOATS.astype(np.float64), TypeError, "one dtype.*'d'"),
    "other output": ("out", FLOATS.astype(np.float64), TypeError, "one dtype.*'d'"),
    "boolean rewards": ("rewards", BOOLS, TypeError, r"rewards must hold .*'\?'"),
    "byte mask": ("terminated", BOOLS.astype(np.uint8), TypeError, "terminated must hold booleans"),
    "float mask": ("episode_ended", FLOATS, TypeError, "episode_ended must hold booleans"),
    "flat": ("rewards", FLOATS.reshape(-1), ValueError, "two dimensions .*, got 1"),
    "three axes": ("rewards", FLOATS[None], ValueError, "two dimensions .*, got 3"),
    "scalar": ("values", np.float32(1.0), ValueError, "two dimensions .*, got 0"),
    "short mask": ("terminated", BOOLS[:2], ValueError, r"\[2, 4\] but rewards has shape \[3, 4\]"),
    "swapped": ("values", FLOATS.reshape(4, 3), ValueError, r"values has shape \[4, 3\]"),
    "wide output": ("out", np.ones((3, 5), np.float32), ValueError, r"has shape \[3, 5\]"),
    "column order": ("values", np.asfortranarray(FLOATS), ValueError, "values must be C-contig"),
    "strided": ("out", np.ones((3, 8), np.float32)[:, ::2], ValueError, "must be C-contiguous"),
    "reversed": ("rewards", FLOATS[::-1], ValueError, "rewards must be C-contiguous"),
    "broadcast": ("values", np.broadcast_to(FLOATS[:1], (3, 4)), ValueError, "C-contiguous"),
    "read-only": ("out", read_only(FLOATS.copy()), ValueError, "out must be writable"),
}


@needs_native
@pytest.mark.parametrize("call", [call_gae, call_vtrace])
@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_kernels_refuse_with_the_argument_named_when_a_buffer_is_bad(call, case):
    name, bad, error, message = BAD_ARRAYS[case]
    if call is call_vtrace:
        message = message.replace("out must", "advantages_out must")
    with pytest.raises(error, match=message):
        call(arguments() | {name: bad})


@needs_native
@pytest.mark.parametrize("call", [call_gae, call_vtrace])
@pytest.mark.parametrize("name", ["rewards", "values", "next_values"])
def test_kernels_refuse_when_an_output_shares_memory_with_an_input(call, name):
    memory = np.ones((4, 4), np.float32)
    with pytest.raises(ValueError, match=f"out must not share memory with {name}"):
        call(arguments() | {name: memory[:3], "out": memory[1:]})


@needs_native
def test_vtrace_refuses_when_its_outputs_are_one_array():
    arrays = arguments()
    with pytest.raises(ValueError, match="advantages_out must not share memory with targets_out"):
        call_vtrace(arrays | {"targets_out": arrays["out"]})


@needs_native
def test_kernels_refuse_when_arguments_are_missing_or_not_numbers():
    from metta.ops import _native

    arrays = arguments()
    inputs = [arrays[name] for name in NAMES]
    with pytest.raises(TypeError, match="takes exactly 8 arguments"):
        _native.gae(*inputs)
    with pytest.raises(TypeError, match="takes exactly 12 arguments"):
        _native.vtrace(*inputs)
    with pytest.raises(TypeError, match="real number"):
        _native.gae(*inputs, "0.9", 0.8, arrays["out"])


@needs_native
@pytest.mark.parametrize("call", [call_gae, call_vtrace])
def test_every_buffer_is_released_when_the_call_ends(call):
    arrays = {name: memoryview(array) for name, array in arguments().items()}
    call(arrays)
    with pytest.raises(TypeError, match="must hold booleans"):
        call(arrays | {"episode_ended": memoryview(FLOATS)})
    with pytest.raises(ValueError, match="must be writable"):
        call(arrays | {"out": arrays["out"].toreadonly()})
    for view in arrays.values():
        view.release()  # raises BufferError while a kernel still holds it
