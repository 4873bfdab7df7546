import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from metta.profiling.profile_run import profile_run
from metta.rl.compiled import cache as graph_cache
from metta.rl.compiled import choice
from metta.rl.components.trainer import Trainer
from metta.train.presets import small_fast_config
from metta.train.settings import apply_settings
from metta.train.train_config import TrainingConfig

TINY = {"num_envs": 2, "horizon": 16, "num_minibatches": 1, "update_epochs": 1}
NO_COMPILER = "no C++ compiler was found"


def tiny(total_timesteps: int, **settings: Any) -> TrainingConfig:
    return apply_settings(
        small_fast_config(), {**TINY, "total_timesteps": total_timesteps, **settings}
    )


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METTA_COMPILE", "1")
    monkeypatch.setattr(graph_cache, "_find_compiler", lambda: ("", None))


@pytest.mark.usefixtures("no_compiler")
def test_a_long_run_is_set_up_once_and_says_how_when_it_is_profiled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile_run(tiny(100_000_000), tmp_path, epochs=1, warmup=1)
    shown = capsys.readouterr()
    assert shown.err.count(NO_COMPILER) == 1
    assert shown.out == ""  # no progress


@pytest.mark.usefixtures("no_compiler")
def test_a_short_run_is_set_up_as_one_when_the_profile_is_longer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(total_timesteps=64)  # two epochs; the profile has four
    batch = 32
    monkeypatch.setattr(choice, "_SECONDS_PER_MINIBATCH", 1.0)
    monkeypatch.setattr(choice, "_SECONDS_WORTH_COMPILING", 3.0)
    assert not choice.compile_pays_off(config.trainer, batch)
    assert choice.compile_pays_off(tiny(4 * batch).trainer, batch)
    found = profile_run(config, tmp_path, epochs=1, warmup=1)
    assert NO_COMPILER not in capsys.readouterr().err
    with Trainer(config) as trainer:
        assert trainer.components is not None
        trainer.components.conditions.complete_plan()
        assert found.conditions == trainer.components.plan.describe()


def test_workers_that_have_ended_have_no_memory_when_it_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    seen = psutil.Process(ended.pid)
    ended.communicate()
    monkeypatch.setattr(psutil.Process, "children", lambda *_, **__: [seen])
    assert profile_run(tiny(64), tmp_path, epochs=1, warmup=1).workers_rss_mib == 0.0
