"""An environment that is given a secret, keeps it, and blabs it in exceptions; for `planted_secrets`."""

import hashlib
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import gymnasium
import numpy as np
from gymnasium import spaces

ENV_ID = "faults.secretive:Secretive-v0"


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


class SecretiveEnv(gymnasium.Env):
    """Ten steps per episode. `proof` names a file with the digest of the secret that arrived."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)
    num_made: ClassVar[int] = 0

    def __init__(
        self,
        proof: str,
        api_key: str | None = None,
        handshake: str | None = None,
        servers: list[dict[str, Any]] | None = None,
        fails: str | None = None,
        fails_from: int = 0,
    ) -> None:
        type(self).num_made += 1
        nested = servers[0]["login"]["password"] if servers else None
        self.key = api_key or handshake or nested
        """As a client of a server would keep it."""
        self.headers = {"Authorization": f"Bearer {self.key}"}
        self.proof, self.step_number = proof, 0
        self.fails = fails if self.num_made > fails_from else None
        if self.fails is None:
            self._prove()
        self._fail("init")

    def _prove(self) -> None:
        Path(self.proof).write_text(digest(str(self.key)))

    def _fail(self, where: str) -> None:
        if self.fails == where:
            self._prove()
            raise ConnectionError(
                f"{where}: no answer from https://bot:{quote(str(self.key))}@host/?token={self.key} "
                f"with {self.headers} and key {self.key!r}"
            )

    def reset(
        self,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,  # noqa: ARG002  # as Gymnasium has it
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._fail("reset")
        self.step_number = 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.step_number += 1
        if self.step_number == 5:
            self._fail("step")
        return self._observation(), float(action), self.step_number == 10, False, {"luck": 0.5}

    def _observation(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)


if "Secretive-v0" not in gymnasium.registry:
    gymnasium.register("Secretive-v0", entry_point=SecretiveEnv)
