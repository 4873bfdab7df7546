import subprocess
import sys
from pathlib import Path

import pytest

from metta.loggers import MetricRow
from tests.loggers.sink_cases import KINDS, ODD_VALUES, make_sink


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_taken_when_values_and_names_are_odd(kind: str, tmp_path: Path) -> None:
    sink = make_sink(kind, tmp_path)
    sink.write(MetricRow(10, 1, ODD_VALUES))
    sink.write(MetricRow(20, 2, {}))
    sink.write(MetricRow(30, 3, {'another, "quoted" name\n[bold]': -1.0}))
    sink.flush()
    sink.close()


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_happens_when_a_sink_is_closed_twice_or_unused(kind: str, tmp_path: Path) -> None:
    unused = make_sink(kind, tmp_path)
    unused.flush()
    unused.close()
    assert list(tmp_path.iterdir()) == []
    used = make_sink(kind, tmp_path)
    used.write(MetricRow(1, 1, {"a": 1.0}))
    used.close()
    used.close()
    used.flush()


@pytest.mark.parametrize("kind", KINDS)
def test_a_sink_opens_again_when_it_is_written_to_after_close(kind: str, tmp_path: Path) -> None:
    sink = make_sink(kind, tmp_path)
    for step in (1, 2):
        sink.write(MetricRow(step, step, {"a": 1.0}))
        sink.close()


def test_heavy_packages_stay_unloaded_when_the_loggers_are_imported() -> None:
    heavy = "[m for m in ('torch', 'wandb', 'tensorboard', 'rich') if m in sys.modules]"
    code = f"import sys, metta.loggers\nprint({heavy})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
