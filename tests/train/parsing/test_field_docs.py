import dataclasses
import subprocess
import sys

import pytest

from metta.train import train_config
from metta.train.parsing.field_docs import field_docs, group_doc, setting_docs
from metta.train.parsing.schema import groups_of, leaves_of
from metta.train.train_config import PPOConfig, TrainingConfig

CONFIGS = [getattr(train_config, name) for name in train_config.__all__]


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_field_has_a_doc_when_a_config_class_is_defined(kind: type) -> None:
    groups = groups_of(kind)
    for field in dataclasses.fields(kind):
        doc = (
            setting_docs(kind)[field.name] if field.name in groups else field_docs(kind)[field.name]
        )
        assert doc.strip(), field.name
        assert doc.endswith("."), field.name
    assert group_doc(kind)


def test_every_path_has_a_doc_when_the_whole_tree_is_read() -> None:
    docs = setting_docs(TrainingConfig)
    assert docs.keys() == leaves_of(TrainingConfig).keys() | groups_of(TrainingConfig).keys()


def test_the_doc_is_the_string_below_the_field_when_it_is_read() -> None:
    assert field_docs(PPOConfig)["gamma"] == "Discount per step."
    assert setting_docs(TrainingConfig)["trainer.ppo.gamma"] == "Discount per step."
    assert setting_docs(TrainingConfig)["trainer.ppo"] == "The learning rule."


def test_docs_are_left_out_when_there_is_no_source() -> None:
    made = dataclasses.make_dataclass("Made", [("size", int, 1)])
    assert field_docs(made) == {}


def test_torch_stays_unloaded_when_docs_are_read() -> None:
    code = (
        "import sys\nfrom metta.train.parsing.field_docs import setting_docs\n"
        "from metta.train.train_config import TrainingConfig\n"
        "setting_docs(TrainingConfig)\nprint('torch' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout == "False\n"
