"""Rules of the whole suite: skips say why, one torch thread, and no process outlives its test."""

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch

from faults.zygote import Zygote

# processes that tests start compete for few cores: threads that wait for each other make all of them slow
os.environ.setdefault("OMP_NUM_THREADS", "1")
# tests that compile an update say so; for all others a compiler takes longer than what they do
os.environ.setdefault("METTA_COMPILE", "0")

# equal examples in every run, and no time limit per example: machines are slow at times
hypothesis.settings.register_profile("metta", deadline=None, derandomize=True)
hypothesis.settings.load_profile("metta")

_BROKEN_RULES = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_BROKEN_RULES] = []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for mark in [*item.iter_markers("skip"), *item.iter_markers("skipif")]:
            # skip("why") says it by position; the positions of skipif are conditions
            reason = mark.kwargs.get("reason") or (mark.name == "skip" and mark.args)
            if not reason:
                _note(config, f"{item.nodeid}: {mark.name} without a reason")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    _check_skip(item.config, item.nodeid, call)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Any:
    report = yield
    call = getattr(report, "call", None)
    if report.skipped and call is not None:
        _check_skip(collector.config, collector.nodeid, call)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    for process in multiprocessing.active_children():
        _note(session.config, f"process {process.name!r} outlived the whole run")
        process.kill()
    passed = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    if session.config.stash[_BROKEN_RULES] and session.exitstatus in passed:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    for rule in config.stash[_BROKEN_RULES]:
        terminalreporter.write_line(f"BROKEN RULE {rule}", red=True)


def _check_skip(config: pytest.Config, where: str, call: pytest.CallInfo[Any]) -> None:
    error = call.excinfo.value if call.excinfo is not None else None
    if isinstance(error, pytest.skip.Exception) and not (error.msg or "").strip():
        _note(config, f"{where}: skipped without a reason")


def _note(config: pytest.Config, rule: str) -> None:
    config.stash[_BROKEN_RULES].append(rule)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _fork_server_with_torch() -> Iterator[None]:
    """Evaluations in the background, and workers with environments of tests, import torch once in all."""
    with pytest.MonkeyPatch.context() as patch:
        given = forkserver.set_forkserver_preload

        def preload(modules: Sequence[str]) -> None:
            given([*modules, "metta.rl.ppo_trainer", "pytest"])

        patch.setattr(forkserver, "set_forkserver_preload", preload)
        yield


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """Starts processes that have imported everything, in milliseconds: see `tests.children`."""
    from tests.children import PRELOADED

    with Zygote(PRELOADED, cwd=Path(__file__).parents[1]) as started:
        yield started


@pytest.fixture(autouse=True)
def _no_process_left() -> Iterator[None]:
    before = {process.pid for process in multiprocessing.active_children()}
    yield
    left = [p for p in multiprocessing.active_children() if p.pid not in before]
    for process in left:
        process.kill()
        process.join()
    if left:
        pytest.fail(f"the test left processes behind: {[process.name for process in left]}")
