"""Tracks for tests."""

import numpy as np

from metta.replays.tracks import Track, TrackEncoder


def encode_track(arrays: np.ndarray) -> Track:
    """The track of arrays ``[T, ...]``."""
    encoder = TrackEncoder(arrays.dtype, arrays.shape[1:])
    for array in arrays:
        encoder.append(array)
    return encoder.finish()
