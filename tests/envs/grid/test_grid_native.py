"""The C kernels check everything they are given before they touch it."""

from typing import Any

import numpy as np
import pytest

from metta.envs.grid import GridWorldConfig, GridWorlds
from metta.envs.grid.layout import WorldArrays

from .text_worlds import needs_native

pytestmark = needs_native

CONFIG = GridWorldConfig(width=9, height=8, num_agents=2, view_radius=2, num_resources=3)
NAMES = list(WorldArrays.__dataclass_fields__)
OUTPUTS = [
    "actions",
    "obs",
    "final_obs",
    "rewards",
    "terminated",
    "truncated",
    "starts",
    "ended_counts",
]


def kernels() -> Any:
    from metta.envs.grid import _native

    return _native


def good_arrays() -> dict[str, np.ndarray]:
    """All arguments of a step of three worlds, by name."""
    worlds = GridWorlds([CONFIG], 3, native=True)
    obs = np.zeros((6, CONFIG.observation_size), np.uint8)
    worlds.reset(range(3), obs)
    outputs = [
        np.zeros(6, np.int64), obs, obs.copy(), np.zeros(6, np.float32), *np.zeros((3, 6), np.bool_),
        np.zeros((6, 4), np.int32),
    ]  # fmt: skip
    return dict(zip([*NAMES, *OUTPUTS], [*worlds.arrays.in_order(), *outputs], strict=True))


def step(arrays: dict[str, Any], *, radius: int = 2, first: int = 0) -> int:
    world_arrays = tuple(arrays[name] for name in NAMES)
    ends: int = kernels().step(world_arrays, radius, first, *(arrays[name] for name in OUTPUTS))
    return ends


def test_nothing_is_refused_when_everything_fits() -> None:
    assert step(good_arrays()) == 0


WRONG = {
    "float64": lambda array: array.astype(np.float64),
    "int16": lambda array: array.astype(np.int16),
    "strided": lambda array: np.repeat(array, 2, axis=-1)[..., ::2],
    "dimension": lambda array: array[None],
    "longer": lambda array: np.concatenate([array, array], axis=-1),
    "shorter": lambda array: array[..., :-1].copy(),
    "list": lambda array: array.tolist(),
    "none": lambda array: None,
}


@pytest.mark.parametrize("name", [*NAMES, *OUTPUTS])
def test_an_array_is_refused_when_it_is_not_what_the_kernel_reads(name: str) -> None:
    arrays = good_arrays()
    before = arrays["cells"].copy()
    taken = []
    for wrong, change in WRONG.items():
        # sizes that follow from one array alone are seen where the others do not fit
        try:
            step({**arrays, name: change(arrays[name])})
        except (TypeError, ValueError, BufferError):
            continue
        taken.append(wrong)
    assert taken == []
    assert (arrays["cells"] == before).all()


@pytest.mark.parametrize("name", [*NAMES[2:], *OUTPUTS[1:]])
def test_an_array_is_refused_when_it_cannot_be_written(name: str) -> None:
    arrays = good_arrays()
    arrays[name].flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        step(arrays)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("positions", -1), ("positions", 0), ("positions", 2**31 - 1), ("tasks", -1), ("tasks", 1),
        ("next_tasks", -1), ("next_tasks", 1), ("steps", -1), ("steps", 2**31 - 1), ("actions", -1),
        ("actions", 5), ("actions", 2**62), *[("settings", number) for number in (-1, 2**40)],
    ],
)  # fmt: skip
def test_a_number_is_refused_when_it_points_outside(name: str, value: int) -> None:
    arrays = good_arrays()
    arrays[name].flags.writeable = True
    before = arrays["cells"].copy()
    arrays[name].reshape(-1)[-1] = value
    if name == "settings":
        arrays[name][0, :] = value
    with pytest.raises(ValueError, match=f"{name}|no action|settings"):
        step(arrays)
    assert (arrays["cells"] == before).all()


@pytest.mark.parametrize("column", range(12))
def test_a_setting_is_refused_when_no_world_can_have_it(column: int) -> None:
    for value in (-1, 2**33, 2**62):
        arrays = good_arrays()
        arrays["settings"][0, column] = value
        with pytest.raises(ValueError, match="settings"):
            step(arrays)


@pytest.mark.parametrize(("first", "rows"), [(-1, 6), (1, 6), (3, 2), (0, 5), (2**62, 2)])
def test_worlds_are_refused_when_they_do_not_exist(first: int, rows: int) -> None:
    arrays = good_arrays()
    for name in OUTPUTS:
        arrays[name] = arrays[name][:rows]
    with pytest.raises(ValueError, match="whole worlds that exist"):
        step(arrays, first=first)


@pytest.mark.parametrize("radius", [-1, 0, 1, 3, 6])
def test_a_radius_is_refused_when_it_does_not_fit_the_observations(radius: int) -> None:
    with pytest.raises(ValueError, match=r"obs|view_radius|settings"):
        step(good_arrays(), radius=radius)


def test_other_arguments_are_refused_when_their_type_is_wrong() -> None:
    arrays = tuple(good_arrays()[name] for name in NAMES)
    with pytest.raises(TypeError, match="tuple of 15 arrays"):
        kernels().refresh(list(arrays), 2)
    with pytest.raises(TypeError, match="tuple of 15 arrays"):
        kernels().refresh(arrays[:-1], 2)
    with pytest.raises(ValueError, match="obs"):
        kernels().reset(arrays, 2, np.zeros((5, 29), np.uint8))
    arrays[NAMES.index("tasks")][0] = 7
    with pytest.raises(ValueError, match="tasks"):
        kernels().refresh(arrays, 2)
    arrays[NAMES.index("next_tasks")][0] = 7
    with pytest.raises(ValueError, match="next_tasks"):
        kernels().reset(arrays, 2, np.zeros((6, 29), np.uint8))


def test_memory_stays_in_bounds_when_a_world_has_no_walls() -> None:
    arrays = good_arrays()
    arrays["cells"][:] = 0
    generator = np.random.default_rng(0)
    refused = 0
    for _ in range(2000):
        arrays["actions"][:] = generator.integers(0, 5, 6)
        try:
            step(arrays)
        except ValueError:
            refused += 1
    margin = 2 * arrays["cells"].shape[2] + 2
    positions = arrays["positions"]
    assert positions.min() >= margin
    assert positions.max() < arrays["cells"][0].size - margin
    assert refused == 0
