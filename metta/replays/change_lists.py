"""Change lists: arrays over time as the first one and what changed in each step, compressed.

A *track* is an array of one type and shape at every moment of an episode. It is kept as four deflated
streams (zlib): the first array, then per step a count (uint32), the places that changed (uint32; the first
of a step as it is, the others as distances from the one before) and their new values. A place is a *unit*
of neighbouring entries, e.g. the three colours of a pixel. Numbers are little-endian. Values are compared
as bytes, so that NaN and negative zero come back as they were.
"""

import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from metta.errors import UnsafeFileError

__all__ = ["MAX_FRAMES", "MAX_FRAME_BYTES", "Track", "TrackEncoder", "TrackReader", "encode_track"]

MAX_FRAME_BYTES = 64 * 2**20
"""Of one array; larger ones are neither written nor read."""
MAX_FRAMES = 1_000_001
STREAMS = ("first", "counts", "places", "values")
"""Names of the streams of a track."""
_DTYPES = (
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
    "float16", "float32", "float64",
)  # fmt: skip
_MAX_DIMENSIONS = 8
_MAX_DEFLATED = 1032
"""Bytes that one byte of a deflated stream can stand for, at most."""
_LEVEL = 6
_CHUNK = 1 << 14


@dataclass(frozen=True)
class Track:
    """An array at every moment of an episode, as change lists; `TrackReader` plays it.

    Whoever makes one of a file's content is told by `UnsafeFileError` what is wrong with it.
    """

    dtype: str
    """Name of a NumPy type."""
    shape: tuple[int, ...]
    """Of each array."""
    unit: int
    """Neighbouring entries that are one place."""
    num_frames: int
    num_changes: int
    """Places that changed, over all steps."""
    streams: Mapping[str, bytes]
    """Deflated bytes by name: `first`, `counts`, `places`, `values`."""

    def __post_init__(self) -> None:
        problem = _problem_of(self)
        if problem:
            raise UnsafeFileError(f"there is no such track of changes: {problem}")

    @property
    def frame_bytes(self) -> int:
        """Size of one array."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def num_places(self) -> int:
        """Places that can change."""
        return math.prod(self.shape) // self.unit

    @property
    def compressed_bytes(self) -> int:
        """Size of all streams."""
        return sum(map(len, self.streams.values()))

    def describe(self) -> dict[str, Any]:
        """Everything but the streams, as plain data."""
        names = ("dtype", "unit", "num_frames", "num_changes")
        return {**{name: getattr(self, name) for name in names}, "shape": list(self.shape)}

    def frames(self) -> Iterator[np.ndarray]:
        """Every array in order, each in memory of its own."""
        reader = TrackReader(self)
        for index in range(self.num_frames):
            yield reader.at(index).copy()


def _problem_of(track: Track) -> str:
    """Why the numbers of a track cannot be; nothing is allocated for finding out."""
    counts = (track.unit, track.num_frames, track.num_changes, *track.shape)
    if any(type(count) is not int or count < 0 for count in counts):
        return "sizes must be whole numbers"
    if track.dtype not in _DTYPES:
        return f"its type is {track.dtype!r:.80}; known are {', '.join(_DTYPES)}"
    if len(track.shape) > _MAX_DIMENSIONS or not 1 <= track.num_frames <= MAX_FRAMES:
        return f"{track.num_frames} arrays of {len(track.shape)} dimensions are not what is read"
    # a size of 0 must not hide others that are too large
    entries = math.prod(max(size, 1) for size in track.shape)
    if entries * np.dtype(track.dtype).itemsize > MAX_FRAME_BYTES:
        return (
            f"arrays of {list(track.shape)} {track.dtype} are larger than {MAX_FRAME_BYTES} bytes"
        )
    if track.unit < 1 or math.prod(track.shape) % track.unit:
        return f"arrays of {list(track.shape)} do not divide into units of {track.unit}"
    if track.num_changes > track.num_places * (track.num_frames - 1):
        return f"{track.num_changes} changes are more than there are places and steps"
    if set(track.streams) != set(STREAMS):
        return f"its streams are {sorted(track.streams)!r:.200}, not {list(STREAMS)}"
    for name, size in _sizes_of(track).items():
        if size > _MAX_DEFLATED * len(track.streams[name]):
            return f"{len(track.streams[name])} bytes of {name} cannot stand for {size}"
    return ""


def _sizes_of(track: Track) -> dict[str, int]:
    """Bytes of each stream when it is inflated."""
    value = track.unit * np.dtype(track.dtype).itemsize
    steps, changes = track.num_frames - 1, track.num_changes
    sizes = (track.frame_bytes, 4 * steps, 4 * changes, value * changes)
    return dict(zip(STREAMS, sizes, strict=True))


class TrackEncoder:
    """Takes arrays in, one per moment, and keeps their changes only.

    encoder = TrackEncoder(np.uint8, (210, 160, 3), unit=3)
    for frame in frames:
        encoder.append(frame)
    track = encoder.finish()
    """

    def __init__(self, dtype: Any, shape: tuple[int, ...], unit: int = 1) -> None:
        self.dtype, self.shape, self.unit = np.dtype(dtype), tuple(shape), unit
        self.num_frames = self.num_changes = 0
        size = math.prod(self.shape) * self.dtype.itemsize
        if self.dtype.name not in _DTYPES or size > MAX_FRAME_BYTES:
            raise UnsafeFileError(
                f"arrays of {list(self.shape)} {self.dtype} cannot be recorded: numbers and booleans of "
                f"up to {MAX_FRAME_BYTES} bytes can"
            )
        self._last = np.zeros(0, np.uint8)
        self._streams = {name: _Deflater() for name in STREAMS}

    @property
    def compressed_bytes(self) -> int:
        """Size of all streams so far, but for what is not deflated yet: some kilobytes at most."""
        return sum(stream.size for stream in self._streams.values())

    def append(self, array: np.ndarray) -> None:
        """The next moment; the array may be changed afterwards."""
        if array.shape != self.shape or array.dtype != self.dtype:
            raise UnsafeFileError(
                f"a track of {list(self.shape)} {self.dtype} got an array of {list(array.shape)} "
                f"{array.dtype}; what is recorded must keep its shape"
            )
        # bytes in memory of their own, little-endian
        now = np.array(array, self.dtype.newbyteorder("<"), order="C").reshape(-1).view(np.uint8)
        if self.num_frames == 0:
            self._streams["first"].write(now)
        else:
            width = self.unit * self.dtype.itemsize
            touched = (now != self._last).nonzero()[0] // width
            is_new = np.ones(len(touched), bool)
            np.not_equal(touched[1:], touched[:-1], out=is_new[1:])
            places = touched[is_new]
            self._write_changes(places, now.reshape(-1, width)[places])
        self._last = now
        self.num_frames += 1

    def _write_changes(self, places: np.ndarray, values: np.ndarray) -> None:
        self.num_changes += len(places)
        self._streams["counts"].write(np.array([len(places)], "<u4"))
        if len(places):
            distances = places.astype("<u4")
            distances[1:] = places[1:] - places[:-1]
            self._streams["places"].write(distances)
            self._streams["values"].write(values)

    def finish(self) -> Track:
        """The track; nothing may be appended afterwards."""
        if self.num_frames == 0:
            raise UnsafeFileError("nothing was recorded, so that there is no track to keep")
        streams = {name: stream.finish() for name, stream in self._streams.items()}
        sizes = self.num_frames, self.num_changes
        return Track(self.dtype.name, self.shape, self.unit, *sizes, streams)


def encode_track(arrays: np.ndarray, unit: int = 1) -> Track:
    """The track of arrays ``[T, ...]`` that are in memory."""
    encoder = TrackEncoder(arrays.dtype, arrays.shape[1:], unit)
    for array in arrays:
        encoder.append(array)
    return encoder.finish()


class TrackReader:
    """Plays a track: any moment, cheapest in order.

        reader = TrackReader(track)
        reader.at(12)          # an array that is valid until the next call, and not writable

    Memory is that of one array, however long the track is. `UnsafeFileError` where the changes are none.
    """

    def __init__(self, track: Track) -> None:
        self.track = track
        self._width = track.unit * np.dtype(track.dtype).itemsize
        self._rewind()

    def at(self, index: int) -> np.ndarray:
        """The array at moment `index`, from 0 on."""
        if not 0 <= index < self.track.num_frames:
            raise IndexError(f"there is no moment {index}; the last is {self.track.num_frames - 1}")
        if index < self._index:
            self._rewind()
        while self._index < index:
            self._step()
        return self._array

    def _rewind(self) -> None:
        sizes = _sizes_of(self.track)
        self._inflaters = {
            name: _Inflater(self.track.streams[name], sizes[name]) for name in STREAMS
        }
        first = bytearray(self._inflaters["first"].read(self.track.frame_bytes))
        self._state = np.frombuffer(first, np.uint8).reshape(-1, self._width)
        little = np.dtype(self.track.dtype).newbyteorder("<")
        self._refuse_false_booleans(self._state)
        self._array = np.frombuffer(first, little).reshape(self.track.shape)
        self._array.flags.writeable = False
        self._index = 0
        self._expect_end_if_last()

    def _step(self) -> None:
        count = int(np.frombuffer(self._inflaters["counts"].read(4), "<u4")[0])
        if count:
            if count > self.track.num_places:
                raise UnsafeFileError(
                    f"a step changes {count} of {self.track.num_places} places; the track is damaged"
                )
            distances = np.frombuffer(self._inflaters["places"].read(4 * count), "<u4")
            places = np.cumsum(distances, dtype=np.int64)
            if places[-1] >= self.track.num_places or not distances[1:].all():
                raise UnsafeFileError("a step changes places that do not exist, or one place twice")
            raw = self._inflaters["values"].read(self._width * count)
            values = np.frombuffer(raw, np.uint8).reshape(-1, self._width)
            self._refuse_false_booleans(values)
            self._state[places] = values
        self._index += 1
        self._expect_end_if_last()

    def _expect_end_if_last(self) -> None:
        """At the last moment every stream has come to its end."""
        if self._index == self.track.num_frames - 1:
            for inflater in self._inflaters.values():
                inflater.expect_end()

    def _refuse_false_booleans(self, values: np.ndarray) -> None:
        if self.track.dtype == "bool" and bool((values > 1).any()):
            raise UnsafeFileError("a track of booleans holds bytes that are none; it is damaged")


class _Deflater:
    """Arrays in, deflated bytes out at the end."""

    def __init__(self) -> None:
        self._compressor = zlib.compressobj(_LEVEL)
        self._done: list[bytes] = []
        self.size = 0

    def write(self, array: np.ndarray) -> None:
        part = self._compressor.compress(np.ascontiguousarray(array).view(np.uint8).data)
        if part:
            self._done.append(part)
            self.size += len(part)

    def finish(self) -> bytes:
        return b"".join([*self._done, self._compressor.flush()])


class _Inflater:
    """Deflated bytes in, so many bytes out as are asked for and not more than were announced."""

    def __init__(self, stream: bytes, size: int) -> None:
        self._inflater = zlib.decompressobj()
        self._stream, self._position = memoryview(stream), 0
        self._waiting: bytes = b""
        self._left = size

    def read(self, size: int) -> bytes:
        """The next `size` bytes."""
        if size > self._left:
            raise UnsafeFileError("a stream of changes is shorter than its steps; it is damaged")
        self._left -= size
        found: list[bytes] = []
        while size:
            part = self._inflate(size)
            if not part:
                raise UnsafeFileError("a stream of changes ends too early; it is damaged")
            found.append(part)
            size -= len(part)
        return b"".join(found)

    def expect_end(self) -> None:
        """Nothing is left, announced or not, and the checksum is right."""
        if self._left or self._inflate(1) or not self._inflater.eof:
            raise UnsafeFileError("a stream of changes is longer than its steps; it is damaged")

    def _inflate(self, most: int) -> bytes:
        """Up to `most` bytes; none at the end."""
        try:
            while not self._inflater.eof:
                # first without more input: what is inside may not all have come out yet
                part = self._inflater.decompress(self._waiting, most)
                self._waiting = self._inflater.unconsumed_tail
                if part:
                    return part
                chunk = self._stream[self._position : self._position + _CHUNK]
                if not chunk:
                    return b""
                self._position += len(chunk)
                self._waiting = bytes(chunk)
        except zlib.error as error:
            raise UnsafeFileError(f"a stream of changes cannot be inflated: {error}") from error
        return b""
