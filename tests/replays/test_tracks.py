"""Tracks: what goes in comes out, to the bit, and nothing is taken in that cannot be."""

import dataclasses
import gzip
import itertools
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from metta.errors import UnsafeFileError
from metta.replays.tracks import (
    MAX_FRAME_BYTES,
    MAX_FRAMES,
    Track,
    TrackEncoder,
    TrackReader,
    TrackRecorder,
)
from tests.replays.track_cases import encode_track

DTYPES = ["bool", "uint8", "int16", "int32", "int64", "uint64", "float16", "float32", "float64"]


@st.composite
def stories(draw: st.DrawFn) -> np.ndarray:
    """Arrays over time that change a little from step to step."""
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    values = hnp.from_dtype(dtype, allow_nan=True, allow_infinity=True)
    arrays = [draw(hnp.arrays(dtype, shape, elements=values))]
    for _ in range(draw(st.integers(0, 6))):
        array = arrays[-1].copy()
        if array.size and draw(st.booleans()):
            array.reshape(-1)[draw(st.integers(0, array.size - 1))] = draw(values)
        arrays.append(array)
    return np.stack(arrays)


@given(stories(), st.lists(st.integers(0, 100), max_size=5))
def test_every_moment_comes_back_to_the_bit_when_it_is_asked_for(
    arrays: np.ndarray, moments: list[int]
) -> None:
    track = encode_track(arrays)
    found = np.stack(list(track.frames()))
    assert (found.dtype, found.shape, found.tobytes()) == (
        arrays.dtype,
        arrays.shape,
        arrays.tobytes(),
    )
    reader = TrackReader(track)
    for moment in (moment % len(arrays) for moment in moments):
        assert reader.at(moment).tobytes() == arrays[moment].tobytes()


def test_a_step_takes_next_to_nothing_when_little_changes() -> None:
    arrays = np.random.default_rng(1).integers(0, 256, (1, 200, 200, 3)).astype(np.uint8)
    arrays = arrays.repeat(50, axis=0)
    arrays[25:, 0, 1] = 1, 2, 3
    assert len(encode_track(arrays).content) < 1.1 * arrays[0].nbytes


def test_bits_come_back_when_numbers_are_nan_or_negative_zero() -> None:
    quiet, other = np.array([0x7FC00000, 0x7FC00001], np.uint32).view(np.float32)
    arrays = np.array([[0.0], [-0.0], [quiet], [quiet], [other]], np.float32)
    assert np.stack(list(encode_track(arrays).frames())).tobytes() == arrays.tobytes()


def test_texts_come_back_when_a_later_one_needs_more_room() -> None:
    recorder, texts = TrackRecorder(), [b"a", b"", b"b" * 300, b"c", b"d" * 1024, b"e" * 1025]
    for text in texts:
        recorder.append_text("text", text)
    track = recorder.finish()["text"]
    assert track.shape == (2048,)
    assert [frame.tobytes().rstrip(b"\0") for frame in track.frames()] == texts


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
        {"num_frames": 0},
        {"num_frames": MAX_FRAMES + 1},
        {"num_frames": MAX_FRAMES},
        {"content": b""},
        {"shape": (MAX_FRAME_BYTES,)},
    ],
    ids=lambda changes: "-".join(f"{k}={v}" for k, v in changes.items())[:40],
)
def test_a_track_is_refused_when_its_numbers_cannot_be(changes: dict[str, Any]) -> None:
    with pytest.raises(UnsafeFileError, match="a track is damaged"):
        dataclasses.replace(GOOD, **changes)


def playing(track: Track) -> None:
    for _ in track.frames():
        pass


@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(bytes(2**20)),
        gzip.compress(b""),
        b"\x1f\x8b",
        b"no gzip at all",
        GOOD.content[:-1],
        GOOD.content[:-8] + bytes(8),
        GOOD.content + b"more",
    ],
    ids=["bomb", "empty", "header", "other", "cut", "checksum", "longer"],
)
def test_a_track_is_refused_when_its_content_is_not_what_was_announced(content: bytes) -> None:
    with pytest.raises(UnsafeFileError):
        playing(dataclasses.replace(GOOD, content=content))


def test_only_what_was_announced_is_decompressed_when_a_track_is_a_bomb() -> None:
    track = dataclasses.replace(GOOD, content=gzip.compress(bytes(2**26)), num_frames=1)
    tracemalloc.start()
    with pytest.raises(UnsafeFileError, match="longer than its steps"):
        TrackReader(track).at(0)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2**20


def test_other_bytes_are_refused_when_a_track_is_of_booleans() -> None:
    track = encode_track(np.array([[True, False], [True, True]]))
    for content in (bytes([2, 0, 0, 0]), bytes([1, 0, 2, 0])):
        with pytest.raises(UnsafeFileError, match="booleans"):
            playing(dataclasses.replace(track, content=gzip.compress(content)))


def test_the_size_so_far_is_known_when_arrays_go_on_coming() -> None:
    generator, encoder, sizes = np.random.default_rng(1), TrackEncoder(np.uint8, (100_000,)), [0]
    for _ in range(6):
        encoder.append(generator.integers(0, 256, 100_000).astype(np.uint8))
        sizes.append(encoder.compressed_bytes)
    assert all(later - earlier > 50_000 for earlier, later in itertools.pairwise(sizes[1:]))
    size = len(encoder.finish().content)
    assert size - 100_000 < sizes[-1] <= size
