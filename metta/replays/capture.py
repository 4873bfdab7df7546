"""What is seen of an environment while it plays: images, texts, observations, or a grid world.

Vectorised environments begin the next episode in the step that ends one, so the last state is recorded
from below them: by a wrapper of the single environment, or in a copy of the grid world.
"""

import contextlib
import io
import os
import warnings
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
from metta.replays.replay import MAX_TEXT_BYTES, Kind
from metta.replays.tracks import TrackRecorder
from metta.spaces import obs_spec_of
from metta.train.agent_groups import AGENT_GROUPS

__all__ = ["MAX_STEPS", "Scene", "has_window", "kind_of", "open_scene"]

MAX_STEPS = 999_999
"""A recording is never longer: the copy of a grid world must not end its episode."""
_MODES: dict[str, Kind] = {"rgb_array": "frames", "ansi": "text"}
"""Ways to draw that are asked for, the best first."""
_WINDOW = "human"
_PROBE_SEED = 0
_DISPLAY = {"SDL_VIDEODRIVER": "dummy", "SDL_NO_SIGNAL_HANDLERS": "1"}
"""Drawing needs no screen, and must not take over the signals of this process."""


class Scene(Protocol):
    """The states of one episode, as they are recorded."""

    kind: Kind
    vec_env: VecEnv
    """The one environment that plays."""
    fps: float | None
    recorder: TrackRecorder
    """Has every state, from the reset to the last one."""

    def begin(self, seed: int) -> None:
        """The environment is about to be reset with the seeds that belong to `seed`."""
        ...

    def after_step(self, actions: np.ndarray) -> None:
        """A step was taken."""
        ...

    def close(self) -> None:
        """Close the environment."""
        ...


@contextlib.contextmanager
def open_scene(task: Task) -> Iterator[Scene]:
    """One environment of a task, and what can be seen of it; found out by trying to draw it.

    An environment that cannot be drawn is recorded by what its agents observe.
    """
    with (
        _display_kept(),
        contextlib.closing(GridScene(task) if is_grid_id(task.env) else DrawnScene(task)) as scene,
    ):
        yield scene


def kind_of(task: Task) -> Kind:
    """What an episode of a task would be recorded as."""
    if is_grid_id(task.env):
        return "grid"
    kwargs, _ = split_agent_groups(task.env_kwargs)
    with _display_kept():
        return _way_to_draw(_maker_of(task.env, kwargs, task.wrappers))[0]


def has_window(task: Task) -> bool:
    """Whether an environment says that it can show itself in a window (render mode ``human``)."""
    if is_grid_id(task.env):
        return False
    kwargs, _ = split_agent_groups(task.env_kwargs)
    with contextlib.closing(_maker_of(task.env, kwargs, task.wrappers)()) as env:
        return _WINDOW in (_metadata_of(env).get("render_modes") or ())


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
    """A grid world, and a copy of it that takes the same actions and never ends."""

    kind: Kind = "grid"
    fps: float | None = None

    def __init__(self, task: Task) -> None:
        self.vec_env = make_vec_env(task)
        self.recorder = TrackRecorder()
        kwargs, _ = split_agent_groups(task.env_kwargs)  # groups do not show in the picture
        copy = make_vec_env(Task(task.env, {**kwargs, "horizon": MAX_STEPS + 1, "goal": 0}))
        assert isinstance(copy, GridVecEnv)
        self.copy = copy

    def begin(self, seed: int) -> None:
        """Reset the copy."""
        seeds = row_seeds(seed, self.copy.num_rows)
        self._obs = self.copy.obs_spec.zeros(self.copy.num_rows)
        self.copy.reset(seeds, self._obs)
        self._look()

    def after_step(self, actions: np.ndarray) -> None:
        """Step the copy with the same actions."""
        self.copy.send(0, actions)
        self.copy.recv(0, self._obs)
        self._look()

    def close(self) -> None:
        """Close the world and its copy."""
        self.vec_env.close()
        self.copy.close()

    def _look(self) -> None:
        """Cells, and place, cargo and keys of each agent."""
        view = self.copy.view(0)
        for name in ("cells", "agents", "cargo", "keys"):
            array = getattr(view, name)
            self.recorder.append(name, array if array.dtype == np.uint8 else array.astype(np.int32))


class DrawnScene:
    """An environment of gymnasium or PettingZoo that draws itself after the reset and every step."""

    def __init__(self, task: Task) -> None:
        kwargs, groups = split_agent_groups(task.env_kwargs)
        make = _maker_of(task.env, kwargs, task.wrappers)
        self.kind, more = _way_to_draw(make)
        self.fps: float | None = None
        self.recorder = TrackRecorder()
        sizes = {AGENT_GROUPS: list(groups)} if groups else {}
        self.vec_env = make_vec_env(lambda: self._captured(make(**more)), env_kwargs=sizes)

    def begin(self, seed: int) -> None:
        """Nothing to do: the wrapper records."""

    def after_step(self, actions: np.ndarray) -> None:
        """Nothing to do: the wrapper has recorded the step."""

    def close(self) -> None:
        """Close the environment."""
        self.vec_env.close()

    def _captured(self, env: GymEnv) -> GymEnv:
        rate = _metadata_of(env).get("render_fps")
        if isinstance(rate, int | float) and 0 < rate < 1000:
            self.fps = float(rate)
        return CapturingEnv(env, _LOOKS[self.kind](env, self.recorder), self.recorder)


class CapturingEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Records the first episode that has a step in it, with its last state."""

    def __init__(self, env: GymEnv, look: "_Look", recorder: TrackRecorder) -> None:
        super().__init__(env)
        self._look, self._recorder = look, recorder
        self._num_steps = 0
        self._is_over = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset, and record unless an episode is recorded already."""
        seen, info = self.env.reset(seed=seed, options=options)
        self._is_over |= self._num_steps > 0
        if not self._is_over:
            self._recorder.clear()
            self._look(seen)
        return seen, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, and record."""
        result = self.env.step(action)
        if not self._is_over:
            self._num_steps += 1
            self._look(result[0])
        return result


_Look = Callable[[Any], None]
"""Records the present moment; takes the observation."""


def _look_at_frames(env: GymEnv, recorder: TrackRecorder) -> _Look:
    def look(_: Any) -> None:
        frame = _as_frame(env.render())
        if frame is None:
            raise EnvError(f"{env} drew an image after its reset, but none after a step")
        recorder.append("frames", frame)

    return look


def _look_at_text(env: GymEnv, recorder: TrackRecorder) -> _Look:
    def look(_: Any) -> None:
        written = (_as_text(env.render()) or "").replace("\0", "").encode("utf-8", "replace")
        if len(written) > MAX_TEXT_BYTES:
            raise EnvError(f"{env} drew a text of {len(written)} bytes, more than {MAX_TEXT_BYTES}")
        recorder.append_text("text", written)

    return look


def _look_at_observations(env: GymEnv, recorder: TrackRecorder) -> _Look:
    """Leaves ``[A, ...]`` of the agents' observations."""
    spec = obs_spec_of(env.observation_space)
    has_agents = isinstance(env.observation_space, AgentsSpace)

    def look(observation: Any) -> None:
        leaves = spec.zeros(1)
        spec.write(observation, leaves, 0)
        for key, leaf in leaves.items():
            if not has_agents:
                recorder.append(f"observations/{key}", leaf)
            elif key.startswith(
                f"{OBS}/"
            ):  # the others are rewards and flags, which are recorded anyway
                recorder.append(f"observations/{key.removeprefix(f'{OBS}/')}", leaf[0])

    return look


_LOOKS: dict[Kind, Callable[[GymEnv, TrackRecorder], _Look]] = {
    "frames": _look_at_frames,
    "text": _look_at_text,
    "observations": _look_at_observations,
}


def _maker_of(env: Any, kwargs: dict[str, Any], wrappers: tuple[str, ...]) -> Callable[..., GymEnv]:
    """Makes one environment of an id or a factory, wrapped; further arguments override its own."""
    first = env[0] if isinstance(env, list | tuple) else env
    of = factory_of_id if isinstance(first, str) else factory_of

    def make(**more: Any) -> GymEnv:
        return of(first, {**kwargs, **more}, wrappers)()

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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a missing screen or library says goes nowhere
            env = make(**more)
            env.reset(seed=_PROBE_SEED)
            drawn: Any = env.render()
        return (_as_frame(drawn) if kind == "frames" else _as_text(drawn)) is not None
    except Exception:  # noqa: BLE001  # any failure: it cannot be drawn this way
        return False
    finally:
        if env is not None:
            with contextlib.suppress(Exception):
                env.close()


def _metadata_of(env: GymEnv) -> dict[str, Any]:
    inner: Any = env.env if isinstance(env, AgentsEnv) else env
    return dict(getattr(inner, "metadata", None) or {})


def _as_frame(drawn: Any) -> np.ndarray | None:
    """``[H, W, 3]`` uint8, or None if something else was drawn."""
    is_frame = isinstance(drawn, np.ndarray) and drawn.dtype == np.uint8 and drawn.ndim == 3
    return drawn if is_frame and drawn.shape[2] == 3 and drawn.size else None


def _as_text(drawn: Any) -> str | None:
    if isinstance(drawn, io.StringIO):
        return drawn.getvalue()
    return drawn if isinstance(drawn, str) else None
