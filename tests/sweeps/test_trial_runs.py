"""What a trial asks of workers, and what it reads of its runs."""

from pathlib import Path

import pytest

from metta.loggers import EventLog
from metta.sweeps.trial_runs import jobs_of, return_at
from metta.train.layers import config_from_mapping
from metta.train.settings import given_paths
from tests.sweeps.toy_sweeps import toy_definition, write_log


def test_a_return_is_that_of_the_first_record_there_however_far_the_run_is(tmp_path: Path) -> None:
    for num_records in (4, 10):  # of ten: the run has ended
        folder = tmp_path / str(num_records)
        write_log(folder, [float(number) for number in range(num_records)], 100 * num_records)
        found = [return_at(folder / "events.jsonl", step) for step in (1, 100, 301, 400)]
        assert found == [(True, 0.0), (True, 0.0), (True, 3.0), (True, 3.0)]
    assert return_at(tmp_path / "4" / "events.jsonl", 401) == (False, None)
    assert return_at(tmp_path / "4" / "absent.jsonl", 1) == (False, None)


def test_there_is_no_return_when_no_episode_has_ended(tmp_path: Path) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        log.append("run_start", {"name": "run"})
        log.append("metrics", {"agent_step": 10, "epoch": 1, "metrics": {}})
        log.append("metrics", {"agent_step": 20, "epoch": 2, "metrics": {"overview/reward": None}})
        log.append("metrics", {"agent_step": 30, "epoch": 3, "metrics": {"overview/reward": 7.0}})
    found = [return_at(tmp_path / "events.jsonl", step) for step in (5, 15, 25)]
    assert found == [(True, None), (True, None), (True, 7.0)]


def test_records_that_were_taken_back_do_not_count_when_a_run_was_resumed(tmp_path: Path) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        log.append("run_start", {"name": "run"})
        for epoch, reward in ((1, 1.0), (2, 2.0)):
            metrics = {"overview/reward": reward}
            log.append("metrics", {"agent_step": 10 * epoch, "epoch": epoch, "metrics": metrics})
        log.append("run_start", {"name": "run", "from_epoch": 1})
        metrics = {"overview/reward": 9.0}
        log.append("metrics", {"agent_step": 20, "epoch": 2, "metrics": metrics})
    assert return_at(tmp_path / "events.jsonl", 15) == (True, 9.0)


def test_jobs_have_what_was_chosen_so_that_recipes_choose_the_rest(tmp_path: Path) -> None:
    definition = toy_definition(tmp_path, ["lr=1e-5..1e-2:log", "target_kl=null,0.01"])
    values = {"trainer.optimizer.learning_rate": 1e-3, "trainer.ppo.target_kl": None}
    first, second = jobs_of(definition, 7, values, range(2))
    assert (first.key, second.key) == ("sweep/toy/t007-s1", "sweep/toy/t007-s2")
    assert (first.group, first.kind) == ("sweep/toy", "train")
    assert second.payload["run"] == "toy/t007-s2"
    config = config_from_mapping(second.payload["settings"])
    assert config.trainer.seed == 2
    assert config.trainer.optimizer.learning_rate == 1e-3
    assert given_paths(config) == {*definition.settings, *values, "trainer.seed"}
    about = second.payload["provenance"]["settings"]
    assert about["trainer.optimizer.learning_rate"] == {
        "value": 1e-3, "origin": "sweep toy", "overrides": [],
    }  # fmt: skip
    assert about["trainer.seed"]["value"] == 2
    assert about["trainer.curriculum.env"]["origin"].startswith("preset")
    assert about.keys() == config_paths()


def config_paths() -> set[str]:
    from metta.train.parsing.schema import leaves_of
    from metta.train.train_config import TrainingConfig

    return set(leaves_of(TrainingConfig))


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_a_return_that_is_no_number_is_none(tmp_path: Path, reward: float) -> None:
    write_log(tmp_path, [reward, 1.0])
    assert return_at(tmp_path / "events.jsonl", 100) == (True, None)
