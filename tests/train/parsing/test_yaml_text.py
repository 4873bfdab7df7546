from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metta.errors import ConfigError
from metta.secret_names import looks_secret
from metta.train import apply_settings
from metta.train.layers import resolve
from metta.train.parsing.yaml_text import dump_yaml, parse_yaml, read_inline
from metta.train.train_config import TrainingConfig


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "my.yaml"
    path.write_text(text)
    return path


def load(tmp_path: Path, text: str) -> TrainingConfig:
    return TrainingConfig.from_yaml(write(tmp_path, text))


def test_the_type_of_the_field_decides_when_a_scalar_is_read(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        "lr: 1e-3\ntotal_timesteps: 3e8\nseed: 1_000\ncsv: off\nnormalize_obs: yes\n"
        "wandb: {mode: off, entity: ~, project: 2024, tags: [a, 7, on]}\ntarget_kl: none\n"
        "experiment_name: 1.50\ncore: none\nagent: {name: mlp}\n",
    )
    trainer, wandb = config.trainer, config.trainer.logging.wandb
    assert (trainer.optimizer.learning_rate, trainer.total_timesteps) == (1e-3, 300_000_000)
    assert (trainer.seed, trainer.logging.csv) == (1000, False)
    assert config.agent.normalize_observations is True
    assert (wandb.mode, wandb.entity, wandb.project) == ("off", None, "2024")
    assert wandb.tags == ("a", "7", "on")
    assert (trainer.ppo.target_kl, config.experiment_name) == (None, "1.50")
    assert (config.agent.core, config.agent.name) == ("none", "mlp")


def test_a_quoted_null_is_a_text_when_the_field_may_be_empty(tmp_path: Path) -> None:
    assert load(tmp_path, "entity: 'null'").trainer.logging.wandb.entity == "null"


def test_ordinary_values_come_out_when_a_field_is_a_free_mapping(tmp_path: Path) -> None:
    text = "env_kwargs: {a: 1, b: 1e-3, c: on, d: [x, 2.5, ~], e: {f: '1'}, g: 2024-01-01}"
    assert load(tmp_path, text).trainer.curriculum.env_kwargs == {
        "a": 1, "b": 1e-3, "c": True, "d": ["x", 2.5, None], "e": {"f": "1"}, "g": "2024-01-01",
    }  # fmt: skip


@pytest.mark.parametrize("text", ["", "# only a comment\n", "trainer:\n", "agent: ~\nppo: {}\n"])
def test_defaults_stay_when_a_file_sets_nothing(tmp_path: Path, text: str) -> None:
    assert load(tmp_path, text) == TrainingConfig()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1\nb: 2", "my.yaml:2: not YAML"),
        ("- a\n- b\n", "my.yaml:1: found a list, but a configuration is a mapping"),
        ("just words", "my.yaml:1: found a single value"),
        ("lr: 1\n\nlr: 2\n", "my.yaml:3: 'lr' is already set on line 1"),
        ("trainer:\n  lr: 1\n  lr: 2\n", "my.yaml:3: 'lr' is already set on line 2"),
        ("a: &x [1]\nb: *x\n", "my.yaml:2: not YAML: aliases"),
        ("[a, b]: 1", "my.yaml:1: found a list for a name"),
        ("lr: !!python/name:os.system x", "my.yaml:1: the tag"),
        ("lr: !money 3", "my.yaml:1: the tag '!money' is not allowed"),
        ("a: 1\n---\nb: 2\n", "my.yaml:2: not YAML: expected a single document"),
        ("lr: 1\nseed: \x07", "my.yaml:2: not YAML"),
        ("a: " + "[" * 40 + "]" * 40, "my.yaml:1: not YAML: more than 32 levels"),
        ("a: [" + "1, " * 10_000 + "]", "more than 10000 values"),
        ("# " + "x" * (1 << 17), "larger than 131,072 bytes"),
        ("\n\nn_steps: 1.5", "trainer.rollout.horizon ({path}:3): found '1.5'; allowed is a whole number"),
        ("trainer:\n  ppo:\n    gamma: true", "trainer.ppo.gamma ({path}:3): found 'true'"),
        ("seed: 1e400", "trainer.seed ({path}:1): found '1e400'"),
        ("seed: 1e40", "trainer.seed ({path}:1): found '1e40'"),
        ("gamma: .nan", "trainer.ppo.gamma ({path}:1): found nan"),
        ("tags: {a: 1}", "trainer.logging.wandb.tags ({path}:1): found {{"),
        ("env_kwargs: 3", "trainer.curriculum.env_kwargs ({path}:1): found 3; allowed is a mapping"),
        ("env: CartPole-v1\ntrainer: 3", "trainer ({path}:2): found '3'; allowed is a group"),
        ("lr: 1\nlearning_rate: 2", "'lr' and 'learning_rate' both set trainer.optimizer.learning_rate"),
    ],
)  # fmt: skip
def test_file_and_line_are_named_when_a_file_is_wrong(
    tmp_path: Path, text: str, message: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        TrainingConfig.from_yaml(path)
    assert message.format(path=path) in str(caught.value)
    assert str(path) in str(caught.value)


def test_the_file_is_named_when_it_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"lr: 1\nname: caf\xe9\n")
    for name, why in (
        ("none.yaml", "none.yaml: cannot be read: No such file"),
        (".", "cannot be read: .*not a regular file"),
        ("latin.yaml", "latin.yaml:2: not UTF-8"),
        ("nul\0.yaml", "cannot be read"),
    ):
        with pytest.raises(ConfigError, match=why):
            TrainingConfig.from_yaml(tmp_path / name)


def test_the_problems_of_all_files_are_reported_when_several_are_wrong(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("gama: 1")
    (tmp_path / "b.yaml").write_text("[")
    with pytest.raises(ConfigError) as caught:
        resolve("cartpol", [tmp_path / "a.yaml", tmp_path / "b.yaml"], ["lr=0", "x"])
    message = str(caught.value)
    assert message.startswith("5 problems:\n  - unknown preset 'cartpol'; did you mean 'cartpole'?")
    for part in ("a.yaml:1); did you mean 'gamma'?", "b.yaml:1: not YAML", "'x' is not a setting"):
        assert part in message
    assert "trainer.optimizer.learning_rate (command line): found '0'" in message


NAMES = st.text(max_size=8).filter(lambda name: not looks_secret(name))
DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(NAMES, DATA, max_size=4))
def test_nothing_is_lost_when_free_values_go_through_yaml(kwargs: dict[str, Any]) -> None:
    text = dump_yaml({"env_kwargs": kwargs})
    config = TrainingConfig.from_dict(parse_yaml(text, "text"))
    assert config.trainer.curriculum.env_kwargs == kwargs


def test_text_stays_text_when_it_looks_like_a_number() -> None:
    kwargs = {"a": "1e-3", "b": "0x10", "c": "off", "d": "", "e": "1:30", "f": ".5"}
    read = TrainingConfig.from_dict(parse_yaml(dump_yaml({"env_kwargs": kwargs}), "text"))
    assert read.trainer.curriculum.env_kwargs == kwargs


def test_lists_and_mappings_are_read_when_they_stand_on_a_command_line() -> None:
    settings = ["tags=[a, 'b c']", "env_kwargs={gravity: -9.8}", "experiment_name={x"]
    config = resolve(None, [], settings).config
    assert config.trainer.logging.wandb.tags == ("a", "b c")
    assert config.trainer.curriculum.env_kwargs == {"gravity": -9.8}
    assert config.experiment_name == "{x"
    assert resolve(None, [], ["tags=a, b"]).config.trainer.logging.wandb.tags == ("a", "b")
    assert read_inline("plain") == "plain"
    with pytest.raises(ConfigError, match=r"trainer\.curriculum\.env_kwargs: command line:1"):
        resolve(None, [], ["env_kwargs={a"])


def test_a_number_stays_text_when_it_has_no_end(tmp_path: Path) -> None:
    """Numbers to the base 60, which YAML has, take their reader a time that grows with their square."""
    long = "1:" * 60_000 + "1"
    config = load(tmp_path, f"env_kwargs: {{a: {long}}}")
    assert config.trainer.curriculum.env_kwargs == {"a": long}


@pytest.mark.parametrize("text", ["a: !<{long}> 1", "{long}: 1\n{long}: 2", "a: !!python/{long} 1"])
def test_a_message_stays_short_when_a_file_has_long_words(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text.format(long="x" * 1000))
    assert len(str(caught.value)) < 500


def test_the_list_ends_somewhere_when_a_file_is_something_else(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "".join(f"word{number}: 1\n" for number in range(2000)))
    lines = str(caught.value).splitlines()
    assert lines[0] == "2000 problems:"
    assert lines[-1] == "  - and 1950 more"
    assert len(lines) == 52


@pytest.mark.parametrize("name", ["None", "none", "null", "~", "nonesuch"])
def test_a_name_that_reads_like_nothing_returns_from_a_file(name: str, tmp_path: Path) -> None:
    config = apply_settings(TrainingConfig(), {"wandb.entity": name})
    found = TrainingConfig.from_yaml(config.to_yaml(tmp_path / "config.yaml"))
    assert found.trainer.logging.wandb.entity == name
