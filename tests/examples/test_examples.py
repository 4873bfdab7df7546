"""Whatever the examples folder holds runs as it stands, and prints what it promises."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from metta.replays.file import load_replay

FOLDER = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.name for path in FOLDER.glob("*.py"))
SMALL = {
    "ab_collection.py": ["--steps", "2048", "--seeds", "2"],
    "curriculum_learning.py": ["--steps", "2048"],
    "custom_network_and_loss.py": ["--steps", "4096"],
    "direct_training_with_components.py": ["--steps", "2048"],
    "distributed_collection.py": ["--steps", "2048"],
    "experience_replay.py": ["--steps", "2048"],
    "functional_training_example.py": ["--steps", "4096"],
    "gather_together.py": ["--steps", "8192", "--replay", "episode.replay"],
    "inspect_rollout.py": ["--steps", "512", "--plot", "values.png"],
    "offline_learning.py": ["--steps", "2048"],
    "resume_exactly.py": ["--steps", "1024"],
    "structured_config_training.py": ["--steps", "1024"],
}
MAX_LINES = 80


class Runner:
    """Runs an example in an empty folder; returns what it printed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, name: str) -> str:
        path = str(FOLDER / name)
        self.monkeypatch.setattr(sys, "argv", [path, *SMALL[name]])
        runpy.run_path(path, run_name="__main__")
        return self.capsys.readouterr().out


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Runner:
    monkeypatch.chdir(tmp_path)
    return Runner(monkeypatch, capsys)


def numbers(pattern: str, text: str) -> list[float]:
    return [float(found) for found in re.findall(pattern, text)]


def test_sizes_are_known_when_an_example_exists() -> None:
    assert sorted(SMALL) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_an_example_stays_readable_when_it_grows(name: str) -> None:
    lines = (FOLDER / name).read_text().splitlines()
    assert len(lines) <= MAX_LINES
    assert f"python examples/{name} [--steps N]" in "\n".join(lines[:15])


def test_the_loop_runs_to_its_goal_when_parts_are_used_directly(run: Runner) -> None:
    assert "done: 2048 steps" in run("direct_training_with_components.py")


def test_predictions_get_better_when_the_network_has_a_loss_of_its_own(run: Runner) -> None:
    first, last = re.findall(r"[\d.]+", run("custom_network_and_loss.py").splitlines()[-1])
    assert float(last) < float(first)


def test_predictions_get_better_when_curiosity_trains_along(run: Runner) -> None:
    out = run("functional_training_example.py")
    errors = numbers(r"prediction error ([\d.]+)", out)
    shares = numbers(r"share of right ([\d.]+)", out)
    assert len(errors) == 4
    assert errors[-1] < errors[0]
    assert shares[-1] > shares[0]
    assert "best possible -0.40" in out


def test_a_run_can_be_found_again_when_it_came_from_a_typed_configuration(run: Runner) -> None:
    out = run("structured_config_training.py")
    assert "from a dict: clip 0.1" in out
    assert "refused: 2 problems" in out
    assert re.search(r"set by: \S+mine\.yaml:\d+", out)
    assert "trained 1,024 steps" in out
    (trained,), (stored,) = numbers(r"; score ([\d.]+)", out), numbers(r", score ([\d.]+)", out)
    assert trained == stored


def test_workers_collect_when_collection_is_distributed(tmp_path: Path) -> None:
    script = FOLDER / "distributed_collection.py"  # its workers import it: a program of its own
    result = subprocess.run(
        [sys.executable, str(script), *SMALL[script.name]],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("1024 steps of 2 workers") == 2


def test_the_last_rollout_is_described_when_learning_is_offline(run: Runner) -> None:
    assert "rollout of 128 steps x 8 rows, 1024 valid" in run("offline_learning.py")


def test_two_runs_are_equal_when_one_of_them_failed_and_was_run_again(run: Runner) -> None:
    out = run("resume_exactly.py")
    assert "'Failure' failed in on_rollout_end at epoch 3" in out
    first, failed, again = numbers(r"begins at epoch (\d+)", out)
    assert first == failed == 0
    assert again in (2, 3)  # of its interval, or of the copy that was in memory
    whole, resumed = re.findall(r"run(?: that was left alone)?: +([0-9a-f]{16})", out)
    assert whole == resumed
    assert "equal, to the bit, after each of 4 epochs" in out


def test_old_rollouts_add_updates_when_they_are_replayed(run: Runner) -> None:
    out = run("experience_replay.py")
    assert numbers(r"(\d+) updates", out) == [2, 3, 2]
    assert numbers(r": (\d+) steps", out) == [2048, 2048, 2048]
    assert all(score > 8 for score in numbers(r"score ([\d.]+)", out))


def test_the_goal_moves_away_when_the_curriculum_adapts(run: Runner) -> None:
    out = run("curriculum_learning.py")
    (adaptive,), (fixed,) = (
        numbers(rf"  {kind}: goal at (\d+)", out) for kind in ("adaptive", "fixed")
    )
    assert 4 < adaptive <= 23
    assert fixed == 23
    assert "fixed: goal at 23, 0% arrive" in out


def test_every_world_is_evaluated_and_one_episode_kept_when_agents_gather(
    run: Runner, tmp_path: Path
) -> None:
    out = run("gather_together.py")
    scores = re.findall(r"^(grid\S*) +\S+ -> +(\S+) \((\S+) to (\S+)\)$", out, re.MULTILINE)
    assert [name for name, *_ in scores] == [
        "grid/open", "grid/scarce", "grid/walls", "grid/empty", "grid",
    ]  # fmt: skip
    assert all(float(low) <= float(score) <= float(high) for _, score, low, high in scores)
    assert load_replay(tmp_path / "episode.replay").info.num_steps == 128


def test_the_conclusion_follows_from_the_numbers_when_strategies_are_compared(run: Runner) -> None:
    out = run("ab_collection.py")
    assert len(numbers(r"steps: mean ([\d.]+)", out)) == 2
    ((difference, error),) = re.findall(
        r"B - A: ([+-][\d.]+) with a standard error of ([\d.]+)", out
    )
    shown = abs(float(difference)) > 3 * float(error)
    assert ("no difference was shown" in out) != shown


def test_broken_data_is_found_and_refused_when_a_rollout_is_inspected(
    run: Runner, tmp_path: Path
) -> None:
    out = run("inspect_rollout.py")
    assert "rollout of 64 steps x 8 rows" in out
    assert "broken on purpose: column 'rewards' holds 1 NaN" in out
    assert "learn() refuses it: column 'rewards' is not finite at step 3, row 5" in out
    assert re.search(r"repaired: policy loss -?\d", out)
    assert (tmp_path / "values.png").stat().st_size > 0
