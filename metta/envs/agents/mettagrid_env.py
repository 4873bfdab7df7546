"""Worlds of mettagrid (extra `mettagrid`) as parallel environments: tokens become grids, seeds decide all.

A world is described by mettagrid's own ``MettaGridConfig``. Whatever follows from chance, its map too, is
a function of the seed given to `reset`, so that an episode can be repeated by its seed and its actions.
"""

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from metta.errors import EnvError, MissingExtraError

__all__ = [
    "WORLDS",
    "MettaGridEnv",
    "TokenGrid",
    "arena_small",
    "make_mettagrid",
    "require_mettagrid",
]

_PACKAGE = "mettagrid"
_GLOBAL, _PADDING = 0xFE, 0xFF
"""Coordinates of tokens that belong to no cell, and of empty tokens."""
_ABOUT_SELF = ("episode_completion_pct", "last_action", "last_reward", "goal", "lp:")
"""Features of the agent as a whole, by the beginnings of their names."""
_UNSEEN = ("agent_id",)
"""Features that are left out: a policy that knows which agent it plays can memorise."""
_COUNTED = ("amount", "gained", "lost")


class TokenGrid:
    """How observation tokens ``[A, K, 3]`` (place, feature, value) become arrays of fixed meaning.

    ``grid`` ``[A, C, H, W]`` float32 has a plane for every feature of cells, divided by mettagrid's own
    scale, and one of zeros and ones for every tag (kind of object); ``self`` ``[A, F]`` float32 has those
    of the agent as a whole.
    """

    def __init__(self, game: Any) -> None:
        ids = game.id_map()
        features = [feature for feature in ids.features() if feature.name not in _UNSEEN]
        about_self = [f for f in features if f.name.startswith(_ABOUT_SELF)]
        of_cells = [f for f in features if f not in about_self and f.name != "tag"]
        tags = [feature.id for feature in features if feature.name == "tag"]
        self.planes = [*(f.name for f in of_cells), *ids.tag_names()]
        """Names of the planes of ``grid``, in order."""
        self.names = [f.name for f in about_self]
        """Names of the entries of ``self``, in order."""
        self.shape = (len(self.planes), int(game.obs.height), int(game.obs.width))
        # of each feature: its scale, its plane or entry (-1: none), and whether its value picks the plane
        self._scale = np.ones(256, np.float32)
        self._plane, self._entry = np.full(256, -1), np.full(256, -1)
        self._is_tag = np.zeros(256, bool)
        for feature in features:
            self._scale[feature.id] = max(float(feature.normalization), 1.0)
        self._plane[[f.id for f in of_cells]] = np.arange(len(of_cells))
        self._plane[tags], self._is_tag[tags] = len(of_cells), True
        self._entry[[f.id for f in about_self]] = np.arange(len(about_self))

    @property
    def space(self) -> spaces.Dict:
        """What one agent sees."""
        grid = spaces.Box(0, np.inf, self.shape, np.float32)
        return spaces.Dict(
            [("grid", grid), ("self", spaces.Box(0, np.inf, (len(self.names),), np.float32))]
        )

    def read(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The arrays ``[A, C, H, W]`` and ``[A, F]`` of tokens ``[A, K, 3]`` uint8."""
        planes, height, width = self.shape
        grid = np.zeros((len(tokens), planes, height, width), np.float32)
        own = np.zeros((len(tokens), len(self.names)), np.float32)
        agents, at = np.nonzero(tokens[..., 0] != _PADDING)
        places, features, values = tokens[agents, at].T.astype(np.int64)
        scaled = values / self._scale[features]
        tagged = self._is_tag[features]
        plane = self._plane[features] + np.where(tagged, values, 0)
        rows, columns = places >> 4, places & 0x0F
        is_cell = (places != _GLOBAL) & (self._plane[features] >= 0) & (plane < planes)
        is_cell &= (rows < height) & (columns < width)
        chosen = agents[is_cell], plane[is_cell], rows[is_cell], columns[is_cell]
        grid[chosen] = np.where(tagged, 1.0, scaled)[is_cell]
        is_own = (places == _GLOBAL) & (self._entry[features] >= 0)
        own[agents[is_own], self._entry[features[is_own]]] = scaled[is_own]
        return grid, own


class MettaGridEnv:
    """One world of mettagrid as a PettingZoo parallel environment.

        env = MettaGridEnv(arena_small(num_agents=4))

    `config` is a ``MettaGridConfig`` whose map is drawn anew for each seed, where its builder has one. At
    an episode's end every agent's info holds mettagrid's statistics of it.
    """

    render_mode = None

    def __init__(self, config: Any) -> None:
        self._simulation_class = importlib.import_module("mettagrid.simulator").Simulation
        self._config = config.model_copy(deep=True)
        game = self._config.game
        self.possible_agents = [f"agent_{index}" for index in range(game.num_agents)]
        self.agents: list[str] = []
        self._tokens = TokenGrid(game)
        self._observation_space = self._tokens.space
        # what mettagrid does not mention did not happen: a mean over episodes needs the zero
        counts = [f"{name}.{what}" for name in game.resource_names for what in _COUNTED]
        self._counted = [*counts, "action.failed"]
        self._seed = 0
        self._simulation: Any = None
        self._action_space = spaces.Discrete(len(list(game.actions.actions())))

    def observation_space(self, _agent: str) -> spaces.Space[Any]:
        """See `TokenGrid`."""
        return self._observation_space

    def action_space(self, _agent: str) -> spaces.Space[Any]:
        """Which of the actions that the configuration enables, in its order."""
        return self._action_space

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Draw a map and begin; without a seed the next one after the last."""
        del options  # there are none
        self._seed = self._seed + 1 if seed is None else int(seed)
        self.close()
        builder = self._config.game.map_builder
        if hasattr(builder, "seed"):
            builder.seed = self._seed
        self._simulation = self._simulation_class(self._config, seed=self._seed)
        self.agents = list(self.possible_agents)
        return self._observations(), {name: {} for name in self.agents}

    def step(self, actions: Mapping[str, int]) -> tuple[dict[str, Any], ...]:
        """Let all agents act at once."""
        world = self._simulation._c_sim
        order = world.actions()
        for index, name in enumerate(self.possible_agents):
            order[index] = actions.get(name, 0)
        self._simulation.step()
        acted = [(self.possible_agents.index(name), name) for name in self.agents]
        ended, cut, rewards = world.terminals(), world.truncations(), world.rewards()
        terminated = {name: bool(ended[index]) for index, name in acted}
        truncated = {name: bool(cut[index]) for index, name in acted}
        infos: dict[str, dict[str, float]] = {name: {} for _, name in acted}
        if self._simulation.is_done():
            stats = self._simulation.episode_stats["agent"]
            infos = {name: self._numbers(stats[index]) for index, name in acted}
        self.agents = [name for _, name in acted if not (terminated[name] or truncated[name])]
        earned = {name: float(rewards[index]) for index, name in acted}
        return self._observations(), earned, terminated, truncated, infos

    def render(self) -> None:
        """Nothing: mettagrid draws in separate programs."""

    def close(self) -> None:
        """End the world; may be called more than once."""
        if self._simulation is not None:
            self._simulation.close()
            self._simulation = None

    def __str__(self) -> str:
        return f"<{_PACKAGE} {self._config.label}>"

    def _observations(self) -> dict[str, Any]:
        grid, own = self._tokens.read(self._simulation._c_sim.observations())
        return {
            name: {"grid": grid[index], "self": own[index]}
            for index, name in enumerate(self.possible_agents)
        }

    def _numbers(self, stats: Mapping[str, float]) -> dict[str, float]:
        return {**dict.fromkeys(self._counted, 0.0), **stats}


def arena_small(
    num_agents: int = 4, max_steps: int = 64, size: int = 16, num_altars: int = 24, view: int = 7
) -> Any:
    """A ``MettaGridConfig``: mettagrid's arena, small and peaceful, with a heart on every altar.

    An agent who walks into an altar takes its heart, which is its reward of 1, and the altar is gone.
    Agents see `view` x `view` cells of `size` x `size`.
    """
    grid = importlib.import_module("mettagrid.config.mettagrid_config")
    handlers = importlib.import_module("mettagrid.config.handler_config")
    maps = importlib.import_module("mettagrid.map_builder.random_map")
    builder = maps.RandomMapBuilder.Config(
        agents=num_agents,
        width=size,
        height=size,
        border_width=1,
        objects={"wall": size // 2, "altar": num_altars},
    )
    config = importlib.import_module("mettagrid.builder.envs").make_arena(
        num_agents, combat=False, map_builder=builder
    )
    config.label = "arena_small"
    game = config.game
    game.resource_names = ["heart", "laser", "armor"]
    game.objects["altar"] = grid.GridObjectConfig(
        name="altar",
        inventory=grid.InventoryConfig(initial={"heart": 1}),
        on_use_handler=handlers.Handler(
            mutations=[handlers.withdraw({"heart": 1}, remove_when_empty=True)]
        ),
    )
    game.actions.attack.enabled = False
    # a time limit is not a terminal state: values bootstrap there
    game.max_steps, game.episode_truncates = max_steps, True
    game.obs.width = game.obs.height = view
    game.obs.num_tokens, game.protocol_details_obs = 4 * view * view, False
    return config


WORLDS: dict[str, Callable[..., Any]] = {"arena_small": arena_small}
"""What makes the configurations of metta's own worlds, by the names that follow ``mettagrid:``."""


def require_mettagrid(name: str) -> None:
    """`MissingExtraError` where mettagrid is not installed; it is not loaded."""
    if importlib.util.find_spec(_PACKAGE) is None:
        raise MissingExtraError(_PACKAGE, _PACKAGE, f"the environment {_PACKAGE}:{name}")


def make_mettagrid(make_config: Callable[..., Any], **kwargs: Any) -> MettaGridEnv:
    """The world of the ``MettaGridConfig`` that a function returns for these arguments."""
    config = make_config(**kwargs)
    if not hasattr(config, "game"):
        raise EnvError(
            f"{make_config!r} returned a {type(config).__name__}; a world of {_PACKAGE} needs a "
            "MettaGridConfig"
        )
    return MettaGridEnv(config)
