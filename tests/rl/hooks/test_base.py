"""The contract of hooks: which events they hear, with which values, and what their failures do."""

import functools
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from metta.errors import HookError, MettaWarning
from metta.rl.hooks.base import EVENTS, TrainerHook
from metta.rl.hooks.registry import HookRegistry
from metta.rl.training_state import TrainerState

EXTRAS = {
    "rollout_stats": {"episode_return": [1.0]},
    "experience": "buffer",
    "losses_stats": {"policy_loss": 0.5},
    "checkpoint": "snapshot",
    "reason": "done",
    "exc": ValueError("x"),
}


def registry() -> HookRegistry:
    state = TrainerState(agent_step=1280, epoch=3)
    return HookRegistry(state, "policy", "optimizer", "config", "registry", "wandb", "client")


def fire(hooks: HookRegistry, event: str) -> Any:
    """The event with everything it offers, through the way in which the loop fires it."""
    if event == "on_exception":
        return hooks.fire_exception(EXTRAS["exc"])
    if event == "close":
        return hooks.close()
    return hooks.fire(event, **{k: v for k, v in EXTRAS.items() if k in EVENTS[event]})


def hook_with(event: str, method: Callable[..., Any]) -> TrainerHook:
    return type("Mine", (TrainerHook,), {event: method})()


def test_every_lifecycle_method_exists_when_a_hook_is_made() -> None:
    hook = TrainerHook()
    for event in EVENTS:
        assert getattr(hook, event)() is None


@pytest.mark.parametrize("event", EVENTS)
def test_every_value_arrives_when_a_hook_names_it(event: str) -> None:
    hooks, seen = registry(), {}
    hooks.add(hook_with(event, lambda self, **offers: seen.update(offers)))
    fire(hooks, event)
    assert set(seen) == set(EVENTS[event])
    assert seen["trainer_state"] is hooks.state
    assert (seen["policy"], seen["wandb_run"], seen["stats_client"]) == (
        "policy",
        "wandb",
        "client",
    )
    assert seen["eval_scores"] is hooks.state.eval_scores
    for name in EVENTS[event]:
        if name in EXTRAS and event != "close":
            assert seen[name] is EXTRAS[name]


SIGNATURES = {
    "metrics": lambda self, losses_stats, experience, policy, optimizer, trainer_state: None,
    "checkpoint": lambda self, policy, optimizer, trainer_state, eval_scores, wandb_run: None,
    "evaluation": lambda self, checkpoint_hook, trainer_state, stats_client, wandb_run: None,
    "nothing": lambda self: None,
    "everything": lambda self, *args, **offers: None,
    "keyword only": lambda self, *, trainer_state: None,
    "positional only": lambda self, policy, trainer_state, /: None,
    "default": lambda self, trainer_state=None: None,
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_any_signature_works_when_it_names_what_is_offered(name: str) -> None:
    hooks, calls = registry(), []
    method = SIGNATURES[name]

    @functools.wraps(method)
    def recorded(*args: Any, **kwargs: Any) -> None:
        calls.append(method(*args, **kwargs))

    hooks.add(hook_with("on_epoch_end", recorded))
    fire(hooks, "on_epoch_end")
    assert calls == [None]


def test_values_are_not_swapped_when_parameters_are_positional_only() -> None:
    hooks, seen = registry(), []

    def swapped(self: Any, optimizer: str, policy: str, /) -> None:
        seen.append((optimizer, policy))

    hooks.add(hook_with("on_epoch_end", swapped))
    fire(hooks, "on_epoch_end")
    assert seen == [("optimizer", "policy")]


def test_static_class_and_instance_methods_are_heard_when_hooks_are_odd() -> None:
    heard: list[str] = []

    class Odd(TrainerHook):
        @staticmethod
        def on_epoch_start(trainer_state: TrainerState) -> None:
            heard.append(f"static {trainer_state.epoch}")

        @classmethod
        def on_rollout_start(cls, policy: str) -> None:
            heard.append(f"class {policy}")

    odd = Odd()
    odd.on_rollout_end = lambda rollout_stats: heard.append("instance")
    duck = SimpleNamespace(on_epoch_start=functools.partial(heard.append, "duck"))
    hooks = registry()
    hooks.add(odd)
    hooks.add(duck)
    for event in ("on_epoch_start", "on_rollout_start", "on_rollout_end"):
        fire(hooks, event)
    assert heard == ["static 3", "duck", "class policy", "instance"]


@pytest.mark.parametrize("event", EVENTS)
def test_a_wrong_parameter_is_refused_when_the_hook_is_added(event: str) -> None:
    hooks = registry()
    with pytest.raises(HookError, match=f"Mine.{event} asks for 'trainer_stat'.*'trainer_state'"):
        hooks.add(hook_with(event, lambda self, trainer_stat: None))
    with pytest.raises(HookError, match="trainer_stat"):
        hooks.add(hook_with(event, lambda self, trainer_stat=None: None))
    assert len(hooks) == 0


def test_a_value_of_another_event_is_refused_when_the_hook_is_added() -> None:
    with pytest.raises(HookError, match="'losses_stats', which this event does not offer"):
        registry().add(hook_with("on_rollout_end", lambda self, losses_stats: None))


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        (
            hook_with("on_epoch_ends", lambda self: None),
            "on_epoch_ends is not an event.*'on_epoch_end'",
        ),
        (TrainerHook(), "TrainerHook handles no event"),
        (object(), "object handles no event"),
        (TrainerHook, "TrainerHook is a class; add an instance"),
        (SimpleNamespace(on_epoch_end=max), "on_epoch_end has no readable signature"),
        (SimpleNamespace(on_epoch_end=3), "on_epoch_end is a int, not a method"),
        (SimpleNamespace(on_epoch_end=lambda: 0, on_error="ignore"), "on_error is 'ignore'"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_added(hook: Any, message: str) -> None:
    with pytest.raises(HookError, match=message):
        registry().add(hook)


def test_a_hook_is_refused_when_it_is_added_twice() -> None:
    hooks, hook = registry(), hook_with("close", lambda self: None)
    hooks.add(hook)
    with pytest.raises(HookError, match="registered already"):
        hooks.add(hook)


def ordered(label: str, order: int, heard: list[str]) -> TrainerHook:
    hook = hook_with("on_epoch_end", lambda self: heard.append(label))
    type(hook).order = order
    type(hook).close = lambda self: heard.append(f"close {label}")
    return hook


def test_hooks_are_called_by_order_and_closed_in_reverse_when_there_are_several() -> None:
    hooks, heard = registry(), []
    for label, order in [("metrics", 90), ("a", 50), ("checkpoint", 10), ("b", 50)]:
        hooks.add(ordered(label, order, heard))
    fire(hooks, "on_epoch_end")
    assert heard == ["checkpoint", "a", "b", "metrics"]
    heard.clear()
    hooks.close()
    hooks.close()
    assert heard == ["close metrics", "close b", "close a", "close checkpoint"]


def test_hooks_are_closed_again_when_another_training_opens_them() -> None:
    hooks, heard = registry(), []
    hooks.add(ordered("a", 1, heard))
    hooks.close()
    hooks.open()
    hooks.close()
    assert heard == ["close a", "close a"]


@pytest.mark.parametrize("event", [e for e in EVENTS if e not in ("on_exception", "close")])
def test_the_error_names_hook_event_and_step_when_a_hook_fails(event: str) -> None:
    def fail(self: Any) -> None:
        raise ZeroDivisionError("boom")

    hooks = registry()
    hooks.add(hook_with(event, fail))
    with pytest.raises(HookError) as caught:
        fire(hooks, event)
    for part in ("'Mine'", event, "epoch 3", "step 1,280", "ZeroDivisionError: boom"):
        assert part in str(caught.value)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(("mode", "calls"), [("warn", 2), ("disable", 1)])
def test_training_goes_on_when_a_hook_asks_for_it(mode: str, calls: int) -> None:
    heard: list[int] = []

    def fail(self: Any) -> None:
        heard.append(1)
        raise ValueError("boom")

    hooks, hook = registry(), hook_with("on_epoch_end", fail)
    hook.on_error = mode
    hooks.add(hook)
    with pytest.warns(MettaWarning, match=r"'Mine' failed in on_epoch_end .*ValueError: boom"):
        fire(hooks, "on_epoch_end")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MettaWarning)
        fire(hooks, "on_epoch_end")
    assert len(heard) == calls


def test_an_interrupt_passes_when_it_comes_inside_a_hook() -> None:
    def interrupt(self: Any) -> None:
        raise KeyboardInterrupt

    hooks = registry()
    hooks.add(hook_with("on_epoch_end", interrupt))
    with pytest.raises(KeyboardInterrupt):
        fire(hooks, "on_epoch_end")


def test_the_first_exception_is_kept_when_hooks_fail_while_it_is_reported() -> None:
    heard: list[str] = []

    def fail(self: Any) -> None:
        raise ValueError("second")

    hooks, first = registry(), RuntimeError("first")
    hooks.add(hook_with("on_exception", fail))
    hooks.add(hook_with("on_exception", lambda self, exc: heard.append(str(exc))))
    hooks.add(hook_with("close", fail))
    hooks.add(hook_with("close", lambda self: heard.append("closed")))
    hooks.fire_exception(first)
    hooks.close(first)
    assert heard == ["first", "closed"]
    assert len(first.__notes__) == 2
    assert "ValueError: second" in first.__notes__[0]


def test_every_hook_is_closed_when_one_of_them_fails_to_close() -> None:
    heard: list[str] = []

    def fail(self: Any) -> None:
        raise ValueError("stuck")

    hooks = registry()
    hooks.add(hook_with("close", lambda self: heard.append("first")))
    hooks.add(hook_with("close", fail))
    with pytest.raises(HookError, match="failed in close"):
        hooks.close()
    assert heard == ["first"]


def test_a_disabled_hook_is_deaf_but_closed_when_training_ends() -> None:
    hooks, heard = registry(), []
    name = hooks.add(ordered("a", 1, heard))
    hooks.disable(name)
    fire(hooks, "on_epoch_end")
    assert heard == []
    hooks.enable(name)
    fire(hooks, "on_epoch_end")
    hooks.disable(name)
    hooks.close()
    assert heard == ["a", "close a"]


def test_changes_count_from_the_next_event_when_a_hook_makes_them() -> None:
    hooks, heard = registry(), []
    late = ordered("late", 60, heard)
    removed = ordered("removed", 70, heard)

    def change(self: Any) -> None:
        if late not in hooks:
            hooks.add(late)
            hooks.remove(removed)

    hooks.add(hook_with("on_epoch_end", change))
    hooks.add(removed)
    fire(hooks, "on_epoch_end")
    assert heard == ["close removed"]
    heard.clear()
    fire(hooks, "on_epoch_end")
    assert heard == ["late"]


def test_the_old_hook_is_closed_and_the_new_one_heard_when_it_is_replaced() -> None:
    hooks, heard = registry(), []
    name = hooks.add(ordered("old", 1, heard))
    hooks.replace(name, ordered("new", 1, heard))
    fire(hooks, "on_epoch_end")
    assert heard == ["close old", "new"]


def test_nothing_changes_when_a_replacement_is_refused() -> None:
    hooks, heard = registry(), []
    name = hooks.add(ordered("old", 1, heard))
    with pytest.raises(HookError, match="handles no event"):
        hooks.replace(name, TrainerHook())
    with pytest.raises(HookError, match=r"no hook 'Min' is registered.*did you mean 'Mine'"):
        hooks.replace("Min", ordered("new", 1, heard))
    fire(hooks, "on_epoch_end")
    assert heard == ["old"]


def test_names_differ_when_hooks_are_of_one_class() -> None:
    hooks = registry()
    names = [hooks.add(hook_with("close", lambda self: None)) for _ in range(3)]
    assert names == ["Mine", "Mine#2", "Mine#3"]


def test_the_table_shows_order_events_and_whether_hooks_are_enabled() -> None:
    hooks, heard = registry(), []
    hooks.add(ordered("a", 90, heard))
    hooks.disable(hooks.add(hook_with("on_rollout_end", lambda self: None)))
    lines = hooks.describe().splitlines()
    assert lines[0].split() == ["order", "hook", "on", "error", "enabled", "events"]
    assert lines[1].split() == ["50", "Mine#2", "raise", "no", "on_rollout_end"]
    assert lines[2].split() == ["90", "Mine", "raise", "yes", "on_epoch_end,", "close"]


def test_the_checkpoint_hook_is_offered_when_one_is_registered() -> None:
    hooks, seen = registry(), []
    hooks.add(hook_with("on_epoch_end", lambda self, checkpoint_hook: seen.append(checkpoint_hook)))
    fire(hooks, "on_epoch_end")
    saver = hook_with("close", lambda self: None)
    type(saver).role = "checkpoint"
    name = hooks.add(saver)
    fire(hooks, "on_epoch_end")
    hooks.disable(name)
    fire(hooks, "on_epoch_end")
    assert seen == [None, saver, None]


def test_a_removed_hook_hears_nothing_more_when_another_removes_it_in_the_same_event() -> None:
    hooks, heard = registry(), []
    late = ordered("late", 70, heard)
    hooks.add(hook_with("on_epoch_end", lambda self: late in hooks and hooks.remove(late)))
    hooks.add(late)
    fire(hooks, "on_epoch_end")
    hooks.close()
    assert heard == ["close late"]


def test_closing_only_warns_when_the_hook_says_so() -> None:
    def fail(self: Any) -> None:
        raise ValueError("stuck")

    hooks, hook = registry(), hook_with("close", fail)
    hook.on_error = "warn"
    hooks.add(hook)
    with pytest.warns(MettaWarning, match="'Mine' failed in close .*stuck"):
        hooks.close()


def test_every_hook_is_closed_and_the_first_exception_kept_when_an_interrupt_comes_meanwhile() -> (
    None
):
    heard: list[str] = []

    def interrupt(self: Any) -> None:
        raise KeyboardInterrupt

    first = ValueError("first")
    hooks = registry()
    hooks.add(hook_with("close", lambda self: heard.append("closed")))
    hooks.add(hook_with("close", interrupt))
    hooks.add(hook_with("on_exception", interrupt))
    hooks.fire_exception(first)
    hooks.close(first)
    assert heard == ["closed"]
    assert len(first.__notes__) == 2
    hooks.open()
    with pytest.raises(KeyboardInterrupt):
        hooks.close()
    assert heard == ["closed", "closed"]
