"""The trainer itself: training, and events for whoever listens; nothing else."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import metta
from metta.curriculum import Curriculum
from metta.envs.toy import CorridorEnv
from metta.rl.clean_trainer import Trainer
from metta.rl.hooks.base import TrainerHook
from metta.train.settings import apply_settings
from metta.train.train_config import TrainingConfig

ROOT = Path(metta.__file__).parent
SMALL = {"total_timesteps": 64, "num_envs": 2, "horizon": 8, "hidden_size": 8, "verbose": False}
TRAINING = {
    "metta.agent", "metta.curriculum", "metta.envs", "metta.errors", "metta.ops", "metta.rl",
    "metta.seeding", "metta.sim", "metta.spaces", "metta.stateful", "metta.train", "metta.lazy",
}  # fmt: skip


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("name", ["rl/components/trainer.py", "rl/loop.py", "rl/clean_trainer.py"])
def test_only_training_modules_are_imported_when_the_trainer_is_read(name: str) -> None:
    own = {module for module in imports_of(ROOT / name) if module.startswith("metta")}
    assert {".".join(module.split(".")[:2]) for module in own} <= TRAINING
    for word in ("wandb", "tensorboard", "rich", "safetensors", "sqlite3", "ray"):
        assert not [module for module in imports_of(ROOT / name) if module.startswith(word)]


def loaded_after(*statements: str) -> list[list[str]]:
    """All modules that a new process has loaded, after each of the statements."""
    say = "print(json.dumps(sorted(sys.modules)))"
    code = "\n".join(["import json, sys", *(f"{one}\n{say}" for one in statements)])
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in run.stdout.splitlines()]


TRAIN = """
from metta.rl.trainer import train
from metta.train.train_config import RolloutConfig, TrainerConfig
train({!r}, TrainerConfig(
    total_timesteps=16, verbose=False, rollout=RolloutConfig(num_envs=2, horizon=8)))
"""


@pytest.fixture(scope="module")
def loaded_by_turns(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """What is loaded after the loop was imported, and then after a run."""
    folder = str(tmp_path_factory.mktemp("run"))
    return loaded_after("import metta.rl.loop", TRAIN.format(folder))


def test_no_store_logger_or_hook_is_loaded_when_the_loop_is_imported(
    loaded_by_turns: list[list[str]],
) -> None:
    loaded = loaded_by_turns[0]
    unwanted = (
        "metta.store", "metta.loggers", "wandb", "ray", "tensorboard", "rich", "psutil",
        "metta.rl.hooks.checkpoint", "metta.rl.hooks.metrics", "metta.rl.hooks.evaluation",
        "metta.rl.resume.checkpointer", "metta.rl.evaluate.evaluator", "metta.rl.stats",
    )  # fmt: skip
    assert [name for name in loaded if name.startswith(unwanted)] == []
    assert "metta.rl.hooks.registry" in loaded


@pytest.mark.parametrize(
    "statement",
    [
        "import metta",
        "import metta.train.train_config",
        "from metta.cli.main import build_parser; build_parser().format_help()",
    ],
)
def test_torch_is_not_loaded_when_it_is_not_needed(statement: str) -> None:
    [loaded] = loaded_after(statement)
    assert [name for name in loaded if name.split(".")[0] in ("torch", "gymnasium", "wandb")] == []


def test_wandb_is_not_loaded_when_a_run_does_without_it(loaded_by_turns: list[list[str]]) -> None:
    assert [
        name for name in loaded_by_turns[1] if name.split(".")[0] in ("wandb", "tensorboard", "ray")
    ] == []


class Counter(TrainerHook):
    def __init__(self) -> None:
        self.epochs: list[int] = []

    def on_epoch_end(self, trainer_state) -> None:
        self.epochs.append(trainer_state.epoch)


def test_training_runs_and_hooks_hear_of_it_when_they_are_added() -> None:
    counter = Counter()
    trainer = Trainer(apply_settings(TrainingConfig(), SMALL), Curriculum(env=CorridorEnv))
    trainer.add_hook(counter)
    trainer.train()
    trainer.cleanup()
    assert counter.epochs == [1, 2, 3, 4]


def test_nothing_is_written_when_there_is_no_run_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with Trainer(apply_settings(TrainingConfig(), SMALL)) as trainer:
        trainer.train()
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr() == ("", "")
