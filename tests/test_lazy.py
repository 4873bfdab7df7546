import pytest

from metta.lazy import lazy_exports


def test_names_load_when_they_are_used_and_others_are_refused() -> None:
    load, names = lazy_exports("pack", {"sha256_of": "metta.files", "MettaError": "metta.errors"})
    assert names() == ["MettaError", "sha256_of"]
    assert load("sha256_of").__module__ == "metta.files"
    with pytest.raises(AttributeError, match="module 'pack' has no attribute 'other'"):
        load("other")
