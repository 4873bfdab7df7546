"""A short tier of the campaign: damaged and hostile files are refused."""

import mmap
import os
import signal
from pathlib import Path
from random import Random

import pytest

from faults.bad_files import Job, plan, prepare, read_changed, trials, verdict
from faults.byte_damage import FIXED, RANDOM
from faults.forked import Watched, run_forked
from faults.good_files import AGENTS, MAKERS, READERS
from faults.trial import OK

COUNT = 200


def test_every_bad_file_is_refused_when_it_is_read_in_any_way(tmp_path: Path) -> None:
    found = list(trials(COUNT, 1, tmp_path))
    assert len(found) == COUNT
    assert len({trial.point for trial in found}) > COUNT // 2
    assert {trial.point: trial.outcome for trial in found if trial.outcome != OK} == {}
    errors = {what for trial in found for what in trial.detail["found"].values()}
    assert {"refused: PolicyError", "refused: RolloutError", "refused: CheckpointError"} <= errors


def test_all_kinds_of_lies_are_planned_when_the_campaign_is_whole() -> None:
    jobs = plan(10_000, 1)
    assert len(jobs) == 10_000
    assert {job.kind for job in jobs} == set(MAKERS)
    assert {job.agent for job in jobs} == set(AGENTS)
    assert {job.way for job in jobs} >= {*FIXED, *RANDOM}
    assert len({job.point for job in jobs}) > 400


@pytest.mark.parametrize("kind", MAKERS)
def test_a_change_that_is_not_seen_counts_as_wrong_when_readers_are_blind(
    tmp_path: Path, kind: str
) -> None:
    """The campaign itself: readers that see no change, other content, and a foreign error."""
    path = MAKERS[kind](tmp_path / "sound" / kind / "mlp", "mlp")
    digests = {name: reader.read(path, "mlp") for name, reader in READERS[kind].items()}
    originals = {(kind, "mlp"): {"path": str(path)} | digests}
    file = "policy.safetensors" if kind == "checkpoint" else f"{kind}.safetensors"
    job = Job(kind, "mlp", file, "cut to nothing", 0)
    prepared = prepare(tmp_path / "work", tmp_path / "sound", originals, job)
    assert prepared.changed == {file}
    assert verdict(Watched(read_changed(originals, prepared))) == OK
    sound = prepared._replace(path=path)  # nothing was changed there, though the job says so
    assert "the change was not seen" in verdict(Watched(read_changed(originals, sound)))
    others = {(kind, "mlp"): dict.fromkeys(digests, "another digest")}
    assert "other content was loaded" in verdict(Watched(read_changed(others, sound)))


def test_damage_changes_bytes_when_it_is_done() -> None:
    content = Random(1).randbytes(1000)
    for name, damage in (FIXED | RANDOM).items():
        assert damage(content, Random(2)) != content, name


def test_deaths_and_costs_are_told_when_a_child_does_its_work() -> None:
    def work(number: int) -> int:
        if number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        size = number * 2**20
        with mmap.mmap(-1, size or 1) as fresh:  # the heap may hold so much free memory already
            fresh.write(b"x" * size)
            return size

    found = list(run_forked([0, 1, 60], work))
    assert [watched.value for watched in found] == [0, None, 60 * 2**20]
    assert found[1].death == "ended with -9"
    assert verdict(found[1]) != OK
    assert found[2].grown_bytes > 50 * 2**20
    assert found[0].grown_bytes < 20 * 2**20
