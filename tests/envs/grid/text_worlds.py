"""Grid worlds drawn by hand, and kernels to play them with."""

from typing import Any

import numpy as np
import pytest

from metta.envs.grid import Cell, GridVecEnv, GridWorldConfig, native_available
from metta.envs.vec_env import StepResult

SIGNS = {
    "#": Cell.WALL,
    ".": Cell.EMPTY,
    "*": Cell.RESOURCE,
    "D": Cell.DEPOT,
    "+": Cell.DOOR,
    "k": Cell.KEY,
}
ACTIONS = {"stay": 0, "north": 1, "east": 2, "south": 3, "west": 4}

needs_native = pytest.mark.skipif(
    not native_available(), reason="metta.envs.grid._native was not built (no C compiler?)"
)
both_kernels = pytest.mark.parametrize(
    "native", [pytest.param(True, marks=needs_native), False], ids=["c", "numpy"]
)


class TextWorld:
    """One world from a drawing; digits are the agents, e.g. ``#0*.#``."""

    def __init__(
        self,
        drawing: str,
        *,
        native: bool,
        cargo: tuple[int, ...] = (),
        keys: tuple[int, ...] = (),
        step: int = 0,
        **settings: Any,
    ) -> None:
        lines = drawing.split()
        num_agents = sum(sign.isdigit() for sign in drawing)
        config = GridWorldConfig(
            **{
                "width": len(lines[0]), "height": len(lines), "num_agents": num_agents,
                "view_radius": 1, "num_resources": 0, "num_depots": 0, "respawn": False,
                "horizon": 100, **settings,
            }
        )  # fmt: skip
        self.env = GridVecEnv([config], 1, native=native)
        self.obs = self.env.obs_spec.zeros(num_agents)
        self.env.prepare_restore()
        self.env.reset([0] * num_agents, self.obs)
        state = self.env.state_dict()
        radius, stride = config.view_radius, state["cells"].shape[2]
        state["steps"][0] = step
        state["cargo"][0] = cargo or 0
        state["keys"][0] = keys or 0
        for row, line in enumerate(lines):
            for column, sign in enumerate(line):
                place = row + radius, column + radius
                if sign.isdigit():
                    loaded = state["cargo"][0, int(sign)] > 0
                    state["cells"][0][place] = Cell.LOADED_AGENT if loaded else Cell.AGENT
                    state["positions"][0, int(sign)] = place[0] * stride + place[1]
                else:
                    state["cells"][0][place] = SIGNS[sign]
        self.env.load_state_dict(state)

    def act(self, *names: str) -> StepResult:
        """One action of each agent, by name."""
        self.env.send(0, np.array([ACTIONS[name] for name in names]))
        return self.env.recv(0, self.obs)

    @property
    def state(self) -> dict[str, Any]:
        return self.env.state_dict()

    @property
    def counts(self) -> list[int]:
        """gathered, delivered, doors_opened and blocked of the first agent."""
        found: list[int] = self.state["counts"][0, 0].tolist()
        return found

    def drawn(self) -> str:
        """The world as its drawing, agents as digits."""
        view = self.env.view(0)
        names = {int(code): sign for sign, code in SIGNS.items()}
        lines = [[names[code] for code in row] for row in view.cells.tolist()]
        for agent, (row, column) in enumerate(view.agents.tolist()):
            lines[row][column] = str(agent)
        return "\n".join("".join(line) for line in lines)


def room(*rows: str) -> str:
    """Rows of a drawing with walls around, padded with walls to at least 5 x 5."""
    width = max(3, *(len(row) for row in rows))
    inner = [f"#{row.ljust(width, '#')}#" for row in rows]
    inner += ["#" * (width + 2)] * (3 - len(inner))
    return "\n".join(["#" * (width + 2), *inner, "#" * (width + 2)])
