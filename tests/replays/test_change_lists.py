"""Change lists: what goes in comes out, to the bit, and nothing is taken in that cannot be."""

import dataclasses
import itertools
import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from metta.errors import UnsafeFileError
from metta.replays.change_lists import (
    MAX_FRAME_BYTES,
    MAX_FRAMES,
    Track,
    TrackEncoder,
    TrackReader,
    encode_track,
)

DTYPES = ["bool", "uint8", "int16", "int32", "int64", "uint64", "float16", "float32", "float64"]
STREAMS = ("first", "counts", "places", "values")


@st.composite
def stories(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    """Arrays over time that change a little from step to step, and a unit that divides them."""
    unit = draw(st.integers(1, 3))
    shape = (*draw(st.lists(st.integers(0, 4), max_size=2)), unit)
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    values = hnp.from_dtype(dtype, allow_nan=True, allow_infinity=True)
    arrays = [draw(hnp.arrays(dtype, shape, elements=values))]
    for _ in range(draw(st.integers(0, 6))):
        array = arrays[-1].copy()
        if array.size and draw(st.booleans()):
            array.reshape(-1)[draw(st.integers(0, array.size - 1))] = draw(values)
        arrays.append(array)
    return np.stack(arrays), unit


@given(stories(), st.lists(st.integers(0, 100), max_size=5))
def test_every_moment_comes_back_to_the_bit_when_it_is_asked_for(
    story: tuple[np.ndarray, int], moments: list[int]
) -> None:
    arrays, unit = story
    track = encode_track(arrays, unit)
    found = np.stack(list(track.frames()))
    assert (found.dtype, found.shape, found.tobytes()) == (
        arrays.dtype,
        arrays.shape,
        arrays.tobytes(),
    )
    reader = TrackReader(track)
    for moment in (moment % len(arrays) for moment in moments):
        assert reader.at(moment).tobytes() == arrays[moment].tobytes()


def test_only_places_that_change_are_kept_when_a_step_is_encoded() -> None:
    arrays = np.zeros((4, 2, 2, 3), np.uint8)
    arrays[1:, 0, 1] = 1, 2, 3
    arrays[3, 1, 0, 2] = 9
    arrays[3, 1, 1] = 5
    track = encode_track(arrays, unit=3)
    inflated = {name: zlib.decompress(content) for name, content in track.streams.items()}
    assert inflated == {
        "first": bytes(12),
        "counts": np.array([1, 0, 2], "<u4").tobytes(),
        "places": np.array([1, 2, 1], "<u4").tobytes(),
        "values": bytes([1, 2, 3, 0, 0, 9, 5, 5, 5]),
    }
    assert (track.num_changes, track.num_places, track.frame_bytes) == (3, 4, 12)


def test_nan_and_negative_zero_are_changes_when_bits_differ() -> None:
    quiet, other = np.array([0x7FC00000, 0x7FC00001], np.uint32).view(np.float32)
    arrays = np.array([[0.0], [-0.0], [quiet], [quiet], [other]], np.float32)
    track = encode_track(arrays)
    assert track.num_changes == 3
    assert np.stack(list(track.frames())).tobytes() == arrays.tobytes()


def test_nothing_of_the_callers_is_kept_when_an_array_is_used_again() -> None:
    encoder, array = TrackEncoder(np.int64, (3,)), np.zeros(3, np.int64)
    for value in range(5):
        array[:] = value
        encoder.append(array)
    assert [frame.tolist() for frame in encoder.finish().frames()] == [[v] * 3 for v in range(5)]


def test_arrays_of_any_order_and_endianness_are_taken_when_they_are_appended() -> None:
    array = np.asfortranarray(np.arange(6, dtype=">i4").reshape(2, 3))
    encoder = TrackEncoder(array.dtype, array.shape)
    encoder.append(array)
    encoder.append(array[:, ::-1])
    track = encoder.finish()
    assert track.dtype == "int32"
    assert [frame.tolist() for frame in track.frames()] == [
        [[0, 1, 2], [3, 4, 5]],
        [[2, 1, 0], [5, 4, 3]],
    ]


def test_memory_is_that_of_one_array_when_a_long_track_is_played() -> None:
    encoder, array = TrackEncoder(np.uint8, (256, 256)), np.zeros((256, 256), np.uint8)
    for index in range(400):
        array[index % 256, index % 7] += 1
        encoder.append(array)
    track = encoder.finish()
    tracemalloc.start()
    reader = TrackReader(track)
    assert [int(reader.at(index).sum()) for index in (0, 399, 100)] == [1, 400, 101]
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 10 * array.nbytes


def test_readers_cannot_be_written_to_when_they_give_an_array() -> None:
    array = TrackReader(encode_track(np.zeros((2, 3)))).at(0)
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_moments_outside_are_refused_when_they_are_asked_for() -> None:
    reader = TrackReader(encode_track(np.zeros((2, 3))))
    for moment in (-1, 2):
        with pytest.raises(IndexError, match="the last is 1"):
            reader.at(moment)


@pytest.mark.parametrize(
    ("dtype", "shape"), [(np.complex64, (2,)), (object, (2,)), (np.uint8, (MAX_FRAME_BYTES + 1,))]
)
def test_arrays_that_files_do_not_take_are_refused_when_recording_begins(
    dtype: Any, shape: tuple[int, ...]
) -> None:
    with pytest.raises(UnsafeFileError, match="cannot be recorded"):
        TrackEncoder(dtype, shape)


def test_another_shape_is_refused_when_it_comes_later() -> None:
    encoder = TrackEncoder(np.uint8, (2, 2))
    with pytest.raises(UnsafeFileError, match="must keep its shape"):
        encoder.append(np.zeros((2, 3), np.uint8))
    with pytest.raises(UnsafeFileError, match="nothing was recorded"):
        encoder.finish()


GOOD = encode_track(np.arange(24, dtype=np.uint8).reshape(4, 6) // np.uint8(5))
BOMB = zlib.compress(bytes(2**20))


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "object"},
        {"dtype": "float128"},
        {"shape": (2**40, 0)},
        {"shape": (2**62, 2**62)},
        {"shape": (6,) * 9},
        {"shape": (-6,)},
        {"shape": (True,)},
        {"shape": (6.0,)},
        {"unit": 0},
        {"unit": 4},
        {"num_frames": 0},
        {"num_frames": MAX_FRAMES + 1},
        {"num_frames": MAX_FRAMES},
        {"num_changes": 19},
        {"streams": {}},
        {"shape": (MAX_FRAME_BYTES,)},
    ],
    ids=lambda changes: "-".join(f"{k}={v}" for k, v in changes.items())[:40],
)
def test_a_track_is_refused_when_its_numbers_cannot_be(changes: dict[str, Any]) -> None:
    with pytest.raises(UnsafeFileError, match="no such track"):
        dataclasses.replace(GOOD, **changes)


def playing(track: Track) -> None:
    for _ in track.frames():
        pass


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize(
    "content",
    [BOMB, zlib.compress(b""), b"", b"\x78\x9c", zlib.compress(bytes([255] * 64))],
    ids=["bomb", "empty", "nothing", "header", "large"],
)
def test_a_stream_is_refused_when_it_is_not_what_was_announced(name: str, content: bytes) -> None:
    with pytest.raises(UnsafeFileError):
        playing(dataclasses.replace(GOOD, streams={**GOOD.streams, name: content}))


def test_only_what_was_announced_is_inflated_when_a_stream_is_a_bomb() -> None:
    track = dataclasses.replace(
        GOOD, streams={**GOOD.streams, "first": zlib.compress(bytes(2**24))}
    )
    tracemalloc.start()
    with pytest.raises(UnsafeFileError, match="longer than its steps"):
        TrackReader(dataclasses.replace(track, num_frames=1, num_changes=0))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2**20


@pytest.mark.parametrize(
    ("places", "match"),
    [([0, 0], "twice"), ([5, 1], "do not exist"), ([2**32 - 1, 1], "do not exist")],
)
def test_changes_of_impossible_places_are_refused_when_they_are_played(
    places: list[int], match: str
) -> None:
    two = encode_track(np.array([[0] * 6, [1, 1, 0, 0, 0, 0]], np.uint8))
    streams = {**two.streams, "places": zlib.compress(np.array(places, "<u4").tobytes())}
    with pytest.raises(UnsafeFileError, match=match):
        playing(dataclasses.replace(two, streams=streams))


def test_other_bytes_are_refused_when_a_track_is_of_booleans() -> None:
    track = encode_track(np.array([[True, False], [True, True]]))
    for name in ("first", "values"):
        wrong = zlib.compress(bytes([2] * (2 if name == "first" else 1)))
        with pytest.raises(UnsafeFileError, match="booleans"):
            playing(dataclasses.replace(track, streams={**track.streams, name: wrong}))


def test_the_size_so_far_is_known_when_arrays_go_on_coming() -> None:
    generator, encoder, sizes = np.random.default_rng(1), TrackEncoder(np.uint8, (100_000,)), [0]
    for _ in range(6):
        encoder.append(generator.integers(0, 256, 100_000).astype(np.uint8))
        sizes.append(encoder.compressed_bytes)
    assert all(later - earlier > 50_000 for earlier, later in itertools.pairwise(sizes[1:]))
    size = encoder.finish().compressed_bytes
    assert size - 100_000 < sizes[-1] <= size
