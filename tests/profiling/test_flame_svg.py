import re
import threading
import time
import xml.etree.ElementTree as ElementTree

import pytest

from metta.profiling.flame_svg import flame_graph
from metta.profiling.stack_sampler import StackSampler

SVG = "{http://www.w3.org/2000/svg}"
STACKS = {
    ("metta.rl.loop:run", "metta.rl.learn.ppo:update"): 60,
    ("metta.rl.loop:run", "metta.rl.collect.collector:collect", "torch:tanh<T>"): 30,
    ("metta.rl.loop:run",): 10,
}


def boxes_of(svg: str) -> dict[str, tuple[float, float, float]]:
    """Left edge, top and width of each frame by name."""
    found = {}
    for group in ElementTree.fromstring(svg).iter(f"{SVG}g"):
        title, box = group.find(f"{SVG}title"), group.find(f"{SVG}rect")
        assert title is not None
        assert box is not None
        name = (title.text or "").partition(": ")[0]
        found[name] = tuple(float(box.attrib[key]) for key in ("x", "y", "width"))
    return found


def test_widths_are_shares_when_stacks_are_drawn() -> None:
    boxes = boxes_of(flame_graph(STACKS, "a & b"))
    assert boxes["all"][2] == 1200.0
    assert boxes["metta.rl.loop:run"][2] == 1200.0
    assert boxes["metta.rl.learn.ppo:update"][2] == 720.0
    assert boxes["metta.rl.collect.collector:collect"][2] == 360.0
    assert boxes["torch:tanh<T>"] == (720.0, boxes["all"][1] + 3 * 18, 360.0)


def test_a_frame_stands_below_its_caller_when_it_was_called() -> None:
    boxes = boxes_of(flame_graph(STACKS, "x"))
    assert boxes["metta.rl.collect.collector:collect"][0] == boxes["metta.rl.learn.ppo:update"][2]
    assert boxes["metta.rl.learn.ppo:update"][1] == boxes["metta.rl.loop:run"][1] + 18


def test_names_are_escaped_and_shares_told_when_they_are_shown() -> None:
    svg = flame_graph(STACKS, "a & b")
    assert "a &amp; b" in svg
    assert "torch:tanh&lt;T&gt;: 30 samples, 30.0%" in svg
    assert not re.search(r"<script|href", svg)


def test_names_are_without_their_module_and_cut_when_a_box_is_narrow() -> None:
    stacks = {("a:outer_function", "b:inner"): 95, ("a:outer_function", "b:a_very_long_name"): 5}
    svg = flame_graph(stacks, "x")
    assert ">outer_function</text>" in svg
    assert ">inner</text>" in svg
    assert re.search(r">a_ver\w*~</text>", svg)


def test_a_frame_is_left_out_when_it_is_too_small_to_see() -> None:
    boxes = boxes_of(flame_graph({("a:a",): 100_000, ("b:b",): 1}, "x"))
    assert boxes.keys() == {"all", "a:a"}


def test_a_picture_is_drawn_when_there_are_no_samples() -> None:
    assert boxes_of(flame_graph({}, "nothing")) == {}


def busy_work(until: threading.Event) -> None:
    while not until.is_set():
        time.sleep(0.0005)


def test_stacks_are_counted_when_a_thread_works() -> None:
    sampler, enough = StackSampler(seconds=0.001), threading.Event()
    sampler.start()
    threading.Timer(0.15, enough.set).start()
    busy_work(enough)
    sampler.stop()
    sampler.stop()
    total = sum(sampler.stacks.values())
    inside = sum(n for stack, n in sampler.stacks.items() if any("busy_work" in f for f in stack))
    assert inside > 0
    assert inside <= total
    for line in sampler.folded().splitlines():
        stack, _, count = line.rpartition(" ")
        assert int(count) == sampler.stacks[tuple(stack.split(";"))]
    assert "metta-sampler" not in [thread.name for thread in threading.enumerate()]


def test_nothing_is_counted_when_it_has_stopped() -> None:
    sampler = StackSampler(seconds=0.001)
    sampler.start()
    sampler.stop()
    before = sum(sampler.stacks.values())
    time.sleep(0.01)
    assert sum(sampler.stacks.values()) == before


def test_frames_of_whoever_trains_are_left_out_when_a_loop_is_seen() -> None:
    from metta.rl.loop import run_training
    from metta.rl.training_state import TrainerState

    sampler, state = StackSampler(seconds=0.001), TrainerState()

    def one_epoch(state: TrainerState) -> dict[str, float]:
        time.sleep(0.01)
        state.agent_step += 1
        return {}

    sampler.start()
    run_training(state, one_epoch, until_step=5)
    sampler.stop()
    inside = [stack for stack in sampler.stacks if any("one_epoch" in frame for frame in stack)]
    assert inside
    assert {stack[0] for stack in inside} == {"metta.rl.loop:run_training"}


@pytest.mark.parametrize("name", ["PhaseTimer", "Profile", "StackSampler", "flame_graph"])
def test_names_are_found_when_the_package_is_asked(name: str) -> None:
    import metta.profiling

    assert getattr(metta.profiling, name).__name__ == name
