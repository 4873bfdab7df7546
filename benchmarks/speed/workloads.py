"""What is measured: each workload is one task at equal settings, done by metta and by others."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "CARTPOLE",
    "NATIVE_CARTPOLE",
    "ONE_THREAD",
    "PPO_SETTINGS",
    "WORKLOADS",
    "Entry",
    "Workload",
]

CARTPOLE = "CartPole-v1"
NATIVE_CARTPOLE = "metta/cartpole"
"""CartPole in C, which comes with metta."""

ONE_THREAD = "-1thread"
"""How the name of a peer's row ends that has one thread, beside one with torch's own choice."""

PPO_SETTINGS: dict[str, float] = {
    "update_epochs": 4,
    "num_minibatches": 4,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip_coef": 0.2,
    "vf_clip_coef": 0.2,
    "ent_coef": 0.01,
    "vf_coef": 0.5,
    "max_grad_norm": 0.5,
}
"""What all workloads that learn have in common, by metta's names."""

_SMALL = {**PPO_SETTINGS, "num_envs": 8, "horizon": 128, "learning_rate": 2.5e-4}
_WIDE = {**PPO_SETTINGS, "num_envs": 1024, "horizon": 64, "learning_rate": 1e-3}
_EAGER = {"numerics.driver": "eager", "numerics.actor": "eager"}
_SMALL_BATCH, _WIDE_BATCH = 8 * 128, 1024 * 64


@dataclass(frozen=True)
class Entry:
    """A row of a workload's table: who does it, and how far."""

    name: str
    steps: int
    """Steps that are measured: some seconds of each, and at least ten iterations."""
    peer: str | None = None
    """Whose it is; None: metta's."""
    program: str = "train"
    """For metta, the module of ``benchmarks.speed.jobs``; for CleanRL, its script."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """What the program is told beside the settings of the workload."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of metta in this row only."""
    one_thread: bool = False
    needs: tuple[str, ...] = ()
    """Modules beside those that its peer always needs."""


@dataclass(frozen=True)
class Workload:
    """A task, its settings, and who does it."""

    about: str
    baseline: str | None
    """The entry that ratios are taken to, or its twin with one thread where that was faster."""
    entries: tuple[Entry, ...]
    settings: Mapping[str, float] = field(default_factory=dict)


def _sb3(steps: int, **details: Any) -> tuple[Entry, Entry]:
    """As it comes, and with one thread, which suits small networks."""
    needs = ("ale_py", "cv2") if "pong" in details else ()
    as_it_comes = Entry("sb3", steps, "sb3", details=details, needs=needs)
    return as_it_comes, dataclasses.replace(as_it_comes, name=f"sb3{ONE_THREAD}", one_thread=True)


def _small() -> Workload:
    """Peers do as many batches as take them about ten seconds."""
    batch = _SMALL_BATCH
    return Workload(
        "CartPole, Gymnasium's Python environment, 8 environments x 128 steps",
        "sb3",
        (
            Entry("metta", 200 * batch, details={"env": CARTPOLE}),
            Entry("metta-eager", 120 * batch, details={"env": CARTPOLE}, settings=_EAGER),
            *_sb3(60 * batch),
            Entry("cleanrl", 60 * batch, "cleanrl", "ppo.py"),
            Entry(f"cleanrl{ONE_THREAD}", 60 * batch, "cleanrl", "ppo.py", one_thread=True),
            Entry("plain", 60 * batch, "plain", one_thread=True),
            Entry("skrl", 20 * batch, "skrl"),
            Entry("tianshou", 20 * batch, "tianshou"),
            Entry("torchrl", 12 * batch, "torchrl"),
            Entry("sbx", 60 * batch, "sbx"),
            Entry("rllib", 15 * batch, "rllib"),
            Entry("sample-factory", 20 * batch, "sample-factory"),
        ),
        _SMALL,
    )


def _small_variants() -> dict[str, Workload]:
    batch = _SMALL_BATCH
    custom = {"env": CARTPOLE, "custom": True}
    vector = {"env": CARTPOLE, "vector": True}
    native = {"env": NATIVE_CARTPOLE}
    return {
        "w1-custom": Workload(
            "w1 with a user's own network and loss in metta",
            "sb3",
            (Entry("metta", 200 * batch, details=custom), *_sb3(60 * batch)),
            _SMALL,
        ),
        "w1-vector": Workload(
            "w1 with Gymnasium's vector environment in metta",
            "sb3",
            (Entry("metta", 200 * batch, details=vector), *_sb3(60 * batch)),
            _SMALL,
        ),
        "w1-native": Workload(
            "w1 with metta's CartPole in C, beside a loop that JAX compiles as a whole",
            "jax",
            (
                Entry("metta", 1000 * batch, details=native),
                Entry("jax", 1000 * batch, "jax", details={"chunk": 10}),
            ),
            _SMALL,
        ),
    }


def _wide() -> dict[str, Workload]:
    batch = _WIDE_BATCH
    return {
        "w2-vector": Workload(
            "CartPole, Gymnasium's vector environment, 1024 environments x 64 steps",
            "skrl",
            (
                Entry("metta", 30 * batch, details={"env": CARTPOLE, "vector": True}),
                Entry("skrl", 12 * batch, "skrl", details={"vector": True}),
                Entry("plain", 15 * batch, "plain", details={"vector": True}),
                *_sb3(6 * batch),
                Entry("cleanrl", 6 * batch, "cleanrl", "ppo.py"),
            ),
            _WIDE,
        ),
        "w2-native": Workload(
            "1024 CartPoles in C x 64 steps, beside a loop that JAX compiles as a whole",
            "jax",
            (
                Entry("metta", 100 * batch, details={"env": NATIVE_CARTPOLE}),
                Entry("jax", 60 * batch, "jax", details={"chunk": 2}),
            ),
            _WIDE,
        ),
    }


def _pong() -> Workload:
    batch, pong = _SMALL_BATCH, {"pong": True}
    return Workload(
        "Pong, four 84 x 84 frames, the network of Mnih et al., 8 environments x 128 steps",
        "sb3",
        (
            Entry("metta", 12 * batch, details=pong, needs=("ale_py",)),
            *_sb3(8 * batch, **pong),
            Entry(
                "cleanrl",
                8 * batch,
                "cleanrl",
                "ppo_atari.py",
                details={"env": "ale_py:PongNoFrameskip-v4"},
                needs=("ale_py", "cv2"),
            ),
        ),
        _SMALL,
    )


def _grid() -> Workload:
    rounds = {"env": "grid/gather"}
    settings = {**PPO_SETTINGS, "num_envs": 256, "horizon": 64, "learning_rate": 1e-3}
    batch = 1024 * 64
    return Workload(
        "the grid world with 1024 agents: the loop as a share of its phases alone",
        None,
        (
            Entry("mlp", 20 * batch, program="phases", details=rounds),
            Entry("lstm", 10 * batch, program="phases", details=rounds, settings={"core": "lstm"}),
        ),
        settings,
    )


def _limits() -> Workload:
    """The other workloads that learn, each with its own settings."""
    small, wide = _SMALL_BATCH, _WIDE_BATCH
    vector, native = {"env": CARTPOLE, "vector": True}, {"env": NATIVE_CARTPOLE}
    rows: tuple[tuple[str, int, dict[str, Any], dict[str, float]], ...] = (
        ("w1", 100 * small, {"env": CARTPOLE}, _SMALL),
        ("w1-vector", 100 * small, vector, _SMALL),
        ("w1-native", 200 * small, native, _SMALL),
        ("w2-vector", 15 * wide, vector, _WIDE),
        ("w2-native", 15 * wide, native, _WIDE),
        ("w3", 6 * small, {"pong": True}, _SMALL),
    )
    return Workload(
        "the loop of the other workloads as a share of its phases alone",
        None,
        tuple(
            Entry(
                name,
                steps,
                program="phases",
                details=details,
                settings=settings,
                needs=("ale_py",) if "pong" in details else (),
            )
            for name, steps, details, settings in rows
        ),
    )


def _collecting() -> dict[str, Workload]:
    def work(name: str, workers: int, groups: int) -> Entry:
        details = {"env": "work", "num_workers": workers, "num_groups": groups, "num_envs": 8}
        return Entry(name, 16_000, program="collect", details=details)

    cartpoles = {"env": CARTPOLE, "num_envs": 64}
    return {
        "w5-work": Workload(
            "8 environments of 1 ms of work per step, collecting only",
            "metta-serial",
            (work("metta-serial", 0, 1), work("metta-2workers", 2, 1), work("metta-2x2", 2, 2)),
        ),
        "w5-cartpole": Workload(
            "64 CartPoles stepped with random actions in processes",
            "gymnasium-async",
            (
                Entry(
                    "metta-2workers",
                    640_000,
                    program="step",
                    details={**cartpoles, "num_workers": 2},
                ),
                Entry("gymnasium-async", 64_000, "gymnasium", details=cartpoles),
            ),
        ),
    }


def _growth() -> Workload:
    """One setting grows, the others stay; the name of an entry is its place on the axis."""
    axes: dict[str, tuple[int, ...]] = {
        "num_envs": (1, 4, 16, 64, 256, 1024, 4096),
        "horizon": (16, 64, 256, 1024),
        "hidden_size": (16, 64, 256, 1024),
        "num_hooks": (0, 1, 4, 16, 64),
    }
    entries = []
    for axis, values in axes.items():
        for value in values:
            details: dict[str, Any] = {"env": CARTPOLE, "vector": True}
            settings = {} if axis == "num_hooks" else {axis: value}
            if axis == "num_hooks":
                details[axis] = value
            batch = settings.get("num_envs", 64) * settings.get("horizon", 64)
            most = 6 if settings.get("hidden_size", 0) > 256 else 200
            steps = batch * min(most, max(15, 200_000 // batch))
            entries.append(Entry(f"{axis}={value}", steps, details=details, settings=settings))
    common = {**PPO_SETTINGS, "num_envs": 64, "horizon": 64, "learning_rate": 1e-3}
    return Workload("how speed changes with sizes", None, tuple(entries), common)


WORKLOADS: dict[str, Workload] = {
    "w1": _small(),
    **_small_variants(),
    **_wide(),
    "w3": _pong(),
    "w4": _grid(),
    "limits": _limits(),
    **_collecting(),
    "growth": _growth(),
}
"""Workloads by name."""
