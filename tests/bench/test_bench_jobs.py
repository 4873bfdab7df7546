"""The jobs of metta, in this process."""

import json

import numpy as np
import pytest

from benchmarks.speed.jobs import collect, phases, step, telling, train

SETTINGS = {
    "num_envs": 4,
    "horizon": 16,
    "num_minibatches": 2,
    "update_epochs": 1,
    "numerics.driver": "eager",  # a run that is told to be long would compile first
}


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[tuple[int, float]]:
    pairs = [line.split() for line in capsys.readouterr().out.splitlines()]
    return [(int(steps), float(clock)) for steps, clock in pairs]


@pytest.mark.parametrize(
    "details",
    [
        {"env": "CartPole-v1"},
        {"env": "CartPole-v1", "custom": True},
        {"env": "CartPole-v1", "vector": True, "num_hooks": 2},
    ],
    ids=["plain", "custom", "vector"],
)
def test_training_stops_when_enough_steps_are_measured(
    capsys: pytest.CaptureFixture[str], details: dict
) -> None:
    train.train({**details, "settings": SETTINGS, "steps": 3 * 64})
    lines = lines_of(capsys)
    steps, clocks = zip(*lines, strict=True)
    assert steps[-1] >= 192 > steps[-2]
    assert list(clocks) == sorted(clocks)


def test_the_run_is_told_to_be_long_when_few_steps_are_measured() -> None:
    with train.make_trainer({"env": "CartPole-v1", "settings": SETTINGS, "steps": 64}) as trainer:
        assert trainer.config.trainer.total_timesteps == train.LONG_RUN


@pytest.mark.parametrize(
    ("details", "rows"),
    [
        ({"env": "grid/gather"}, 4 * 4),  # worlds of 4 agents
        ({"env": "grid/gather", "settings": {"core": "lstm"}}, 4 * 4),
        ({"env": "CartPole-v1", "vector": True}, 4),
    ],
    ids=["grid", "lstm", "vector"],
)
def test_the_share_is_that_of_the_phases_when_they_are_measured(
    capsys: pytest.CaptureFixture[str], details: dict, rows: int
) -> None:
    settings = {**SETTINGS, **details.get("settings", {})}
    found = phases.measure_phases({**details, "settings": settings, "steps": 1})
    names = ("environment", "inference", "learning")
    alone = sum(1 / found[name] for name in names)
    assert found["share"] == pytest.approx(alone * found["steps_per_second"])
    # 16 steps of each row, in at least three rounds
    assert [steps for steps, _ in lines_of(capsys)] == [rows * 16 * n for n in (1, 2, 3)]


def test_environments_work_when_rollouts_are_collected(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sizes = {"num_envs": 2, "num_workers": 0, "num_groups": 1}
    collect.collect({"env": "work", **sizes, "steps": 257})
    assert [steps for steps, _ in lines_of(capsys)] == [256, 512]


def test_an_episode_ends_when_it_has_lasted_long_enough() -> None:
    env = collect.WorkingEnv()
    first, _ = env.reset(seed=3)
    again, _ = collect.WorkingEnv().reset(seed=3)
    np.testing.assert_array_equal(first, again)
    ends = [env.step(np.int64(1))[3] for _ in range(200)]
    assert ends == [False] * 199 + [True]


def test_all_environments_step_when_actions_are_random(
    capsys: pytest.CaptureFixture[str],
) -> None:
    step.step_randomly({"env": "CartPole-v1", "num_envs": 3, "num_workers": 0, "steps": 301})
    assert [steps for steps, _ in lines_of(capsys)] == [300, 600]


def test_a_job_hears_its_one_argument_when_it_starts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["job", json.dumps({"steps": 3})])
    assert telling.told() == {"steps": 3}
    telling.report_result("share", 0.25)
    assert capsys.readouterr().out == "result share 0.25\n"
