import multiprocessing

import numpy as np

from metta.envs.rows.row_spec import row_spec_of
from metta.envs.toy import MaskedCorridorEnv, NestedEnv
from metta.envs.workers.shared_rows import SharedRows, allocate_block


def arrays_of(shared: SharedRows) -> list[np.ndarray]:
    rows = shared.arrays
    flags = [rows.terminated, rows.truncated, rows.valid, rows.starts]
    masks = [] if rows.action_mask is None else [rows.action_mask]
    leaves = [*shared.obs.values(), *rows.final_obs.values()]
    return [shared.actions, shared.seeds, rows.rewards, *flags, *masks, *leaves]


def test_arrays_do_not_overlap_when_they_share_a_block() -> None:
    context = multiprocessing.get_context("spawn")
    for env in (NestedEnv(), MaskedCorridorEnv()):
        spec = row_spec_of(env)
        shared = SharedRows.over(allocate_block(context, spec, 3), spec, 3)
        for number, array in enumerate(arrays_of(shared), 1):
            assert not array.any()
            assert array.ctypes.data % 8 == 0
            array.view(np.uint8)[...] = number
        for number, array in enumerate(arrays_of(shared), 1):
            assert (array.view(np.uint8) == number).all()


def test_two_views_see_the_same_when_one_writes() -> None:
    spec = row_spec_of(NestedEnv())
    block = allocate_block(multiprocessing.get_context("spawn"), spec, 2)
    mine, yours = SharedRows.over(block, spec, 2), SharedRows.over(block, spec, 2)
    mine.obs["camera"][1] = 200
    mine.actions[:] = (1, 2)
    assert (yours.obs["camera"][1] == 200).all()
    assert yours.actions.tolist() == [1, 2]
