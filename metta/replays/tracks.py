"""Tracks: an array at every moment of an episode, kept as differences from moment to moment.

The bytes of each array (little-endian) are combined with those of the array before it by exclusive or, and
all of them are one gzip stream. What does not change is zeros, which take next to no space. NaN and
negative zero come back as they were.
"""

import gzip
import io
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from metta.errors import UnsafeFileError

__all__ = ["MAX_FRAME_BYTES", "Track", "TrackEncoder", "TrackReader", "TrackRecorder"]

MAX_FRAME_BYTES = 64 * 2**20
"""Limit on one array; larger ones are neither written nor read."""
MAX_FRAMES = 1_000_001
_DTYPES = (
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
    "float16", "float32", "float64",
)  # fmt: skip
_MAX_DIMENSIONS = 8
_MAX_DEFLATED = 1032
"""Bytes that one byte of a gzip stream can expand to, at most."""
_LEVEL = 6


@dataclass(frozen=True)
class Track:
    """An array at every moment of an episode; `TrackReader` plays it.

    Impossible sizes, which a file may hold, raise `UnsafeFileError`.
    """

    dtype: str
    """Name of a NumPy type."""
    shape: tuple[int, ...]
    """Of each array."""
    num_frames: int
    content: bytes
    """A gzip stream, see the module."""

    def __post_init__(self) -> None:
        problem = _problem_of(self)
        if problem:
            raise UnsafeFileError(f"a track is damaged: {problem}")

    @property
    def frame_bytes(self) -> int:
        """Size of one array."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def describe(self) -> dict[str, Any]:
        """Everything but the content, as plain data."""
        return {"dtype": self.dtype, "shape": list(self.shape), "num_frames": self.num_frames}

    def frames(self) -> Iterator[np.ndarray]:
        """Every array in order, each a copy."""
        reader = TrackReader(self)
        for index in range(self.num_frames):
            yield reader.at(index).copy()


def _problem_of(track: Track) -> str:
    """Why the sizes of a track are impossible; checks without allocating."""
    if any(type(count) is not int or count < 0 for count in (track.num_frames, *track.shape)):
        return "sizes must be whole numbers"
    if track.dtype not in _DTYPES:
        return f"its type is {track.dtype!r:.80}; known are {', '.join(_DTYPES)}"
    if len(track.shape) > _MAX_DIMENSIONS or not 1 <= track.num_frames <= MAX_FRAMES:
        return f"{track.num_frames} arrays of {len(track.shape)} dimensions are not supported"
    # a size of 0 must not hide others that are too large
    entries = math.prod(max(size, 1) for size in track.shape)
    if entries * np.dtype(track.dtype).itemsize > MAX_FRAME_BYTES:
        return (
            f"arrays of {list(track.shape)} {track.dtype} are larger than {MAX_FRAME_BYTES} bytes"
        )
    size = track.frame_bytes * track.num_frames
    if size > _MAX_DEFLATED * len(track.content):
        return f"{len(track.content)} compressed bytes cannot expand to {size}"
    return ""


class TrackEncoder:
    """Takes one array per moment and keeps only their differences.

    encoder = TrackEncoder(np.uint8, (210, 160, 3))
    for frame in frames:
        encoder.append(frame)
    track = encoder.finish()
    """

    def __init__(self, dtype: Any, shape: tuple[int, ...]) -> None:
        self.dtype, self.shape, self.num_frames = np.dtype(dtype), tuple(shape), 0
        size = math.prod(self.shape) * self.dtype.itemsize
        if self.dtype.name not in _DTYPES or size > MAX_FRAME_BYTES:
            raise UnsafeFileError(
                f"arrays of {list(self.shape)} {self.dtype} cannot be recorded: numbers and booleans of "
                f"up to {MAX_FRAME_BYTES} bytes can"
            )
        self._last = np.zeros(size, np.uint8)
        self._content = io.BytesIO()
        self._stream = gzip.GzipFile("", "wb", _LEVEL, self._content, mtime=0)

    @property
    def compressed_bytes(self) -> int:
        """Size so far, without what is not compressed yet."""
        return self._content.tell()

    def append(self, array: np.ndarray) -> None:
        """The next moment; the array may be changed afterwards."""
        if array.shape != self.shape or array.dtype != self.dtype:
            raise UnsafeFileError(
                f"a track of {list(self.shape)} {self.dtype} got an array of {list(array.shape)} "
                f"{array.dtype}; what is recorded must keep its shape"
            )
        # a copy
        now = np.array(array, self.dtype.newbyteorder("<"), order="C").reshape(-1).view(np.uint8)
        self._stream.write((now ^ self._last).data)
        self._last = now
        self.num_frames += 1

    def finish(self) -> Track:
        """The track; nothing may be appended afterwards."""
        if self.num_frames == 0:
            raise UnsafeFileError("nothing was recorded, so there is no track to keep")
        self._stream.close()
        return Track(self.dtype.name, self.shape, self.num_frames, self._content.getvalue())


class TrackRecorder:
    """Tracks by name that grow together; each begins with its first array.

    recorder = TrackRecorder()
    recorder.append("rewards", rewards)
    tracks = recorder.finish()
    """

    def __init__(self) -> None:
        self._encoders: dict[str, TrackEncoder] = {}

    @property
    def compressed_bytes(self) -> int:
        """Size of what was recorded so far."""
        return sum(encoder.compressed_bytes for encoder in self._encoders.values())

    def clear(self) -> None:
        """Begin anew."""
        self._encoders.clear()

    def append(self, name: str, array: np.ndarray) -> None:
        """The next array of a track."""
        if name not in self._encoders:
            self._encoders[name] = TrackEncoder(array.dtype, array.shape)
        self._encoders[name].append(array)

    def append_text(self, name: str, text: bytes) -> None:
        """The next text, with zeros behind it; if one is too long, those before it get more room."""
        before = self._encoders.get(name)
        size = 256 if before is None else before.shape[0]
        if len(text) > size:
            size = 1 << (len(text) - 1).bit_length()
            earlier = [] if before is None else self._encoders.pop(name).finish().frames()
            for one in earlier:
                self.append(name, np.pad(one, (0, size - len(one))))
        self.append(name, np.frombuffer(text.ljust(size, b"\0"), np.uint8))

    def finish(self) -> dict[str, Track]:
        """All tracks; nothing may be appended afterwards."""
        return {name: encoder.finish() for name, encoder in self._encoders.items()}


class TrackReader:
    """Plays a track: any moment, cheapest in order.

        reader = TrackReader(track)
        reader.at(12)          # an array that is valid until the next call, and not writable

    It keeps a few arrays in memory, however long the track is. Damage raises `UnsafeFileError`.
    """

    def __init__(self, track: Track) -> None:
        self.track = track
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
        track = self.track
        self._stream = gzip.GzipFile(fileobj=io.BytesIO(track.content))
        self._bytes = np.zeros(track.frame_bytes, np.uint8)
        self._array = self._bytes.view(np.dtype(track.dtype).newbyteorder("<")).reshape(track.shape)
        self._array.flags.writeable = False
        self._index = -1

    def _step(self) -> None:
        self._bytes ^= np.frombuffer(self._read(self.track.frame_bytes), np.uint8)
        if self.track.dtype == "bool" and bool((self._bytes > 1).any()):
            raise UnsafeFileError("a track is damaged: it holds booleans other than 0 and 1")
        self._index += 1
        if self._index == self.track.num_frames - 1 and self._read(1, or_end=True):
            raise UnsafeFileError("a track is longer than its steps; it is damaged")

    def _read(self, size: int, *, or_end: bool = False) -> bytes:
        """The next `size` bytes; at the end gzip compares its checksum."""
        try:
            content = self._stream.read(size)
        except (OSError, EOFError, zlib.error) as error:
            raise UnsafeFileError(f"a track cannot be decompressed: {error}") from error
        if len(content) < size and not or_end:
            raise UnsafeFileError("a track ends too early; it is damaged")
        return content
