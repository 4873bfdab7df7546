from hypothesis import given
from hypothesis import strategies as st

from metta.envs.rows.row_spec import row_spec_of
from metta.envs.toy import CountdownEnv
from metta.envs.workers.worker import unpack, worker_jobs, worker_row_ranges


@given(st.integers(1, 6), st.integers(1, 6), st.data())
def test_every_worker_has_rows_of_every_group_when_rows_are_dealt(
    num_groups: int, num_workers: int, data: st.DataObject
) -> None:
    group_size = data.draw(st.integers(num_workers, 12))
    ranges = worker_row_ranges(num_groups * group_size, num_groups, num_workers)
    dealt = sorted(row for mine in ranges for first, stop in mine for row in range(first, stop))
    assert dealt == list(range(num_groups * group_size))
    for group in range(num_groups):
        sizes = [mine[group][1] - mine[group][0] for mine in ranges]
        assert min(sizes) >= 1
        assert max(sizes) - min(sizes) <= 1


def test_a_worker_gets_the_factories_of_its_own_rows_when_jobs_are_made() -> None:
    factories = [CountdownEnv] * 4
    jobs = worker_jobs(factories, row_spec_of(CountdownEnv()), worker_row_ranges(4, 2, 2))
    assert [list(unpack(job.world)[0]) for job in jobs] == [[0, 2], [1, 3]]
    assert [job.row_ranges for job in jobs] == [((0, 1), (2, 3)), ((1, 2), (3, 4))]
    assert [job.num_rows for job in jobs] == [4, 4]
