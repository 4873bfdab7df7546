"""Real compilers: what `test_drivers` shows of graphs holds for machine code, and runs resume exactly."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from metta.errors import DriverError, InexactResumeError
from metta.rl.compiled import cache as graph_cache
from metta.rl.compiled.cache import cache_folder, compile_graph, compiler_name
from metta.rl.compiled.choice import make_driver
from metta.rl.compiled.trace import trace
from metta.rl.learn.custom_losses import CustomLoss
from metta.rl.learn.driver import EagerDriver
from metta.rl.ppo_trainer import PPOTrainer
from tests.rl.update_cases import CASES, OwnNetwork, smooth

pytestmark = pytest.mark.skipif(compiler_name() is None, reason="needs a C++ compiler")

SETTINGS = {
    "num_envs": 4,
    "n_steps": 16,
    "n_epochs": 2,
    "num_minibatches": 2,
    "driver": "step",
    "verbose": True,
    "eval_episodes": 0,
}


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache that is cold at first, and warm from then on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("METTA_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield cache_folder()


def trainer(**changes: object) -> PPOTrainer:
    torch.manual_seed(5)
    settings = {**SETTINGS, **changes}
    return PPOTrainer(
        OwnNetwork(), "CartPole-v1", custom_losses=[CustomLoss(smooth, 0.5)], **settings
    )


def test_a_users_network_and_loss_agree_with_eager_updates_over_twenty(
    own_cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with trainer() as compiled, trainer(driver="eager") as eager:
        assert "compiling the update (" in capfd.readouterr().err
        assert compiled.plan.compiler == compiler_name()
        assert len(list(own_cache.glob("*.pt2"))) == 1
        for _ in range(20):
            rollout = eager.collect_rollouts()
            wanted, found = eager.learn(rollout), compiled.learn(rollout)
            assert {k: found[k] for k in wanted} == pytest.approx(wanted, rel=1e-5, abs=1e-5)
        pairs = zip(compiled.policy.parameters(), eager.policy.parameters(), strict=True)
        assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in pairs)


def test_nothing_is_compiled_when_the_cache_is_warm(
    own_cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = {path.name for path in own_cache.iterdir()}
    with trainer() as warm:
        warm.learn(warm.collect_rollouts())
        assert warm.plan.driver == "step"
    assert "compiling" not in capfd.readouterr().err
    assert {path.name for path in own_cache.iterdir()} == before


def test_a_resumed_run_is_equal_to_the_bit_when_its_updates_are_compiled(tmp_path: Path) -> None:
    with trainer() as whole:
        for _ in range(2):
            whole.learn(whole.collect_rollouts())
        whole.save(tmp_path)
        with trainer() as resumed:
            resumed.load(tmp_path)
            for _ in range(3):
                whole.learn(whole.collect_rollouts())
                resumed.learn(resumed.collect_rollouts())
            assert resumed.digest() == whole.digest()
        wrong = pytest.raises(InexactResumeError, match="driver was step, now eager")
        with trainer(driver="eager") as other, wrong:
            other.load(tmp_path)


def test_the_driver_of_the_checkpoint_is_taken_over_when_nobody_chose_one(tmp_path: Path) -> None:
    with trainer() as compiled:
        compiled.learn(compiled.collect_rollouts())
        compiled.save(tmp_path / "compiled")
        with trainer(driver="auto") as resumed:
            assert resumed.plan.driver == "auto"
            resumed.load(tmp_path / "compiled")
            assert (resumed.plan.driver, resumed.plan.compiler) == ("step", compiler_name())
            for run in (compiled, resumed):
                run.learn(run.collect_rollouts())
            assert resumed.digest() == compiled.digest()


def test_a_package_is_made_again_when_it_was_damaged(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = trace(lambda x: (x * 2.0,), [torch.ones(3)])
    trainer().close()
    sound = next(own_cache.glob("*.pt2"))
    made: list[Path] = []

    def copy_instead(graph: object, layouts: object, package: Path) -> None:
        made.append(package)
        shutil.copyfile(sound, package)
        graph_cache._digest_file(package).write_text(graph_cache.sha256_of(package))

    monkeypatch.setattr(graph_cache, "_compile", copy_instead)
    said: list[str] = []
    for damage in (b"", b"other bytes"):
        compile_graph(function, [torch.ones(3)], said.append)
        compile_graph(function, [torch.ones(3)], said.append)
        made[-1].write_bytes(damage)
    assert (len(made), len(said)) == (2, 2)
    made[-1].unlink()


def test_the_compilers_words_are_passed_on_when_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_cache, "_find_compiler", lambda: ("/bin/false", "g++ 0"))
    function = trace(lambda x: (x.tanh() * 3.0,), [torch.ones(3)])
    with pytest.raises(DriverError, match="the compiler failed"):
        compile_graph(function, [torch.ones(3)], lambda _: None)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_twenty_compiled_updates_agree_with_the_eager_ones_to_1e_5(name: str) -> None:
    case = CASES[name]
    eager = case.learner(case.policy(), EagerDriver)
    other = case.learner(case.policy(), lambda optimizer: make_driver("step", optimizer))
    for number, rollout in enumerate(case.rollouts(20)):
        wanted = eager.update(rollout, case.losses, progress=number / 20)
        found = other.update(rollout, case.losses, progress=number / 20)
        assert found == pytest.approx(wanted, rel=1e-5, abs=1e-5)
