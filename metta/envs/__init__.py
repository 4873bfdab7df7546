"""World -> arrays: environments of every kind behind one interface of rows and groups.

Environments with known answers, for tests and examples, are in `metta.envs.toy`.
"""

from metta.envs.backends.gymnasium_vector import GymnasiumVecEnv
from metta.envs.backends.multiprocess import MultiprocessVecEnv
from metta.envs.backends.serial import SerialVecEnv
from metta.envs.factory import EnvLike, make_vec_env, row_seeds
from metta.envs.vec_env import (
    FinalRows,
    FusedVecEnv,
    ObsArrays,
    RestorableVecEnv,
    RestoreSupport,
    RolloutArrays,
    StepResult,
    VecEnv,
    group_slices,
)

__all__ = [
    "EnvLike",
    "FinalRows",
    "FusedVecEnv",
    "MultiprocessVecEnv",
    "GymnasiumVecEnv",
    "ObsArrays",
    "RestorableVecEnv",
    "RestoreSupport",
    "RolloutArrays",
    "SerialVecEnv",
    "StepResult",
    "VecEnv",
    "group_slices",
    "make_vec_env",
    "row_seeds",
]
