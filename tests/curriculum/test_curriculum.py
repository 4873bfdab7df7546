import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from metta.curriculum import Curriculum, Task
from metta.errors import ConfigError, StateError
from metta.stateful import digest_of
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


def test_draws_and_shares_go_on_when_the_state_is_taken_back() -> None:
    config = CurriculumConfig(kind="learning_progress", tasks={"a": {}, "b": {}, "c": {}})
    one, other = Curriculum(config), Curriculum(config)
    for episode in range(40):
        one.complete(episode % 3, float(episode % 3) * episode)
        one.draw(np.random.default_rng(episode))
    other.load_state_dict(one.state_dict())
    assert digest_of(other.state_dict()) == digest_of(one.state_dict())
    assert other.probabilities.tolist() == one.probabilities.tolist()
    one.complete(0, 5.0)
    assert digest_of(other.state_dict()) != digest_of(one.state_dict())


def test_the_state_is_refused_when_the_tasks_are_others() -> None:
    saved = Curriculum(CurriculumConfig(kind="random", tasks={"a": {}, "b": {}})).state_dict()
    with pytest.raises(StateError, match=r"has the tasks \['a', 'b'\], this one has \['a', 'c'\]"):
        Curriculum(CurriculumConfig(kind="random", tasks={"a": {}, "c": {}})).load_state_dict(saved)


def test_metrics_tell_of_each_task_when_there_are_several() -> None:
    one = Curriculum(CurriculumConfig(kind="random", tasks={"a": {}, "b": {}}))
    for score in (1.0, 2.0, 3.0):
        one.complete(0, score)
    assert one.metrics() == {
        "curriculum/probability/a": 0.5,
        "curriculum/completion/a": 1.0,
        "curriculum/score/a": pytest.approx(1.0 + 0.1 + 0.19),
        "curriculum/probability/b": 0.5,
        "curriculum/completion/b": 0.0,
    }
    assert Curriculum().metrics() == {}
    assert Curriculum().draw(np.random.default_rng(0)) == 0


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        ({"aa": 1.0}, "there is no task 'aa'; did you mean 'a'"),
        ({"a": -1.0}, "task_weights.a: found -1.0"),
        ({"a": "much"}, "task_weights.a: found 'much'"),
        ({"a": 0, "b": 0}, "all are 0"),
    ],
)
def test_the_error_says_what_to_change_when_weights_are_wrong(
    weights: dict[str, Any], says: str
) -> None:
    config = CurriculumConfig(kind="random", tasks={"a": {}, "b": {}}, task_weights=weights)
    with pytest.raises(ConfigError, match=says):
        Curriculum(config)


def test_tasks_of_one_name_are_told_apart_when_they_are_counted() -> None:
    config = CurriculumConfig(kind="random", tasks={"g=1": {}}, buckets={"g": [1, 2]})
    assert Curriculum(config).names == ["g=1", "g=1#2", "g=2"]
