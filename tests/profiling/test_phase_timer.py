import pytest

from metta.profiling.phase_timer import FIRST, LAST, EventEdge, PhaseTimer
from metta.rl.hooks.registry import HookRegistry
from metta.rl.training_state import TrainerState


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Part:
    """Something whose methods take time."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def work(self, seconds: float) -> float:
        self.clock.now += seconds
        return seconds


class SlowHook:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_rollout_end(self) -> None:
        self.clock.now += 0.25

    def on_epoch_end(self) -> None:
        self.clock.now += 0.5


RUN_SECONDS = {"collect": 1.0, "wait": 0.5, "transfer": 0.25, "reduce": 0.25, "collect_ahead": 16.0}
"""Of one rollout of four seconds that is collected elsewhere."""


def nothing() -> None:
    pass


def epoch(hooks: HookRegistry, clock: Clock, rollout, learn=nothing) -> None:
    """What an epoch of the loop does."""
    hooks.fire("on_epoch_start")
    clock.now += 0.125  # the loop's own
    hooks.fire("on_rollout_start")
    rollout()
    hooks.fire("on_rollout_end", rollout_stats={}, experience=None)
    clock.now += 8.0
    learn()
    hooks.fire("on_update_end", losses_stats={}, experience=None)
    hooks.fire("on_epoch_end", losses_stats={}, experience=None)


def timed_epochs(*, fused: bool = False, watched: tuple[str, ...] = ("environment", "inference")):
    clock = Clock()
    timer, env, actor = PhaseTimer(clock), Part(clock), Part(clock)
    for name, part in (("environment", env), ("inference", actor)):
        if name in watched:
            assert timer.watch(part, ("work",), name)
    hooks = HookRegistry(TrainerState())
    for hook in (*timer.hooks(), SlowHook(clock)):
        hooks.add(hook)

    def rollout() -> None:
        if not fused:
            assert env.work(1.0) == 1.0
            actor.work(2.0)
        clock.now += 4.0

    epoch(hooks, clock, rollout)  # not timed
    for name in ("environment", "inference"):
        assert timer.was_called(name) == (name in watched and not fused)
    timer.begin()
    for _ in range(2):
        epoch(hooks, clock, rollout)
    timer.end()
    epoch(hooks, clock, rollout)  # not timed
    return timer.phases()


def test_every_phase_has_its_seconds_when_epochs_are_timed() -> None:
    assert timed_epochs() == {
        "environment": 2.0,
        "inference": 4.0,
        "transfer": 8.0,
        "learn": 16.0,
        "hooks": 1.5,
        "rest": 0.25,
    }


def test_the_rollout_is_one_phase_when_it_runs_without_python() -> None:
    assert timed_epochs(fused=True) == {
        "fused rollout (environment + inference)": 8.0,
        "learn": 16.0,
        "hooks": 1.5,
        "rest": 0.25,
    }


@pytest.mark.parametrize(
    ("seen", "rest"),
    [("environment", "inference and transfer"), ("inference", "environment and transfer")],
)
def test_only_what_was_heard_is_split_off_when_one_part_is_silent(seen: str, rest: str) -> None:
    phases = timed_epochs(watched=(seen,))
    alone = {"environment": 2.0, "inference": 4.0}[seen]
    assert phases[seen] == alone
    assert phases[rest] == 14.0 - alone


def test_what_the_run_measures_itself_is_split_off_where_it_happened() -> None:
    clock, spent = Clock(), {"reduce": 100.0}
    timer = PhaseTimer(clock)
    timer.count(lambda: spent)
    hooks = HookRegistry(TrainerState())
    for hook in timer.hooks():
        hooks.add(hook)

    def rollout() -> None:
        clock.now += 4.0
        for name, seconds in RUN_SECONDS.items():
            spent[name] = spent.get(name, 0.0) + seconds

    def learn() -> None:
        spent["reduce"] += 3.0

    epoch(hooks, clock, rollout, learn)  # not timed
    spent["reduce"] += 7.0  # between epochs
    timer.begin()
    epoch(hooks, clock, rollout, learn)
    timer.end()
    assert timer.phases() == {
        "collect": 1.0, "wait": 0.5, "transfer": 0.25, "advantages and statistics": 2.0,
        "reduce": 0.25 + 3.0, "learn": 5.0, "hooks": 0.0, "rest": 0.125,
    }  # fmt: skip
    assert timer.ahead_seconds() == 16.0


def test_a_part_is_not_watched_when_it_takes_no_attributes() -> None:
    class Closed:
        __slots__ = ()

        def work(self) -> None: ...

    timer = PhaseTimer()
    assert not timer.watch(Closed(), ("work",), "environment")
    assert not timer.watch(Part(Clock()), ("play",), "environment")


def test_time_counts_when_a_method_fails() -> None:
    class Failing(Part):
        def work(self, seconds: float) -> float:
            super().work(seconds)
            raise ValueError("broken")

    clock = Clock()
    timer, part = PhaseTimer(clock), Failing(clock)
    timer.watch(part, ("work",), "environment")
    timer.begin()
    with pytest.raises(ValueError, match="broken"):
        part.work(3.0)
    timer.end()
    assert timer.phases()["environment"] == 3.0


def test_edges_hear_an_event_first_and_last_when_other_hooks_do_too() -> None:
    heard: list[str] = []

    class Between:
        def on_checkpoint(self) -> None:
            heard.append("between")

    hooks = HookRegistry(TrainerState())
    hooks.add(EventEdge(LAST, lambda event: heard.append(f"last {event}")))
    hooks.add(Between())
    hooks.add(EventEdge(FIRST, lambda event: heard.append(f"first {event}")))
    hooks.fire("on_checkpoint", checkpoint=None)
    assert heard == ["first on_checkpoint", "between", "last on_checkpoint"]
