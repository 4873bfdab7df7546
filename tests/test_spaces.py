from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from metta.envs.toy import MaskedCorridorEnv, NestedEnv
from metta.errors import SpaceError
from metta.spaces import ObsSpec, obs_spec_of, without_texts

NESTED = NestedEnv().observation_space


def test_leaves_are_named_by_their_path_when_spaces_are_nested() -> None:
    found = [
        (leaf.key, leaf.path, leaf.shape, str(leaf.dtype)) for leaf in obs_spec_of(NESTED).leaves
    ]
    # gymnasium sorts the keys of a Dict
    assert found == [
        ("camera", ("camera",), (3, 8, 8), "uint8"),
        ("lamps", ("lamps",), (4,), "int8"),
        ("state/0", ("state", 0), (), "int64"),
        ("state/1/gear", ("state", 1, "gear"), (2,), "int64"),
        ("state/1/speed", ("state", 1, "speed"), (2,), "float32"),
    ]


@pytest.mark.parametrize(
    ("space", "kind", "dtype", "shape"),
    [
        (spaces.Box(0, 1, (2,), np.float64), "box", np.float32, (2,)),
        (spaces.Box(0, 1, (2,), np.float16), "box", np.float32, (2,)),
        (spaces.Box(0, 255, (3, 4, 5), np.uint8), "box", np.uint8, (3, 4, 5)),
        (spaces.Box(0, 9, (2,), np.int32), "box", np.int32, (2,)),
        (spaces.Discrete(4), "discrete", np.int64, ()),
        (spaces.MultiDiscrete([2, 3]), "discrete", np.int64, (2,)),
        (spaces.MultiBinary([2, 2]), "binary", np.int8, (2, 2)),
    ],
)
def test_a_plain_space_is_one_leaf_when_flattened(
    space: Any, kind: str, dtype: Any, shape: tuple[int, ...]
) -> None:
    spec = obs_spec_of(space)
    (leaf,) = spec.leaves
    assert spec.is_plain
    assert (leaf.key, leaf.path, leaf.kind, leaf.dtype, leaf.shape) == (
        "obs",
        (),
        kind,
        dtype,
        shape,
    )
    assert spec.nbytes == int(np.prod(shape)) * np.dtype(dtype).itemsize


def test_categories_and_starts_are_kept_when_spaces_are_discrete() -> None:
    (leaf,) = obs_spec_of(spaces.Discrete(4, start=-1)).leaves
    assert (leaf.categories, leaf.starts) == ((4,), (-1,))
    (leaf,) = obs_spec_of(spaces.MultiDiscrete([2, 3], start=[5, 6])).leaves
    assert (leaf.categories, leaf.starts) == ((2, 3), (5, 6))


def test_images_and_grids_are_told_apart_when_boxes_have_three_dimensions() -> None:
    (image,) = obs_spec_of(spaces.Box(0, 255, (3, 4, 5), np.uint8)).leaves
    (grid,) = obs_spec_of(spaces.Box(0, 1, (3, 4, 5), np.float32)).leaves
    assert (image.is_image, image.is_grid) == (True, True)
    assert (grid.is_image, grid.is_grid) == (False, True)


def test_the_mask_is_set_apart_when_a_dict_has_one() -> None:
    spec = obs_spec_of(MaskedCorridorEnv(mask_in="observation").observation_space)
    assert [leaf.key for leaf in spec.leaves] == ["position"]
    assert spec.mask_path == ("action_mask",)
    assert spec.mask_of({"position": 1, "action_mask": 2}) == 2
    assert not spec.is_plain


def test_the_mask_is_found_when_it_is_deep_inside() -> None:
    box = spaces.Box(0, 1, (2,))
    spec = obs_spec_of(spaces.Tuple((box, spaces.Dict({"x": box, "action_mask": box}))))
    assert spec.mask_path == (1, "action_mask")
    assert spec.mask_of((0, {"x": 1, "action_mask": 2})) == 2


def test_nesting_comes_back_when_leaves_are_nested_again() -> None:
    spec = obs_spec_of(NESTED)
    observation = NESTED.sample()
    out = spec.zeros(3)
    spec.write(observation, out, 1)
    nested = spec.nest({key: array[1] for key, array in out.items()})
    assert isinstance(nested["state"], tuple)
    assert nested["state"][0] == observation["state"][0]
    np.testing.assert_array_equal(nested["camera"], observation["camera"])
    np.testing.assert_array_equal(nested["state"][1]["gear"], observation["state"][1]["gear"])
    assert not any(array[[0, 2]].any() for array in out.values())


def test_a_plain_leaf_comes_back_bare_when_nested() -> None:
    assert obs_spec_of(spaces.Discrete(3)).nest({"obs": 2}) == 2


def test_a_batch_is_written_when_the_row_is_a_slice() -> None:
    spec = obs_spec_of(spaces.Dict({"a": spaces.Box(0, 9, (2,)), "b": spaces.Discrete(3)}))
    out = spec.zeros(4)
    batch = {"a": np.ones((2, 2), np.float32), "b": np.array([1, 2])}
    spec.write(batch, out, slice(1, 3))
    assert out["b"].tolist() == [0, 1, 2, 0]
    assert out["a"].sum() == 4
    with pytest.raises(SpaceError, match=r"shape \(2, 2\) but its space promises \(4, 2\)"):
        spec.write(batch, out, slice(0, 4))


@pytest.mark.parametrize(
    ("space", "value", "complaint"),
    [
        (spaces.Box(0, 255, (2,), np.uint8), np.array([0.5, 1.0]), "float64, which does not fit"),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([0, 256]), "int64, which does not fit"),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([0.0, np.nan]), "does not fit"),
        (spaces.Discrete(3), 1.5, "does not fit"),
        (spaces.Discrete(3), np.array([1]), r"shape \(1,\)"),
        (spaces.Box(0, 1, (2,)), np.zeros(3), r"shape \(3,\)"),
        (spaces.Box(0, 1, (1,)), np.array(["x"]), "does not fit"),
    ],
)
def test_values_are_refused_when_storing_would_change_them(
    space: Any, value: Any, complaint: str
) -> None:
    spec = obs_spec_of(space)
    with pytest.raises(SpaceError, match=complaint):
        spec.write(value, spec.zeros(1), 0)


@pytest.mark.parametrize(
    ("space", "value", "stored"),
    [
        (spaces.Box(0, 255, (2,), np.uint8), np.array([7, 255]), [7, 255]),
        (spaces.Box(0, 255, (2,), np.uint8), [7.0, 255.0], [7, 255]),
        (spaces.Discrete(3), np.int32(2), 2),
        (spaces.Discrete(3), 2, 2),
        (spaces.MultiBinary(2), np.array([True, False]), [1, 0]),
        (spaces.Box(0, 9, (2,)), [1, 2], [1.0, 2.0]),
    ],
)
def test_values_are_converted_when_nothing_is_lost(space: Any, value: Any, stored: Any) -> None:
    spec = obs_spec_of(space)
    out = spec.zeros(1)
    spec.write(value, out, 0)
    assert out["obs"][0].tolist() == stored


def test_the_entry_is_named_when_an_observation_lacks_it() -> None:
    spec = obs_spec_of(spaces.Dict({"a": spaces.Tuple([spaces.Discrete(2), spaces.Discrete(2)])}))
    with pytest.raises(SpaceError, match="no entry 'a/1'"):
        spec.write({"a": (1,)}, spec.zeros(1), 0)
    with pytest.raises(SpaceError, match="found a int"):
        spec.write(3, spec.zeros(1), 0)


class PaddedBox(spaces.Box):
    pass


def test_a_subclass_is_read_like_its_parent_when_users_extend_a_space() -> None:
    assert obs_spec_of(PaddedBox(0, 1, (2,))).leaves[0].shape == (2,)


@pytest.mark.parametrize(
    ("space", "complaint"),
    [
        (spaces.Text(3), "Text space, which metta does not read"),
        (spaces.Dict({"a": spaces.Sequence(spaces.Discrete(2))}), "'a' is a Sequence space"),
        (spaces.Dict({}), "nothing a policy could see"),
        (spaces.Dict({"action_mask": spaces.Box(0, 1, (2,))}), "nothing a policy could see"),
        (
            spaces.Dict({"a/b": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Discrete(2)})}),
            "two entries of one name",
        ),
        (
            spaces.Tuple(
                [spaces.Dict({"x": spaces.Discrete(2), "action_mask": spaces.Box(0, 1)})] * 2
            ),
            "two entries of one name",
        ),
        (spaces.Dict({1: spaces.Discrete(2)}), "not a string"),  # type: ignore[dict-item]
    ],
)
def test_a_space_is_refused_when_it_cannot_be_flattened(space: Any, complaint: str) -> None:
    with pytest.raises(SpaceError, match=complaint):
        obs_spec_of(space)


def test_leaves_are_plain_data_when_described() -> None:
    spec: ObsSpec = obs_spec_of(spaces.Discrete(3))
    assert spec.describe() == [
        {"key": "obs", "shape": [], "dtype": "int64", "kind": "discrete", "categories": [3]}
    ]


def test_drawn_numbers_are_in_the_space_when_leaves_draw_them() -> None:
    generator = np.random.default_rng(0)
    spec = obs_spec_of(NESTED)
    drawn = {leaf.key: leaf.draw(generator, 50) for leaf in spec.leaves}
    for leaf in spec.leaves:
        assert (drawn[leaf.key].shape, drawn[leaf.key].dtype) == ((50, *leaf.shape), leaf.dtype)
        assert len(np.unique(drawn[leaf.key])) > 1
    drawn["state/1/speed"].clip(-1.0, 1.0, out=drawn["state/1/speed"])  # a leaf knows no bounds
    for row in range(50):
        assert NESTED.contains(spec.nest({key: numbers[row] for key, numbers in drawn.items()}))


def test_texts_are_left_out_when_a_dict_has_them() -> None:
    box = spaces.Box(0, 1, (2,))
    inner = spaces.Dict([("word", spaces.Text(5)), ("x", box)])
    space = spaces.Dict([("z", box), ("name", spaces.Text(3)), ("deep", spaces.Tuple([inner]))])
    spec = obs_spec_of(space)
    assert [leaf.key for leaf in spec.leaves] == ["z", "deep/0/x"]
    assert spec.texts == ("name", "deep/0/word")
    seen = without_texts(space)
    assert list(seen) == ["z", "deep"]  # type: ignore[call-overload]
    assert obs_spec_of(seen) == spec
    assert not obs_spec_of(seen).texts
    assert without_texts(seen) is seen
