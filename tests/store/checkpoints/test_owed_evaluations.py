"""Files of policies that wait for their scores."""

from pathlib import Path

import pytest

from metta.agent.factory import make_policy
from metta.agent.policy import Policy
from metta.envs.toy import CorridorEnv
from metta.errors import MettaWarning, UnsafeFileError
from metta.store.checkpoints.files import new_run_id
from metta.store.checkpoints.owed_evaluations import OwedEvaluation, OwedEvaluations
from metta.store.policies.file import freeze_policy, load_weights, save_policy

RUN = new_run_id()


def policy(seed: int = 1) -> Policy:
    env = CorridorEnv()
    return make_policy(env.observation_space, env.action_space, seed=seed)


def test_what_was_added_is_listed_by_epoch_until_it_is_removed(tmp_path: Path) -> None:
    owed = OwedEvaluations(tmp_path / "checkpoints", RUN)
    assert owed.list() == []
    late = OwedEvaluation(12, 120, "epoch_000012.2", is_scored=False, is_recorded=True)
    early = OwedEvaluation(3, 30)
    for one in (late, early):
        owed.add(one, freeze_policy(policy(one.epoch)))
    assert OwedEvaluations(tmp_path / "checkpoints", RUN).list() == [early, late]
    other = policy()
    load_weights(owed.file_of(3), other)
    assert other.parameter_hash() == policy(3).parameter_hash()
    owed.remove([3, 4])
    assert owed.list() == [late]


def test_what_a_crash_left_half_written_is_removed(tmp_path: Path) -> None:
    owed = OwedEvaluations(tmp_path, RUN)
    owed.add(OwedEvaluation(3, 30), freeze_policy(policy()))
    for name in (".tmp-0123", ".tmpNnIAwF"):  # metta's own, and that of safetensors
        (owed.folder / name).write_bytes(b"half")
    assert len(owed.list()) == 1
    assert [path.name for path in owed.folder.iterdir()] == ["epoch_000003.safetensors"]


@pytest.mark.parametrize(
    "about",
    [
        {},
        {"epoch": 4, "agent_step": 1},
        {"epoch": 3, "agent_step": -1},
        {"epoch": 3.0, "agent_step": 1},
        {"epoch": 3, "agent_step": 1, "is_scored": 1},
        {"epoch": 3, "agent_step": 1, "checkpoint": "epoch_000004"},
        {"epoch": 3, "agent_step": 1, "checkpoint": "../epoch_000003"},
        {"epoch": 3, "agent_step": 1, "checkpoint": 3},
        {"epoch": 3, "agent_step": 1, "more": 3},
    ],
)
def test_a_file_that_says_something_else_is_left_out_with_a_warning(
    tmp_path: Path, about: dict[str, object]
) -> None:
    owed = OwedEvaluations(tmp_path, RUN)
    save_policy(owed.file_of(3), policy(), about)
    with pytest.warns(MettaWarning, match="owes is left out.*epoch_000003"):
        assert owed.list() == []


def test_other_files_and_links_are_left_out_with_a_warning(tmp_path: Path) -> None:
    owed = OwedEvaluations(tmp_path / "checkpoints", RUN)
    owed.add(OwedEvaluation(3, 30), freeze_policy(policy()))
    owed.file_of(3).rename(tmp_path / "elsewhere")
    owed.file_of(3).symlink_to(tmp_path / "elsewhere")
    owed.file_of(4).write_bytes(b"nothing")
    owed.file_of(5).mkdir()
    with pytest.warns(MettaWarning) as caught:
        assert owed.list() == []
    assert len(caught) == 3
    owed.remove([3])
    assert (tmp_path / "elsewhere").exists()


def test_a_folder_that_leads_out_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "owed").symlink_to(tmp_path / "elsewhere")
    owed = OwedEvaluations(tmp_path / "checkpoints", RUN)
    for refused in (owed.list, lambda: owed.add(OwedEvaluation(3, 30), freeze_policy(policy()))):
        with pytest.raises(UnsafeFileError, match="leads out of"):
            refused()
    assert list((tmp_path / "elsewhere").iterdir()) == []
