"""References to secrets in `env_kwargs`: the environment gets the value, in whichever process it lives."""

from pathlib import Path

import gymnasium
import pytest

from metta.envs.factory import make_vec_env
from metta.envs.toy import CorridorEnv
from metta.errors import ConfigError


class LoginEnv(CorridorEnv):
    """Writes down what it was given."""

    def __init__(self, proof: str, login: dict[str, str]) -> None:
        super().__init__()
        Path(proof).write_text(login["password"])


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("as_list", [False, True])
def test_the_environment_gets_the_value_when_a_reference_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_workers: int, as_list: bool
) -> None:
    monkeypatch.setenv("LOGIN_NAME", "hunter-2")
    proof = tmp_path / "proof"
    kwargs = {"proof": str(proof), "login": {"password": "env:LOGIN_NAME"}}
    env = [LoginEnv] if as_list else LoginEnv
    make_vec_env(env, num_workers=num_workers, env_kwargs=kwargs).close()
    assert proof.read_text() == "hunter-2"
    assert kwargs["login"] == {"password": "env:LOGIN_NAME"}


def test_the_variable_is_named_when_it_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOGIN_NAME", raising=False)
    with pytest.raises(ConfigError, match="environment variable LOGIN_NAME is not set"):
        make_vec_env("CartPole-v1", env_kwargs={"render_mode": "env:LOGIN_NAME"})


def test_an_id_gets_the_value_when_a_reference_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGIN_NAME", "hunter-2")
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    gymnasium.register("Login-v0", LoginEnv)
    proof = tmp_path / "proof"
    kwargs = {"proof": str(proof), "login": {"password": "env:LOGIN_NAME"}}
    make_vec_env("Login-v0", env_kwargs=kwargs).close()
    assert proof.read_text() == "hunter-2"
