"""The suite's own rules, tried out on small suites."""

from pathlib import Path

import pytest
import torch

pytest_plugins = ["pytester"]

CONFTEST = Path(__file__).with_name("conftest.py").read_text()


def run(pytester: pytest.Pytester, body: str) -> pytest.RunResult:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile("import multiprocessing, time\nimport pytest\n\n" + body)
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:importnb")


@pytest.mark.parametrize(
    "body",
    [
        "def test_it():\n    pytest.skip()",
        "def test_it():\n    pytest.skip('  ')",
        "@pytest.mark.skip\ndef test_it(): ...",
        "@pytest.mark.skip(reason='')\ndef test_it(): ...",
        "@pytest.mark.skipif('True')\ndef test_it(): ...",
        "@pytest.mark.skipif(False, reason='')\ndef test_it(): ...",
        "@pytest.fixture\ndef part():\n    pytest.skip()\n\ndef test_it(part): ...",
        "pytest.skip(allow_module_level=True)",
    ],
)
def test_the_run_fails_when_a_skip_has_no_reason(pytester: pytest.Pytester, body: str) -> None:
    result = run(pytester, body + "\n\ndef test_another(): ...\n")
    assert result.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize(
    "body",
    [
        "def test_it():\n    pytest.skip('needs a GPU')",
        "@pytest.mark.skip('needs a GPU')\ndef test_it(): ...",
        "@pytest.mark.skip(reason='needs a GPU')\ndef test_it(): ...",
        "@pytest.mark.skipif(True, reason='needs a GPU')\ndef test_it(): ...",
        "def test_it():\n    pytest.importorskip('no_such_module_at_all')",
    ],
)
def test_the_run_passes_when_a_skip_says_why(pytester: pytest.Pytester, body: str) -> None:
    result = run(pytester, body)
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(skipped=1)


def test_the_culprit_is_named_when_a_skip_has_no_reason(pytester: pytest.Pytester) -> None:
    result = run(pytester, "def test_it():\n    pytest.skip()")
    result.stdout.fnmatch_lines(["*BROKEN RULE*test_it*without a reason*"])


def test_the_run_fails_when_a_test_leaves_a_process_behind(pytester: pytest.Pytester) -> None:
    start = "multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,)).start()"
    result = run(pytester, f"def test_it():\n    {start}")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*left processes behind*"])


def test_torch_has_one_thread_when_tests_run() -> None:
    assert torch.get_num_threads() == 1
