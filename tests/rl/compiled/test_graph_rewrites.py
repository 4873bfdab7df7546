"""Operations that are compiled in another form than they are written in."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from metta.errors import DriverError
from metta.rl.compiled.rewrites import fast_tanh
from metta.rl.compiled.trace import TracedGraph, trace

ATEN = torch.ops.aten


def recorded(function: Callable[..., Tensor], *examples: Tensor) -> TracedGraph:
    """The graph, which was held to the function on other numbers."""
    graph = trace(lambda *tensors: (function(*tensors),), examples)
    others = [torch.rand_like(example) + 0.5 for example in examples]
    torch.testing.assert_close(
        graph.module(*others, *graph.held)[0], function(*others), rtol=1e-5, atol=1e-6
    )
    return graph


def operations(graph: TracedGraph) -> list[object]:
    return [node.target for node in graph.module.graph.nodes if node.op == "call_function"]


def product_shapes(graph: TracedGraph, *inputs: Tensor) -> list[tuple[int, ...]]:
    """Of the results of matrix products, as they are computed."""
    found = []

    class Watch(torch.fx.Interpreter):
        def call_function(self, target: object, args: object, kwargs: object) -> object:
            result = super().call_function(target, args, kwargs)
            if target is ATEN.mm.default:
                found.append(tuple(result.shape))
            return result

    Watch(graph.module).run(*inputs)
    return found


def test_the_fast_tanh_is_right_to_a_few_units_in_the_last_place() -> None:
    numbers = torch.cat([torch.linspace(-12, 12, 200_001), torch.logspace(-30, 1, 10_001)])
    wanted = numbers.double().tanh()
    gap = (fast_tanh(numbers).double() - wanted).abs()
    assert float((gap / wanted.abs().clamp(min=1e-30)).max()) < 5e-7
    assert float(fast_tanh(numbers).abs().max()) <= 1.0
    assert fast_tanh(torch.tensor([float("nan")])).isnan().all()
    assert fast_tanh(torch.tensor([float("inf"), -float("inf")])).tolist() == pytest.approx([1, -1])


@pytest.mark.parametrize("narrow", [2, 4, 15])
def test_the_gradient_of_a_layer_with_few_inputs_is_computed_turned_over(narrow: int) -> None:
    # torch's libraries take up to nine times as long for a result of few columns
    signals, inputs = torch.rand(256, 64), torch.rand(256, narrow)
    graph = recorded(lambda x, y: x.t().mm(y), signals, inputs)
    assert product_shapes(graph, signals, inputs) == [(narrow, 64)]
    assert graph.module(signals, inputs)[0].is_contiguous()
    recorded(lambda x, y: x.t().mm(y).view(-1), signals, inputs)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        pytest.param(torch.rand(256, 64), torch.rand(64, 4), id="not transposed"),
        pytest.param(torch.rand(256, 64).t(), torch.rand(256, 16), id="wide enough"),
        pytest.param(torch.rand(256, 64).t(), torch.rand(256, 1), id="a vector"),
        pytest.param(torch.rand(256, 8).t(), torch.rand(256, 4), id="few rows too"),
    ],
)
def test_products_stay_when_they_are_fast_as_they_are(left: Tensor, right: Tensor) -> None:
    base = left.t() if left.stride(0) == 1 else left
    function = (lambda x, y: x.t().mm(y)) if base is not left else (lambda x, y: x.mm(y))
    graph = recorded(function, base.contiguous(), right)
    assert product_shapes(graph, base, right) == [(left.shape[0], right.shape[1])]


def test_an_outer_product_is_taken_by_element() -> None:
    graph = recorded(torch.mm, torch.rand(256, 1), torch.rand(1, 64))
    assert ATEN.mul.Tensor in operations(graph)
    assert ATEN.mm.default not in operations(graph)


def test_the_power_of_a_number_is_put_into_memory_when_it_stands_alone() -> None:
    # the compiler would otherwise compute it again for each parameter that Adam moves
    graph = recorded(lambda steps: 0.999**steps, torch.tensor(7.0, dtype=torch.float64))
    assert ATEN.as_strided.default in operations(graph)
    for steps in (1.0, 1e3, 1e5, 1e7):
        count = torch.tensor(steps, dtype=torch.float64)
        (found,) = graph.module(count)
        assert float(1.0 - found) == pytest.approx(1.0 - 0.999**steps, rel=1e-12)


@pytest.mark.parametrize(
    ("base", "exponent"),
    [
        (0.9, torch.rand(3).double()),
        (0.9, torch.tensor(2.0)),
        (-2.0, torch.tensor(2.0).double()),
        (0.0, torch.tensor(2.0).double()),
        (1.0, torch.tensor(float("inf")).double()),
    ],
)
def test_other_powers_stay_as_they_are(base: float, exponent: Tensor) -> None:
    graph = trace(lambda x: (base**x,), [exponent])
    assert operations(graph) == [ATEN.pow.Scalar]
    assert torch.equal(graph.module(exponent)[0], base**exponent)


def test_a_product_that_torch_refuses_is_refused() -> None:
    with pytest.raises(DriverError, match="cannot be recorded"):
        trace(lambda x, y: (x.mm(y),), [torch.rand(3, 1), torch.rand(3, 4)])


def test_types_and_devices_without_a_rule_stay_as_they_are() -> None:
    for example in (torch.rand(3).bfloat16(), torch.rand(3, device="meta")):
        assert operations(trace(lambda x: (x.tanh(),), [example])) == [ATEN.tanh.default]
    assert operations(trace(lambda x: (x.tanh(),), [torch.rand(3).double()])) == [ATEN.tanh.default]
