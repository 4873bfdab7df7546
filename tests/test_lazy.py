import pytest

import metta
from metta.lazy import lazy_exports


def test_names_load_when_they_are_used_and_others_are_refused() -> None:
    load, names = lazy_exports("pack", {"sha256_of": "metta.files", "MettaError": "metta.errors"})
    assert names() == ["MettaError", "sha256_of"]
    assert load("sha256_of").__module__ == "metta.files"
    with pytest.raises(AttributeError, match="module 'pack' has no attribute 'other'"):
        load("other")


def test_the_answer_names_what_to_write_when_a_name_is_of_another_library() -> None:
    for name, instead in {"PPO": "metta.PPOTrainer", "evaluate_policy": "run_episodes"}.items():
        with pytest.raises(AttributeError, match=f"no attribute '{name}'; write .*{instead}"):
            getattr(metta, name)
