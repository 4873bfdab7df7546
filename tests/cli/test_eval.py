"""`metta eval`: scores of saved policies."""

import csv
import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from metta.agent.factory import make_policy
from metta.agent.policy import Policy
from metta.cli.main import main
from metta.envs.factory import make_vec_env
from metta.envs.toy import CorridorEnv
from metta.loggers.number_text import shown_number
from metta.rl.evaluate.evaluator import PolicyEvaluator
from metta.sim import run_episodes
from metta.store.checkpoints.files import write_checkpoint
from metta.store.policy_store import PolicyStore, spaces_of
from metta.train.parsing.yaml_text import write_yaml
from metta.train.settings import apply_settings
from metta.train.train_config import AgentConfig, EvaluationConfig, TrainingConfig

AGENT = AgentConfig(hidden_size=8)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return make_policy(*spaces_of("CartPole-v1"), AGENT, seed=1)


def make_run(folder: Path, policy: Policy, *scores: float | None, **settings: Any) -> Path:
    """A run with a checkpoint per score."""
    folder.mkdir(parents=True)
    apply_settings(TrainingConfig(), settings).to_yaml(folder / "config.yaml")
    for epoch, score in enumerate(scores, 1):
        about = {"epoch": epoch, "agent_step": 1000 * epoch, "score": score}
        about |= {"agent": {"hidden_size": 8}}
        write_checkpoint(folder / "checkpoints", {}, policy, about)
    return folder


def rows_of(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_the_environment_of_the_run_is_played_when_no_suite_is_named(
    tmp_path: Path, policy: Policy, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "a", policy, 1.0, 2.0, env_kwargs={"max_episode_steps": 4})
    words = ["eval", "a:best", "--episodes", "6", "--runs", str(tmp_path)]
    assert main(words) == 0
    rows = rows_of(capsys.readouterr().out)
    assert rows[0][:3] == ["policy", "simulation", "score"]
    assert rows[1] == ["a:best", "training/CartPole-v1", "4", "4", "..", "4", "6"]
    assert rows[2] == ["a:best", "training", "4", "4", "..", "4", "6"]
    assert len(rows) == 3


@pytest.mark.parametrize(
    ("score", "choice"),
    [
        (1.0, "taking its best policy, epoch 1 (score 1)"),
        (None, "taking its latest policy, epoch 1; none has a score"),
    ],
)
def test_the_choice_is_told_when_a_run_is_named(
    tmp_path: Path,
    policy: Policy,
    capsys: pytest.CaptureFixture[str],
    score: float | None,
    choice: str,
) -> None:
    make_run(tmp_path / "a", policy, score)
    for name in ("a", str(tmp_path / "a")):
        assert main(["eval", name, "--episodes", "2", "--runs", str(tmp_path)]) == 0
        assert capsys.readouterr().out.splitlines()[0] == f"{name}: {choice}"
    assert main(["eval", "a:latest", "--episodes", "2", "--runs", str(tmp_path)]) == 0
    assert "is its" not in capsys.readouterr().out


def test_files_tell_everything_when_they_are_asked_for(
    tmp_path: Path, policy: Policy, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "a", policy, 1.0, 2.0)
    record = PolicyStore(tmp_path / "files").save(
        policy, "mine", 7, 70, {"agent": {"hidden_size": 8}}
    )
    suite = {
        "simulations": {
            "pole/short": {"env": "CartPole-v1", "env_kwargs": {"max_episode_steps": 3}},
            "pole/whole": {"env": "CartPole-v1", "num_episodes": 5},
        }
    }
    file = write_yaml(tmp_path / "suite.yaml", suite)
    files = ["--csv", str(tmp_path / "scores.csv"), "--json", str(tmp_path / "scores.json")]
    words = ["eval", "a:v1", record.uri, "--suite", str(file), "--episodes", "12", *files]
    assert main([*words, "--runs", str(tmp_path), "--seed", "3"]) == 0
    printed = rows_of(capsys.readouterr().out)
    with (tmp_path / "scores.csv").open() as lines:
        table = list(csv.DictReader(lines))
    told = json.loads((tmp_path / "scores.json").read_text())["policies"]
    assert [row["name"] for row in table] == ["pole/short", "pole/whole", "pole"] * 2
    assert [row["policy"] for row in table] == ["a:v1"] * 3 + [record.uri] * 3
    for row, line in zip(table, printed[1:], strict=True):
        assert line[1:3] == [row["name"], shown_number(float(row["score"]))]
    # both policies are the same, so are their episodes
    assert [row["score"] for row in table[:3]] == [row["score"] for row in table[3:]]
    evaluator = PolicyEvaluator("CartPole-v1", EvaluationConfig(eval_episodes=12), seed=3)
    evaluator.evaluate(policy)
    assert evaluator.last is not None
    whole = told[0]["episodes"]["pole/whole"]
    assert whole["returns"] == evaluator.last.returns.tolist()
    assert told[0]["scores"]["pole"]["value"] == pytest.approx((3.0 + evaluator.last.mean) / 2)
    score, low, high = (float(table[1][name]) for name in ("score", "low", "high"))
    assert score == pytest.approx(evaluator.last.mean)
    assert low < score < high
    assert [(one["uri"], one["epoch"]) for one in told][1] == (record.uri, 7)


def test_simulations_that_do_not_fit_are_named_when_a_suite_allows_it(
    tmp_path: Path, policy: Policy, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "a", policy, 1.0)
    words = ["eval", "a", "--suite", "classic", "--episodes", "2", "--runs", str(tmp_path)]
    assert main([*words[:1], str(tmp_path / "a"), *words[2:]]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("epoch 1 (score 1)")
    assert [line.split()[1] for line in lines[2:4]] == ["classic/cartpole", "classic"]
    assert sum("does not play classic/" in line for line in lines) == 4


def test_one_environment_is_played_greedily_when_it_is_asked_for(
    tmp_path: Path, policy: Policy, capsys: pytest.CaptureFixture[str]
) -> None:
    record = PolicyStore(tmp_path).save(policy, "mine", 7, 70, {"agent": {"hidden_size": 8}})
    words = ["eval", record.uri, "--env", "CartPole-v1", "--episodes", "8"]
    file = tmp_path / "greedy.json"
    assert main([*words, "--greedy", "--json", str(file)]) == 0
    greedy = json.loads(file.read_text())["policies"][0]
    assert main([*words, "--json", str(file)]) == 0
    sampled = json.loads(file.read_text())["policies"][0]
    assert greedy["suite"]["simulations"]["env/CartPole-v1"]["greedy"] is True
    returns = [one["episodes"]["env/CartPole-v1"]["returns"] for one in (greedy, sampled)]
    evaluator = PolicyEvaluator("CartPole-v1", EvaluationConfig(eval_episodes=8))
    for found, likeliest in zip(returns, (True, False), strict=True):
        vec_env = make_vec_env("CartPole-v1", num_envs=8)
        expected = run_episodes(policy, vec_env, 8, seed=evaluator.seed, greedy=likeliest)
        vec_env.close()
        assert found == expected.returns.tolist()
    assert returns[0] != returns[1]


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ([], "give --env ID or --suite NAME|FILE"),
        (["--suite", "nothing"], "there is no suite 'nothing'"),
        (["--episodes", "0"], "--episodes 0; give 1 or more"),
        (["--suite", "classic", "--env", "CartPole-v1"], "give one of them"),
    ],
)
def test_the_error_says_what_to_give_when_it_is_not_clear_what_to_play(
    tmp_path: Path,
    policy: Policy,
    capsys: pytest.CaptureFixture[str],
    extra: list[str],
    words: str,
) -> None:
    record = PolicyStore(tmp_path).save(policy, "mine", 7, 70)
    assert main(["eval", record.uri, *extra]) == 2
    assert words in capsys.readouterr().err


def test_the_error_says_what_to_give_when_a_run_had_an_environment_without_an_id(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = make_policy(*spaces_of(CorridorEnv), AGENT)
    run = make_run(tmp_path / "a", own, 1.0)
    (run / "run.json").write_text(json.dumps({"own_environment": "CorridorEnv"}))
    assert main(["eval", "a:latest", "--runs", str(tmp_path)]) == 2
    assert "does not name its training task" in capsys.readouterr().err


def test_the_error_names_the_spaces_when_a_policy_fits_nothing(
    tmp_path: Path, policy: Policy, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "a", policy, 1.0)
    assert main(["eval", "a:best", "--env", "Pendulum-v1", "--runs", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert "fits no simulation of the suite 'env'" in error
    assert "Discrete(2)" in error


@pytest.mark.filterwarnings("default::metta.errors.MettaWarning")
def test_missing_episodes_are_shown_when_a_time_limit_ended_a_simulation(
    tmp_path: Path, policy: Policy, capsys: pytest.CaptureFixture[str]
) -> None:
    observation_space, action_space = spaces_of("CartPole-v1")

    class Endless(gymnasium.Env):
        """Every second environment never ends."""

        made = 0

        def __init__(self) -> None:
            self.observation_space, self.action_space = observation_space, action_space
            Endless.made += 1
            self.number = Endless.made

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return np.zeros(4, np.float32), {}

        def step(self, action: Any) -> Any:
            return np.zeros(4, np.float32), 1.0, self.number % 2 == 0, False, {}

    gymnasium.register("metta-test/Endless-v0", entry_point=Endless)
    record = PolicyStore(tmp_path).save(policy, "mine", 7, 70, {"agent": {"hidden_size": 8}})
    suite = {"simulations": {"a/b": {"env": "metta-test/Endless-v0", "max_seconds": 0.5}}}
    file = write_yaml(tmp_path / "suite.yaml", suite)
    try:
        assert main(["eval", record.uri, "--suite", str(file), "--episodes", "3"]) == 0
    finally:
        del gymnasium.registry["metta-test/Endless-v0"]
    told = capsys.readouterr()
    lines = told.out.splitlines()
    assert "1 of 3 episodes are missing" in told.err
    assert [line.split()[-2:] for line in lines[1:]] == [["1", "missing"]] * 2
