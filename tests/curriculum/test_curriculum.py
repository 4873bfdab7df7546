import subprocess
import sys

from metta.curriculum import Curriculum, Task
from metta.train.train_config import CurriculumConfig


def test_the_task_is_the_configured_one_when_there_is_one() -> None:
    config = CurriculumConfig(env="shop:Till-v0", env_kwargs={"size": 3})
    task = Curriculum(config).task
    assert task == Task("shop:Till-v0", {"size": 3})
    assert task.name == "Till-v0"


def test_arguments_belong_to_the_task_when_somebody_changes_them() -> None:
    config = CurriculumConfig(env_kwargs={"size": 3})
    Curriculum(config).task.env_kwargs["size"] = 4
    assert config.env_kwargs == {"size": 3}


def test_an_environment_without_an_id_is_the_task_when_it_is_given() -> None:
    assert Curriculum(env=dict).task == Task(dict)
    assert Curriculum(env=dict).task.name == "dict"
    assert Task([int]).name == "list"


def test_curricula_load_without_torch_and_gymnasium_when_they_are_imported() -> None:
    code = "import sys, metta.curriculum; print({'torch', 'gymnasium'} & set(sys.modules))"
    run = [sys.executable, "-c", code]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout == "set()\n"
