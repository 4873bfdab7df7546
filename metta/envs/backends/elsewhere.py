"""`VecEnvElsewhere`: environments that other processes make and step, as this process knows them."""

from collections.abc import Callable
from typing import Any

from metta.envs.backends.wrapper import VecEnvWrapper
from metta.envs.vec_env import VecEnv

__all__ = ["VecEnvElsewhere"]


class VecEnvElsewhere(VecEnvWrapper):
    """Spaces and sizes of a shard's environments; `inner` is an example of them, for a look at set-up.

    `source` makes such environments, wherever they are stepped. Closing it ends what was started for them.
    """

    def __init__(self, inner: VecEnv, source: Any) -> None:
        super().__init__(inner)
        self.observation_space, self.obs_spec = inner.observation_space, inner.obs_spec
        self.num_rows = inner.num_rows
        self.source = source
        self.on_close: list[Callable[[], None]] = []

    def reset(self, *arguments: Any) -> Any:
        """Of the example."""
        return self.inner.reset(*arguments)

    def send(self, *arguments: Any) -> None:
        """To the example."""
        self.inner.send(*arguments)

    def recv(self, *arguments: Any) -> Any:
        """From the example."""
        return self.inner.recv(*arguments)

    def close_example(self) -> None:
        """The example has been looked at."""
        self.inner.close()

    def close(self) -> None:
        """Close the example, and end what collects elsewhere."""
        self.close_example()
        while self.on_close:
            self.on_close.pop()()
