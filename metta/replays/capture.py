"""What is seen of an environment while it plays: images, texts, observations, or a grid world.

Vectorised environments begin the next episode in the step that ends one, so that the last state is looked
at from below them: by a wrapper of the single environment, or in a double of the grid world.
"""

import contextlib
import io
import os
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import gymnasium
import numpy as np

from metta.curriculum import Task
from metta.envs.agents.agent_groups import split_agent_groups
from metta.envs.agents.agents_env import OBS, AgentsEnv, AgentsSpace
from metta.envs.env_ids import factory_of, factory_of_id, is_grid_id
from metta.envs.factory import make_vec_env, row_seeds
from metta.envs.grid import GridVecEnv
from metta.envs.rows.row_spec import GymEnv
from metta.envs.vec_env import VecEnv
from metta.errors import EnvError
from metta.replays.change_lists import Track, TrackEncoder
from metta.replays.replay import MAX_TEXT_BYTES, Kind
from metta.spaces import obs_spec_of
from metta.train.agent_groups import AGENT_GROUPS

__all__ = ["MAX_STEPS", "Scene", "open_scene"]

MAX_STEPS = 999_999
"""A recording is never longer: the double of a grid world must not come to its own end."""
_MODES: dict[str, Kind] = {"rgb_array": "frames", "ansi": "text"}
"""Ways to draw that are asked for, the best first."""
_PROBE_SEED = 0
_DISPLAY = {"SDL_VIDEODRIVER": "dummy", "SDL_NO_SIGNAL_HANDLERS": "1"}
"""Drawing needs no screen, and must not take over the signals of this process."""


class Scene(Protocol):
    """The states of one episode, as they are recorded."""

    kind: Kind
    vec_env: VecEnv
    """One environment, which plays; whoever opened the scene closes it."""
    fps: float | None

    @property
    def compressed_bytes(self) -> int:
        """Size of what was recorded so far."""
        ...

    def begin(self, seed: int) -> None:
        """The environment is about to be reset with the seeds that belong to `seed`."""
        ...

    def after_step(self, actions: np.ndarray) -> None:
        """A step was taken."""
        ...

    def tracks(self) -> dict[str, Track]:
        """What was recorded, from the reset to the last state."""
        ...


@contextlib.contextmanager
def open_scene(task: Task) -> Iterator[Scene]:
    """One environment of a task, and what can be seen of it; found out by trying to draw it.

    An environment that cannot be drawn is recorded by what its agents observe.
    """
    with _display_kept():
        scene = GridScene(task) if is_grid_id(task.env) else DrawnScene(task)
        try:
            yield scene
        finally:
            scene.vec_env.close()


@contextlib.contextmanager
def _display_kept() -> Iterator[None]:
    added = {name: value for name, value in _DISPLAY.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


class GridScene:
    """A grid world, and a double of it that takes the same actions and never ends."""

    kind: Kind = "grid"
    fps: float | None = None

    def __init__(self, task: Task) -> None:
        self.vec_env = make_vec_env(task)
        kwargs, _ = split_agent_groups(task.env_kwargs)  # who learns with whom is not seen
        double = make_vec_env(Task(task.env, {**kwargs, "horizon": MAX_STEPS + 1, "goal": 0}))
        assert isinstance(double, GridVecEnv)
        self.double = double
        self._encoders: dict[str, TrackEncoder] = {}

    @property
    def compressed_bytes(self) -> int:
        """Size of what was recorded so far."""
        return sum(encoder.compressed_bytes for encoder in self._encoders.values())

    def begin(self, seed: int) -> None:
        """Reset the double."""
        seeds = row_seeds(seed, self.double.num_rows)
        self._obs = self.double.obs_spec.zeros(self.double.num_rows)
        self.double.reset(seeds, self._obs)
        self._look()

    def after_step(self, actions: np.ndarray) -> None:
        """Let the double do the same."""
        self.double.send(0, actions)
        self.double.recv(0, self._obs)
        self._look()

    def tracks(self) -> dict[str, Track]:
        """Cells, and place, cargo and keys of each agent."""
        self.double.close()
        return {name: encoder.finish() for name, encoder in self._encoders.items()}

    def _look(self) -> None:
        view = self.double.view(0)
        for name in ("cells", "agents", "cargo", "keys"):
            array = getattr(view, name)
            array = array if array.dtype == np.uint8 else array.astype(np.int32)
            if name not in self._encoders:
                self._encoders[name] = TrackEncoder(array.dtype, array.shape)
            self._encoders[name].append(array)


class DrawnScene:
    """An environment of gymnasium or PettingZoo that draws itself after the reset and every step."""

    def __init__(self, task: Task) -> None:
        kwargs, groups = split_agent_groups(task.env_kwargs)
        make = _maker_of(task.env, kwargs)
        self.kind, more = _way_to_draw(make)
        self.fps: float | None = None
        self._recorder: _Recorder | None = None
        sizes = {AGENT_GROUPS: list(groups)} if groups else {}
        self.vec_env = make_vec_env(lambda: self._captured(make(**more)), env_kwargs=sizes)

    @property
    def compressed_bytes(self) -> int:
        """Size of what was recorded so far."""
        return 0 if self._recorder is None else self._recorder.compressed_bytes

    def begin(self, seed: int) -> None:
        """The wrapper looks by itself."""

    def after_step(self, actions: np.ndarray) -> None:
        """The wrapper has looked already."""

    def tracks(self) -> dict[str, Track]:
        """The track of images, of texts, or of each observation."""
        assert self._recorder is not None, "the environment was made with the scene"
        return self._recorder.tracks()

    def _captured(self, env: GymEnv) -> GymEnv:
        rate = _metadata_of(env).get("render_fps")
        if isinstance(rate, int | float) and 0 < rate < 1000:
            self.fps = float(rate)
        self._recorder = _RECORDERS[self.kind](env)
        return CapturingEnv(env, self._recorder)


class CapturingEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Shows the first episode that has a step in it to a recorder, with its last state."""

    def __init__(self, env: GymEnv, recorder: "_Recorder") -> None:
        super().__init__(env)
        self._recorder = recorder
        self._num_steps = 0
        self._is_over = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin; after an episode was recorded, nobody looks any more."""
        seen, info = self.env.reset(seed=seed, options=options)
        self._is_over |= self._num_steps > 0
        if not self._is_over:
            self._recorder.begin()
            self._recorder.look(seen)
        return seen, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, and look."""
        result = self.env.step(action)
        if not self._is_over:
            self._num_steps += 1
            self._recorder.look(result[0])
        return result


class _Recorder(Protocol):
    @property
    def compressed_bytes(self) -> int: ...

    def begin(self) -> None: ...

    def look(self, observation: Any) -> None: ...

    def tracks(self) -> dict[str, Track]: ...


class _FrameRecorder:
    def __init__(self, env: GymEnv) -> None:
        self._env = env
        self.begin()

    def begin(self) -> None:
        self._encoder: TrackEncoder | None = None

    def look(self, _: Any) -> None:
        frame = _as_frame(self._env.render())
        if frame is None:
            raise EnvError(f"{self._env} drew an image after its reset, but none after a step")
        if self._encoder is None:
            self._encoder = TrackEncoder(np.uint8, frame.shape, unit=3)
        self._encoder.append(frame)

    @property
    def compressed_bytes(self) -> int:
        return 0 if self._encoder is None else self._encoder.compressed_bytes

    def tracks(self) -> dict[str, Track]:
        assert self._encoder is not None, "tracks come after the reset"
        return {"frames": self._encoder.finish()}


class _TextRecorder:
    """Texts as bytes with zeros behind them; where one is too long, those before it get more room."""

    def __init__(self, env: GymEnv) -> None:
        self._env = env
        self.begin()

    def begin(self) -> None:
        self._encoder = TrackEncoder(np.uint8, (256,))

    def look(self, _: Any) -> None:
        written = (_as_text(self._env.render()) or "").replace("\0", "").encode("utf-8", "replace")
        if len(written) > MAX_TEXT_BYTES:
            raise EnvError(
                f"{self._env} drew a text of {len(written)} bytes, more than {MAX_TEXT_BYTES}"
            )
        size = self._encoder.shape[0]
        while size < len(written):
            size *= 2
        if size > self._encoder.shape[0]:
            self._grow(size)
        self._append(written)

    def _grow(self, size: int) -> None:
        before, self._encoder = self._encoder, TrackEncoder(np.uint8, (size,))
        if before.num_frames:
            for text in before.finish().frames():
                self._append(text.tobytes())

    def _append(self, written: bytes) -> None:
        padded = np.zeros(self._encoder.shape, np.uint8)
        padded[: len(written)] = np.frombuffer(written, np.uint8)
        self._encoder.append(padded)

    @property
    def compressed_bytes(self) -> int:
        return self._encoder.compressed_bytes

    def tracks(self) -> dict[str, Track]:
        return {"text": self._encoder.finish()}


class _ObservationRecorder:
    """Leaves ``[A, ...]`` of what the agents observe."""

    def __init__(self, env: GymEnv) -> None:
        self._spec = obs_spec_of(env.observation_space)
        self._has_agents = isinstance(env.observation_space, AgentsSpace)
        self.begin()

    def begin(self) -> None:
        self._encoders: dict[str, TrackEncoder] = {}

    def look(self, observation: Any) -> None:
        leaves = self._spec.zeros(1)
        self._spec.write(observation, leaves, 0)
        for key, leaf in leaves.items():
            name, array = key, leaf
            if self._has_agents:
                if not key.startswith(f"{OBS}/"):
                    continue  # rewards and flags, which are recorded anyway
                name, array = key.removeprefix(f"{OBS}/"), leaf[0]
            if name not in self._encoders:
                self._encoders[name] = TrackEncoder(array.dtype, array.shape)
            self._encoders[name].append(array)

    @property
    def compressed_bytes(self) -> int:
        return sum(encoder.compressed_bytes for encoder in self._encoders.values())

    def tracks(self) -> dict[str, Track]:
        return {f"observations/{name}": one.finish() for name, one in self._encoders.items()}


_RECORDERS: dict[Kind, Callable[[GymEnv], _Recorder]] = {
    "frames": _FrameRecorder,
    "text": _TextRecorder,
    "observations": _ObservationRecorder,
}


def _maker_of(env: Any, kwargs: dict[str, Any]) -> Callable[..., GymEnv]:
    """Makes one environment of an id or a factory; more arguments are laid over its own."""
    first = env[0] if isinstance(env, list | tuple) else env
    of = factory_of_id if isinstance(first, str) else factory_of

    def make(**more: Any) -> GymEnv:
        return of(first, {**kwargs, **more})()

    return make


def _way_to_draw(make: Callable[..., GymEnv]) -> tuple[Kind, dict[str, Any]]:
    """What an environment can be recorded as, and the arguments that it takes; found by trying."""
    env = make()
    given, known = getattr(env, "render_mode", None), _metadata_of(env).get("render_modes") or ()
    env.close()
    wishes: list[tuple[str, dict[str, Any]]] = [(given, {})] if given in _MODES else []
    wishes += [(mode, {"render_mode": mode}) for mode in _MODES if mode in known and mode != given]
    for mode, more in wishes:
        kind = _MODES[mode]
        if _draws(make, more, kind):
            return kind, more
    return "observations", {}


def _draws(make: Callable[..., GymEnv], more: dict[str, Any], kind: Kind) -> bool:
    env = None
    try:
        env = make(**more)
        env.reset(seed=_PROBE_SEED)
        drawn: Any = env.render()
        return (_as_frame(drawn) if kind == "frames" else _as_text(drawn)) is not None
    except Exception:  # noqa: BLE001  # whatever it is, this is no way to draw it
        return False
    finally:
        if env is not None:
            with contextlib.suppress(Exception):
                env.close()


def _metadata_of(env: GymEnv) -> dict[str, Any]:
    inner: Any = env.env if isinstance(env, AgentsEnv) else env
    return dict(getattr(inner, "metadata", None) or {})


def _as_frame(drawn: Any) -> np.ndarray | None:
    """``[H, W, 3]`` uint8, or None where that is not what was drawn."""
    is_frame = isinstance(drawn, np.ndarray) and drawn.dtype == np.uint8 and drawn.ndim == 3
    return drawn if is_frame and drawn.shape[2] == 3 and drawn.size else None


def _as_text(drawn: Any) -> str | None:
    if isinstance(drawn, io.StringIO):
        return drawn.getvalue()
    return drawn if isinstance(drawn, str) else None
