"""The documents that specified this library, where they are at hand: their code runs as it stands.

The folder is named by METTA_SEED_DOCS. Blocks that are valid Python are executed verbatim, in the order
of the page, with the names that they use bound to real and small objects. Blocks that are sketches are
compared by signature. Paths and names that the prose mentions must exist.
"""

import ast
import builtins
import functools
import importlib
import inspect
import os
import re
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch

import metta
from metta.agent.metta_agent import MettaAgent
from metta.curriculum import Curriculum
from metta.envs.factory import make_vec_env
from metta.rl.functional_trainer import default_training_step, maybe_save_policy
from metta.rl.hooks.base import EVENTS, TrainerHook
from metta.rl.learn.optimizer import make_optimizer
from metta.rl.ppo_trainer import PPOTrainer
from metta.rl.training_components import make_experience
from metta.rl.training_state import TrainerState
from metta.store.policy_store import PolicyStore
from metta.train.settings import apply_settings
from metta.train.train_config import EvaluationConfig, TrainerConfig, TrainingConfig

FOLDER = os.environ.get("METTA_SEED_DOCS")
pytestmark = pytest.mark.skipif(
    not FOLDER, reason="METTA_SEED_DOCS does not name the folder of the specification"
)
ROOT = Path(metta.__file__).parents[1]
NUM_DOCUMENTS, NUM_SKETCHES = 5, 7


@dataclass
class Block:
    page: int
    number: int
    code: str

    @property
    def is_python(self) -> bool:
        try:
            ast.parse(self.code)
        except SyntaxError:
            return False
        return True

    def __str__(self) -> str:
        return f"{self.page}-{self.number}"


def pages() -> list[str]:
    files = sorted(Path(FOLDER).glob("*.txt")) if FOLDER else []
    return [file.read_text(encoding="utf-8", errors="replace") for file in files]


def blocks() -> list[Block]:
    found = []
    for page, text in enumerate(pages()):
        for number, code in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL)):
            found.append(Block(page, number, code))
    return found


def sketches() -> list[Block]:
    return [block for block in blocks() if not block.is_python]


def test_the_documents_are_the_known_ones_when_they_are_read() -> None:
    assert len(pages()) == NUM_DOCUMENTS
    assert len(sketches()) == NUM_SKETCHES


SMALL = {
    "total_timesteps": 64,
    "num_envs": 2,
    "horizon": 8,
    "update_epochs": 1,
    "num_minibatches": 1,
    "hidden_size": 8,
    "verbose": False,
    "eval_episodes": 2,
    "checkpoint_interval": 2,
    "monitor_seconds": 0,
}


def many_envs() -> gymnasium.vector.VectorEnv:
    """So that a hundred thousand steps are few epochs."""
    return gymnasium.make_vec("CartPole-v1", 128, vectorization_mode="vector_entry_point")


class World:
    """Names that the blocks use and do not define, bound to real objects."""

    def __init__(self, folder: Path) -> None:
        whole = apply_settings(TrainingConfig(), SMALL)
        self.config = whole.trainer
        self.folder = folder
        self.vecenv = make_vec_env("CartPole-v1", num_envs=2)
        self.closing: list[Any] = [self.vecenv]
        self.policy = MettaAgent(self.vecenv, self.config, whole.agent)
        self.optimizer = make_optimizer(self.policy.parameters(), self.config.optimizer)
        self.experience = make_experience(self.policy, self.vecenv, self.config)
        self.global_config = whole

    def names(self) -> dict[str, Any]:
        return (
            self.library()
            | self.state()
            | self.run_names()
            | self.loop_names()
            | self.phase_names()
        )

    def library(self) -> dict[str, Any]:
        """What an import at the top of a page would bring."""
        modules = ["train.train_config", "rl.training_state", "rl.functional_trainer", "rl.trainer"]
        found: dict[str, Any] = {}
        for name in modules:
            module = importlib.import_module(f"metta.{name}")
            found |= {public: getattr(module, public) for public in module.__all__}
        found |= {name: getattr(metta, name) for name in metta.__all__}
        typing_names = {name: getattr(typing, name) for name in ("Any", "Dict", "List", "Optional")}
        return found | typing_names | {"dataclass": dataclass, "field": field, "torch": torch}

    def state(self) -> dict[str, Any]:
        return {
            "state": TrainerState(),
            "device": "cpu",
            "epoch": 1,
            "agent_step": 16,
            "metadata": {"score": 1.0},
            "policy": self.policy,
            "optimizer": self.optimizer,
            "vecenv": self.vecenv,
            "experience": self.experience,
            "env": many_envs(),
        }

    def run_names(self) -> dict[str, Any]:
        folders = {name: self.folder / name for name in ("checkpoints", "replays", "stats")}
        return {
            "trainer_config": self.config,
            "run_dir": self.folder / "run",
            "run_name": "run",
            "checkpoint_dir": folders["checkpoints"],
            "replay_dir": folders["replays"],
            "stats_dir": folders["stats"],
            "wandb_config": {"mode": "offline"},
            "global_config": self.global_config,
            "wandb_run": None,
            "stats_client": None,
            "cfg": self.global_config,
            "sim_config": EvaluationConfig(eval_episodes=2),
            "policy_store": PolicyStore(self.folder / "policies"),
        }

    def loop_names(self) -> dict[str, Any]:
        def custom_training_step(state: Any, components: Any, config: Any, experience: Any) -> Any:
            return default_training_step(state, components, config, experience)

        def a_loss(new_values: torch.Tensor) -> torch.Tensor:
            return 0.1 * new_values.square().mean()

        def another_loss(entropy: torch.Tensor) -> torch.Tensor:
            return -0.01 * entropy.mean()

        return {
            "config": self.config,
            "ppo_config": self.config.ppo,
            "agent": self.policy,
            "curriculum": Curriculum(self.config.curriculum),
            "custom_training_step": custom_training_step,
            "curiosity_loss": a_loss,
            "diversity_loss": another_loss,
            "my_custom_loss": a_loss,
            # what the body of a sketched loss would compute: depends on parameters, changes nothing
            "loss_tensor": 0 * sum(p.sum() for p in self.policy.parameters()),
        }

    def phase_names(self) -> dict[str, Any]:
        def trainer() -> PPOTrainer:
            made = PPOTrainer(None, many_envs(), n_epochs=1, num_minibatches=1, hidden_size=8)
            self.closing.append(made)
            return made

        first = trainer()
        data = first.collect_rollouts(8)
        torch.save(dict(data), "experience.pt")
        count = 5
        columns = {
            "obs": torch.randn(count, 4),
            "actions": torch.zeros(count, dtype=torch.int64),
            "old_logprobs": torch.full((count,), -0.7),
            "advantages": torch.randn(count),
            "returns": torch.randn(count),
            "values": torch.randn(count),
        }
        return columns | {
            "trainer": first,
            "existing_data": data,
            "workers": [trainer(), trainer()],
            "central_trainer": trainer(),
        }

    def close(self) -> None:
        for part in self.closing:
            part.close()


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore:MettaTrainer is deprecated:DeprecationWarning")
# one block trains with a store, and then builds parts over the same store: they resume that run
@pytest.mark.filterwarnings("ignore:.*holds this run already:metta.errors.MettaWarning")
@pytest.mark.parametrize("page", range(NUM_DOCUMENTS))
def test_every_block_runs_as_written_when_it_is_python(
    page: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for block in [block for block in blocks() if block.page == page and block.is_python]:
        world = World(tmp_path / str(block))
        namespace = world.names()
        module = types.ModuleType("document")  # dataclasses look their module up
        monkeypatch.setitem(__import__("sys").modules, "document", module)
        module.__dict__.update(namespace, __name__="document")
        _suit(block.code, world, module.__dict__)
        try:
            exec(compile(block.code, f"block {block}", "exec"), module.__dict__)
        finally:
            trainer = module.__dict__.get("trainer")
            if hasattr(trainer, "close"):
                trainer.close()
            world.close()


def _suit(code: str, world: World, namespace: dict[str, Any]) -> None:
    """Objects that only some blocks need: what stood on the page before them, or means another thing."""
    ppo = world.config.ppo
    if "ppo_optimizer." in code:
        namespace["ppo_optimizer"] = metta.PPOOptimizer(world.policy, world.optimizer, "cpu", ppo)
    if "PPOOptimizer(policy, optimizer, device, config)" in code:
        namespace["config"] = ppo
    if "PPOTrainer(policy, env)" in code and "100000" in code:
        # a hundred thousand steps in few updates
        settings = {"n_epochs": 1, "num_minibatches": 1}
        namespace["PPOTrainer"] = functools.partial(PPOTrainer, **settings)
    if "update(experience" in code and "collector.collect()" not in code:
        # the page collects before it learns
        metta.RolloutCollector(world.vecenv, world.policy, world.experience, "cpu").collect()


def definitions(code: str) -> dict[str, list[str]]:
    """Parameters of each function or method that a sketch defines, found without parsing it."""
    found = {}
    for match in re.finditer(r"def (\w+)\((.*?)\)\s*(?:->[^:\n]*)?(?::|\n|$)", code, re.DOTALL):
        text = re.sub(r"#[^\n]*", "", match[2])
        names = [re.split(r"[:=]", part)[0].strip() for part in _split(text)]
        found[match[1]] = [name for name in names if name and name not in ("self", "...")]
    return found


def _split(text: str) -> list[str]:
    depth, parts = 0, [""]
    for character in text:
        depth += {"[": 1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


HOMES = {
    "_maybe_save_policy": maybe_save_policy,
    "collect_rollouts": PPOTrainer.collect_rollouts,
    "learn": PPOTrainer.learn,
    "train": PPOTrainer.train,
}


@pytest.mark.parametrize("number", range(NUM_SKETCHES))
def test_signatures_agree_when_a_block_is_a_sketch(number: int) -> None:
    block = sketches()[number]
    classes = re.findall(r"class (\w+)\((\w+)\)", block.code)
    found = definitions(block.code)
    assert found
    for name, parameters in found.items():
        if classes:
            _check_hook(classes[0][0], name, parameters)
        elif name == "train" and "run_dir" in parameters:
            real = inspect.signature(importlib.import_module("metta.rl.trainer").train).parameters
            assert list(real)[: len(parameters)] == parameters
            _check_usage(block.code)
        elif "state" not in parameters:  # the form that was replaced takes the whole state
            real = inspect.signature(HOMES[name]).parameters
            assert [p for p in real if p != "self"][: len(parameters)] == parameters


def _check_hook(kind: str, name: str, parameters: list[str]) -> None:
    hook = getattr(importlib.import_module("metta.rl.hooks"), kind)
    assert issubclass(hook, TrainerHook)
    real = list(inspect.signature(getattr(hook, name)).parameters)
    if name == "__init__":
        assert real[1 : len(parameters) + 1] == parameters
    elif name in EVENTS:
        assert name in vars(hook), f"{kind} does not listen to {name}"
        assert set(parameters) <= set(EVENTS[name])


def _check_usage(code: str) -> None:
    """Calls inside the sketched `train`: every class exists and takes the arguments shown."""
    from metta.rl.clean_trainer import Trainer
    from metta.rl.hooks import CheckpointHook, EvaluationHook, MetricsHook

    config = TrainerConfig()
    inspect.signature(Trainer).bind(config, Curriculum(config.curriculum), None)
    inspect.signature(CheckpointHook).bind(
        None, config.checkpoint.checkpoint_interval, config.checkpoint.wandb_checkpoint_interval
    )
    inspect.signature(MetricsHook).bind(None, None, None, config.verbose)
    inspect.signature(EvaluationHook).bind(config.evaluation, Curriculum(config.curriculum))
    inspect.signature(MettaAgent).bind(None, None, None)
    for call in ("Curriculum", "MettaAgent", "Trainer", "CheckpointHook", "MetricsHook"):
        assert f"{call}(" in code


NOT_PATHS = {
    # a script of the older code base, whose duties are the command line's here
    "run.py",
}


def test_every_path_exists_when_a_document_names_it() -> None:
    mentioned = set()
    for text in pages():
        mentioned |= set(re.findall(r"`([\w./]+\.(?:py|md))`", text))
        mentioned |= set(re.findall(r"(?:^|[\s:`(])((?:metta|tests|examples)/[\w/]+\.py)", text))
    assert mentioned
    missing = [
        name
        for name in sorted(mentioned - NOT_PATHS)
        if not (ROOT / name).exists() and not list(ROOT.glob(f"metta/**/{name}"))
        and not (ROOT / "examples" / name).exists()
    ]  # fmt: skip
    assert missing == []


NOT_NAMES = {
    # words and placeholders of the prose, and deliverables that became pages and tests of this project
    "refactored_ppo_trainer", "ppo_refactoring_guide", "ppo_advanced_examples", "ppo_comparison",
    "test_refactored_ppo",
}  # fmt: skip


def known_names() -> set[str]:
    names: set[str] = set(dir(builtins))
    for path in (ROOT / "metta").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                names.add(node.name)
                names |= {
                    a.arg
                    for a in getattr(
                        node, "args", ast.arguments([], [], None, [], [], None, [])
                    ).args
                }
            elif isinstance(node, ast.Assign):
                names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
            elif isinstance(node, ast.Attribute):
                names.add(node.attr)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.add(node.target.id)
    return names


def test_every_name_exists_when_a_document_puts_it_in_code_type() -> None:
    mentioned = set()
    for text in pages():
        prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        for word in re.findall(r"`([A-Za-z_]\w*)(?:\(\))?`", prose):
            mentioned.add(word)
        mentioned |= set(
            re.findall(
                r"\*\*([A-Z]\w+(?:Manager|Hook|Collector|Optimizer|Evaluator|Checkpointer|Logger))\*\*",
                prose,
            )
        )
    assert len(mentioned) > 20
    assert sorted(mentioned - known_names() - NOT_NAMES) == []
