from typing import Any

import pytest

from metta.curriculum.tasks import MAX_TASKS, Task, tasks_of
from metta.errors import ConfigError
from metta.train.train_config import CurriculumConfig


def test_named_tasks_lie_over_common_arguments_when_they_are_given() -> None:
    config = CurriculumConfig(
        kind="random",
        env="Pendulum-v1",
        env_kwargs={"g": 9.8, "max_episode_steps": 50},
        tasks={"moon": {"g": 1.6}, "earth": {}, "swing": {"env": "Acrobot-v1"}},
    )
    assert tasks_of(config) == (
        Task("Pendulum-v1", {"g": 1.6, "max_episode_steps": 50}, "moon"),
        Task("Pendulum-v1", {"g": 9.8, "max_episode_steps": 50}, "earth"),
        Task("Acrobot-v1", {"g": 9.8, "max_episode_steps": 50}, "swing"),
    )


def test_buckets_are_combined_when_there_are_several() -> None:
    config = CurriculumConfig(
        kind="bucketed",
        env="World-v0",
        buckets={"size": [8, 16], "density": {"low": 0.0, "high": 0.4, "bins": 2}},
    )
    assert [task.name for task in tasks_of(config)] == [
        "size=8,density=0.1", "size=8,density=0.3", "size=16,density=0.1", "size=16,density=0.3",
    ]  # fmt: skip
    assert tasks_of(config)[2].env_kwargs == pytest.approx({"size": 16, "density": 0.1})


def test_environments_without_an_id_are_played_when_they_are_given() -> None:
    config = CurriculumConfig(kind="random", tasks={"one": {"size": 1}, "two": {"size": 2}})
    assert [(task.env, task.env_kwargs) for task in tasks_of(config, dict)] == [
        (dict, {"size": 1}),
        (dict, {"size": 2}),
    ]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"kind": "random"}, "has no tasks; give curriculum.tasks"),
        ({"tasks": {"a": {}}}, "kind='single' plays none of them"),
        ({"kind": "random", "tasks": {"a": 3}}, r"curriculum.tasks.a: found 3"),
        ({"kind": "random", "buckets": {"g": []}}, r"curriculum.buckets.g: found \[\]"),
        ({"kind": "random", "buckets": {"g": {"low": 2, "high": 1, "bins": 2}}}, "low < high"),
        ({"kind": "random", "buckets": {"g": {"low": 1, "high": 2, "bins": 0}}}, "a range like"),
        ({"kind": "random", "buckets": {"g": {"low": True, "high": 2, "bins": 1}}}, "a range like"),
        (
            {"kind": "random", "buckets": {"a": list(range(101)), "b": list(range(100))}},
            f"10,100 tasks, more than {MAX_TASKS:,}",
        ),
    ],
)
def test_the_error_says_what_to_change_when_tasks_cannot_be_made(
    settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        tasks_of(CurriculumConfig(**settings))
