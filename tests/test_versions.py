"""The libraries under a run are known."""

import numpy as np
import torch

from metta import __version__
from metta.versions import library_versions


def test_every_library_is_named_when_a_run_says_what_it_runs_on() -> None:
    found = library_versions()
    assert (found["torch"], found["numpy"]) == (torch.__version__, np.__version__)
    assert found["metta-rl"] == __version__
    assert {"python", "gymnasium"} <= set(found)
