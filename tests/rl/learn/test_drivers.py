"""Drivers do what the eager one does; here graphs are interpreted, `test_compiled_update` compiles them."""

import dataclasses
import io
import pickle
import warnings
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from metta.errors import ConfigError, DriverError, MettaWarning
from metta.rl.compiled import choice as driver_choice
from metta.rl.compiled import driver as compiled_driver
from metta.rl.compiled import worker as graph_worker
from metta.rl.compiled.choice import PlannedDriver, make_driver
from metta.rl.compiled.driver import CompiledDriver, python_state
from metta.rl.compiled.trace import TracedGraph, trace
from metta.rl.compiled.update_graph import gradients_only
from metta.rl.learn.custom_losses import CustomLoss
from metta.rl.learn.driver import EagerDriver
from metta.rl.learn.ppo import PPOOptimizer
from metta.rl.learn.update import UpdateRules
from metta.rl.ppo_trainer import PPOTrainer
from metta.rl.training_state import TrainerState
from tests.rl.update_cases import CASES, Case, Interpreted, OwnNetwork, smooth


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> type[Interpreted]:
    """Leave the compiler out: graphs run as they were traced."""
    monkeypatch.setattr(
        compiled_driver, "compile_graph", lambda graph, *_: Interpreted(graph), raising=True
    )
    Interpreted.made = 0
    return Interpreted


def largest_gap(left: PPOOptimizer, right: PPOOptimizer) -> float:
    pairs = zip(left.policy.parameters(), right.policy.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("interpreted")
def test_updates_agree_with_the_eager_ones_to_1e_5(name: str) -> None:
    case = CASES[name]
    eager = case.learner(case.policy(), EagerDriver)
    other = case.learner(case.policy(), lambda optimizer: make_driver("step", optimizer))
    for number, rollout in enumerate(case.rollouts(3)):
        wanted = eager.update(rollout, case.losses, progress=number / 3)
        found = other.update(rollout, case.losses, progress=number / 3)
        assert found == pytest.approx(wanted, rel=1e-5, abs=1e-5)
    assert largest_gap(eager, other) < 1e-5
    assert eager.policy.parameter_hash() != case.policy().parameter_hash()


def test_one_graph_serves_all_minibatches_of_a_shape(
    interpreted: type[Interpreted], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = []
    run = interpreted.__call__
    monkeypatch.setattr(interpreted, "__call__", lambda *a: counted.append(1) or run(*a))
    case = CASES["mlp"]
    learner = case.learner(case.policy(), lambda optimizer: make_driver("step", optimizer))
    for rollout in case.rollouts(3):
        learner.update(rollout)
    assert interpreted.made == 1
    assert len(counted) == 3 * 16 + 1  # and one comparison with the eager numbers


def test_nothing_is_learned_when_a_driver_prepares(interpreted: type[Interpreted]) -> None:
    case = CASES["mlp"]
    learner = case.learner(case.policy(), lambda optimizer: make_driver("step", optimizer))
    before = learner.policy.parameter_hash()
    learner.prepare(case.rollouts(1)[0])
    assert interpreted.made == 1
    assert learner.policy.parameter_hash() == before
    assert float(learner.optimizer.step_count) == 0.0


@pytest.mark.usefixtures("interpreted")
def test_a_wrong_graph_is_refused_when_it_is_first_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def off(graph: TracedGraph, *_: Any) -> Any:
        made = Interpreted(graph)

        class Off:
            held = made.held

            def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
                rows, *rest = made(tensors)
                return [rows * 1.01, *rest]

        return Off()

    monkeypatch.setattr(compiled_driver, "compile_graph", off)
    case = CASES["mlp"]
    learner = case.learner(case.policy(), lambda optimizer: make_driver("step", optimizer))
    before = learner.policy.parameter_hash()
    with pytest.raises(DriverError, match=r"form differs from Python's by .* use driver='eager'"):
        learner.update(case.rollouts(1)[0])
    assert learner.policy.parameter_hash() == before


class Wrong(OwnNetwork):
    """Does something that compiled code cannot do."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault, self.calls = fault, 0
        self.dropout = nn.Dropout(0.5)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        if self.fault == "looks" and torch.is_grad_enabled() and float(obs.sum()) > 0:
            obs = obs + 0.0
        if self.fault == "drops":
            obs = self.dropout(obs)
        if self.fault == "counts":
            self.calls += 1
        if self.fault == "changes a buffer" and torch.is_grad_enabled():
            self.scale.add_(1.0)
        return super().forward(obs)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("looks", "looks at the value of a tensor"),
        ("drops", "draws random numbers"),
        ("counts", "changes its plain Python values"),
        ("changes a buffer", "changes a buffer or its input"),
    ],
)
@pytest.mark.usefixtures("interpreted")
def test_the_reason_is_named_when_a_network_cannot_be_compiled(fault: str, message: str) -> None:
    case = Case(lambda: Wrong(fault))
    learner = case.learner(case.policy(), lambda optimizer: make_driver("step", optimizer))
    learner.policy.train()
    before = learner.policy.parameter_hash()
    with pytest.raises(DriverError, match=message):
        learner.update(case.rollouts(1)[0])
    assert learner.policy.parameter_hash() == before


@pytest.mark.parametrize("hook", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_hook_on_a_gradient_is_obeyed_because_such_updates_are_not_compiled(
    hook: str, interpreted: type[Interpreted]
) -> None:
    case = CASES["mlp"]
    learner = case.learner(case.policy(), lambda optimizer: make_driver("step", optimizer))
    getattr(next(learner.policy.parameters()), hook)(lambda _: None)
    with pytest.raises(DriverError, match=r"hook on its gradient.*use driver='eager'"):
        learner.update(case.rollouts(1)[0])
    assert not interpreted.made


def test_a_narrow_float_type_is_refused_before_anything_is_compiled(
    interpreted: type[Interpreted],
) -> None:
    with pytest.raises(DriverError, match=r"compute in torch\.bfloat16.*use driver='eager'"):
        PPOTrainer(None, "CartPole-v1", precision="bfloat16", driver="step")
    assert not interpreted.made


@pytest.mark.usefixtures("interpreted")
def test_a_changed_python_value_is_an_error_when_the_driver_was_asked_for() -> None:
    case = CASES["own_network"]
    learner = case.learner(case.policy(), lambda optimizer: make_driver("step", optimizer))
    first, second = case.rollouts(2)
    learner.update(first, case.losses)
    learner.policy.module.temperature = 2.0
    with pytest.raises(DriverError, match=r"temperature.*2\.0.*register_buffer"):
        learner.update(second, case.losses)


@pytest.mark.usefixtures("interpreted")
def test_buffers_are_read_anew_when_they_change_in_place() -> None:
    case = CASES["own_network"]
    eager = case.learner(case.policy(), EagerDriver)
    other = case.learner(case.policy(), lambda optimizer: make_driver("step", optimizer))
    for rollout in case.rollouts(3):
        for learner in (eager, other):
            learner.policy.module.scale.mul_(3.0)
        wanted, found = eager.update(rollout), other.update(rollout)
        assert found == pytest.approx(wanted, rel=1e-5, abs=1e-5)


@pytest.mark.usefixtures("interpreted")
def test_other_rollouts_run_eagerly_when_the_driver_was_planned() -> None:
    case = CASES["own_network"]
    rollouts = case.rollouts(3)

    def planned(optimizer: torch.optim.Optimizer) -> PlannedDriver:
        return PlannedDriver(CompiledDriver(optimizer), EagerDriver(optimizer))

    eager, other = case.learner(case.policy(), EagerDriver), case.learner(case.policy(), planned)
    other.prepare(rollouts[0], case.losses)
    made = Interpreted.made
    for learner in (eager, other):
        learner.policy.module.temperature = 0.5
    with pytest.warns(MettaWarning, match="such updates run eagerly"):
        found = other.update(rollouts[0], case.losses)
    assert found == pytest.approx(eager.update(rollouts[0], case.losses), abs=1e-6)
    half = {name: column[:8] for name, column in rollouts[1].items()}
    assert other.update(half) == pytest.approx(eager.update(half), abs=1e-6)
    assert Interpreted.made == made


def test_the_error_names_what_exists_when_a_driver_is_unknown() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(ConfigError, match="did you mean 'step'"):
        make_driver("steps", optimizer)


def test_the_error_names_the_compiler_when_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_driver, "compiler_name", lambda: None)
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(DriverError, match=r"no C\+\+ compiler here .* use driver='eager'"):
        make_driver("step", optimizer)


LONG = {"total_timesteps": 100_000_000, "num_envs": 2, "n_steps": 16, "hidden_size": 8}


@pytest.mark.usefixtures("interpreted")
def test_auto_compiles_when_the_run_is_long_and_says_so_in_the_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def planned(**settings: Any) -> tuple[str, bool]:
        with PPOTrainer(None, "CartPole-v1", **LONG | settings) as trainer:
            rollout = trainer.collect_rollouts()
            assert (trainer.plan.driver, trainer.plan.compiler) == ("auto", "")
            trainer.learn(rollout)
            return trainer.plan.driver, bool(trainer.plan.compiler)

    monkeypatch.setenv("METTA_COMPILE", "1")
    assert planned() == ("step", True)
    assert planned(total_timesteps=10_000) == ("eager", False)
    monkeypatch.setenv("METTA_COMPILE", "0")
    assert planned() == ("eager", False)


@pytest.mark.usefixtures("interpreted")
def test_auto_compiles_when_a_call_of_train_is_longer_than_the_settings_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("METTA_COMPILE", "1")

    def stop(state: TrainerState, _: dict[str, float]) -> None:
        state.request_stop("one epoch is enough")

    short = LONG | {"total_timesteps": 32}
    for total, driver in ((32, "eager"), (100_000_000, "step")):
        with PPOTrainer(None, "CartPole-v1", **short) as trainer:
            trainer.train(total, on_epoch_end=stop)
            assert trainer.plan.driver == driver
            trainer.train(100_000_000, on_epoch_end=stop)  # one plan for a whole run
            assert trainer.plan.driver == driver


@pytest.mark.usefixtures("interpreted")
def test_one_line_says_how_numbers_are_computed_when_training_begins(
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = LONG | {"total_timesteps": 64, "recipe": "none"}
    with PPOTrainer(None, "CartPole-v1", **settings) as trainer:
        assert capsys.readouterr().err == ""
        trainer.train()
        trainer.train()
        assert capsys.readouterr().err == f"metta: {trainer.plan.describe()}\n"
    with PPOTrainer(None, "CartPole-v1", **LONG, verbose=False) as trainer:
        trainer.train(32)
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("trained", [False, True])
def test_nothing_is_compiled_when_the_run_that_goes_on_was_eager(
    trained: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METTA_COMPILE", "1")
    with PPOTrainer(None, "CartPole-v1", **LONG | {"total_timesteps": 64}) as trainer:
        if trained:
            trainer.train(32)
        trainer.save(tmp_path)
    Interpreted.made = 0
    with PPOTrainer(None, "CartPole-v1", **LONG) as trainer:
        trainer.load(tmp_path)
        trainer.learn(trainer.collect_rollouts())
        # a run that was saved before its first update has no driver yet
        assert trainer.plan.driver == ("eager" if trained else "step")
        assert Interpreted.made == (0 if trained else 1)


def test_auto_says_in_one_line_when_no_compiler_is_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("METTA_COMPILE", "1")
    monkeypatch.setattr(driver_choice, "compiler_name", lambda: None)
    with PPOTrainer(None, "CartPole-v1", **LONG) as trainer:
        trainer.learn(trainer.collect_rollouts())
        assert trainer.plan.driver == "eager"
    said = [line for line in capsys.readouterr().err.splitlines() if "compiler" in line]
    assert len(said) == 1


@pytest.mark.usefixtures("interpreted")
def test_auto_runs_eagerly_and_says_why_when_a_network_cannot_be_compiled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("METTA_COMPILE", "1")
    with PPOTrainer(Wrong("looks"), "CartPole-v1", **LONG) as trainer:
        trainer.learn(trainer.collect_rollouts())
        assert trainer.plan.driver == "eager"
    assert "updates run eagerly: " in capsys.readouterr().err


class WithoutInputs(OwnNetwork):
    """Has a layer without a number."""

    def __init__(self) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch finds nothing to initialise
            self.none = nn.Linear(0, 2)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        logits, value = super().forward(obs)
        return logits + self.none(obs[..., :0]), value


@pytest.mark.usefixtures("interpreted")
def test_auto_compiles_when_a_layer_has_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METTA_COMPILE", "1")
    with PPOTrainer(WithoutInputs(), "CartPole-v1", **LONG) as trainer:
        trainer.learn(trainer.collect_rollouts())
        assert trainer.plan.driver == "step"


@pytest.mark.usefixtures("interpreted")
def test_the_choice_stays_open_when_the_compiler_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METTA_COMPILE", "1")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with PPOTrainer(None, "CartPole-v1", **LONG) as trainer:
        with monkeypatch.context() as patch:
            patch.setattr(compiled_driver, "compile_graph", interrupt)
            with pytest.raises(KeyboardInterrupt):
                trainer.train(32)
        assert (trainer.plan.driver, trainer.ppo.driver.kind) == ("auto", "eager")
        assert trainer.state.train_call == 0  # so that a script which runs again skips no call
        trainer.train(32)
        assert (trainer.plan.driver, trainer.state.train_call) == ("step", 1)
        trainer.save(tmp_path)
        with PPOTrainer(None, "CartPole-v1", **LONG) as resumed:
            resumed.load(tmp_path)
            for each in (trainer, resumed):
                each.learn(each.collect_rollouts())
            assert resumed.plan.driver == "step"
            assert resumed.policy.parameter_hash() == trainer.policy.parameter_hash()


def test_python_state_sees_what_a_loss_closes_over() -> None:
    weight, table = 1.0, {"deep": [1.0]}

    def loss(new_values: Tensor) -> Tensor:
        return new_values.mean() * weight * table["deep"][0]

    case = CASES["mlp"]
    learner = case.learner(case.policy(), EagerDriver)
    custom = dataclasses.replace(CASES["own_network"].losses[0], fn=loss)

    def state() -> object:
        rules = UpdateRules(learner.policy, learner.config, (custom,))
        return python_state(rules, learner.optimizer)

    seen = [state(), state()]
    assert seen[0] == seen[1]
    weight = 2.0
    seen.append(state())
    table["deep"][0] = 3.0
    seen.append(state())
    learner.optimizer.param_groups[0]["eps"] = 0.1
    seen.append(state())
    learner.config = dataclasses.replace(learner.config, target_kl=0.5)
    seen.append(state())
    assert all(before != after for before, after in pairwise(seen[1:]))
    learner.learning_rate = 0.5
    assert state() == seen[-1]


class Scaled:
    """A loss that is a method."""

    scale = 1.0

    def loss(self, new_values: Tensor) -> Tensor:
        return new_values.mean() * self.scale


def test_python_state_sees_the_object_of_a_loss_that_is_a_method() -> None:
    case, scaled = CASES["mlp"], Scaled()
    learner = case.learner(case.policy(), EagerDriver)
    rules = UpdateRules(learner.policy, learner.config, (CustomLoss(scaled.loss),))
    before = python_state(rules, learner.optimizer)
    assert python_state(rules, learner.optimizer) == before
    scaled.scale = 2.0
    assert python_state(rules, learner.optimizer) != before


class Weight:
    """A loss that is an object, and keeps a weight of its own."""

    def __init__(self) -> None:
        self.scale = nn.Parameter(torch.ones(()))

    def __call__(self, new_values: Tensor) -> Tensor:
        return new_values.mean() * self.scale


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("name", ["mlp", "sgd"])
def test_numbers_that_leave_torch_are_noticed_when_they_come_back_as_constants(name: str) -> None:
    def through_numpy(new_values: Tensor) -> Tensor:
        return (new_values * torch.from_numpy(new_values.detach().numpy())).mean()

    case = CASES[name]
    learner = case.learner(case.policy(), lambda optimizer: make_driver("step", optimizer))
    with pytest.raises(DriverError, match="differs from Python's"):
        learner.update(case.rollouts(1)[0], [CustomLoss(through_numpy, 1.0)])


@pytest.mark.usefixtures("interpreted")
def test_parameters_that_would_get_no_gradient_are_refused() -> None:
    case = CASES["mlp"]
    policy = case.policy()
    weights = list(policy.parameters())

    def decay(new_values: Tensor) -> Tensor:
        return 0.0 * new_values.mean() + sum(w.square().sum() for w in weights)

    for loss in (decay, Weight()):
        learner = case.learner(policy, lambda optimizer: make_driver("step", optimizer))
        with pytest.raises(DriverError, match="its gradient would be lost"):
            learner.update(case.rollouts(1)[0], [CustomLoss(loss, name="own")])


@pytest.mark.usefixtures("interpreted")
def test_frozen_parameters_stay_when_an_optimizer_of_torch_holds_them() -> None:
    case = CASES["sgd"]
    policy = case.policy()
    first = next(policy.parameters())
    first.requires_grad_(False)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    driver = make_driver("step", optimizer)
    learner = PPOOptimizer(policy, optimizer, "cpu", case.ppo, driver=driver)
    before = first.clone(), policy.parameter_hash()
    learner.update(case.rollouts(1)[0])
    assert torch.equal(first, before[0])
    assert policy.parameter_hash() != before[1]


@pytest.mark.usefixtures("interpreted")
def test_metrics_after_a_stop_do_not_count_when_updates_are_compiled() -> None:
    case = dataclasses.replace(CASES["kl_stop"], losses=(CustomLoss(smooth),))
    kinds = ("eager", "step")
    learners = [case.learner(case.policy(), lambda o, k=kind: make_driver(k, o)) for kind in kinds]
    stopped = 0.0
    for rollout in case.rollouts(4):
        found = [learner.update(rollout, case.losses) for learner in learners]
        stopped += found[0]["kl_stopped"]
        for other in found[1:]:
            assert other["custom/smooth"] == pytest.approx(found[0]["custom/smooth"], rel=1e-5)
    assert stopped


def test_a_function_that_looks_at_numbers_cannot_be_traced() -> None:
    with pytest.raises(DriverError, match="looks at the value"):
        trace(lambda x: x + 1 if float(x) > 0 else x, [torch.ones(())])
    with pytest.raises(DriverError, match="cannot be recorded: KeyError: 'a'"):
        trace(lambda x: {"b": x}["a"], [torch.ones(())])
    assert smooth(torch.ones(2), torch.ones(2))[0] == 0.0


def test_attention_is_refused_only_when_it_drops_something() -> None:
    queries = torch.rand(1, 1, 4, 8)

    def attend(x: Tensor, drop: float = 0.0) -> tuple[Tensor]:
        return (nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=drop),)

    graph = trace(attend, [queries])
    torch.testing.assert_close(graph.module(queries), attend(queries))
    with pytest.raises(DriverError, match="draws random numbers"):
        trace(lambda x: attend(x, 0.5), [queries])


def test_the_networks_own_parameters_are_back_when_a_traced_function_fails() -> None:
    case = CASES["mlp"]
    learner = case.learner(case.policy(), EagerDriver)
    before = [id(parameter) for parameter in learner.policy.parameters()]
    rules = UpdateRules(learner.policy, case.ppo, ())
    function = gradients_only(rules, learner.optimizer.parameters, ["values"])
    values = [parameter.detach() for parameter in learner.policy.parameters()]
    with pytest.raises(KeyError):
        function.call(torch.arange(2), *torch.zeros(4).unbind(), torch.zeros(4, 4), *values)
    assert [id(parameter) for parameter in learner.policy.parameters()] == before


def test_the_worker_compiles_what_its_parent_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = trace(lambda x, y: (x * y,), [torch.ones(3), torch.ones(2, 3).t()[:, 0]])
    layouts = [((3,), (1,), torch.float32, "cpu"), ((3,), (1,), torch.float32, "cpu")]
    sent = io.BytesIO(pickle.dumps((graph.module, layouts, torch.get_num_threads())))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(sent))
    made: list[Any] = []
    monkeypatch.setattr(
        torch._inductor, "aoti_compile_and_package", lambda *a, **o: made.append((a[0], o))
    )
    graph_worker.main("where.pt2")
    exported, options = made[0]
    headers = {"aot_inductor.precompile_headers": False}  # they would lie in a shared folder
    assert options == {"package_path": "where.pt2", "inductor_configs": headers}
    found = exported.module()(torch.full((3,), 2.0), torch.full((3,), 5.0))
    assert found[0].tolist() == [10.0, 10.0, 10.0]
