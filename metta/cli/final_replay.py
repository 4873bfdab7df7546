"""The replay that every run has at its end: one episode of the final policy on its training task."""

import dataclasses
from pathlib import Path

from metta.cli.tables import say
from metta.replays.file import list_replays
from metta.rl.components.trainer import Trainer
from metta.rl.evaluate.evaluator import PolicyEvaluator, Recorded
from metta.secrets import scrub
from metta.train.sim_config import SimulationConfig, SimulationSuiteConfig

__all__ = ["record_final_replay"]

_MAX_STEPS, _MAX_SECONDS = 500, 10.0
"""A run must not wait long for its last picture."""


def record_final_replay(trainer: Trainer) -> None:
    """Record the final policy, unless its epoch has a replay already; what goes wrong is one line of text.

    Training is over and saved: weights, scores and random numbers are not touched.
    """
    session, state = trainer.session, trainer.state
    if session is None or not trainer.config.evaluation.final_replay:
        return
    try:
        if any(info.epoch == state.epoch for _, info in list_replays(session.replay_dir)):
            return
        recorded = _recorded(trainer, session.replay_dir)
        uri = state.policies.latest_saved_policy_record
        about = {"epoch": state.epoch, "agent_step": state.agent_step}
        for name, path in recorded.files.items():
            session.stats_client.record_replay(
                **about, simulation=name, uri=Path(path).as_uri(), policy_uri=uri and uri.uri
            )
        problem = "; ".join(recorded.failures.values())
    except KeyboardInterrupt:
        problem = "it was interrupted"
    except Exception as error:  # noqa: BLE001  # a replay must not cost a run
        problem = f"{type(error).__name__}: {error}"
    if problem:
        say(scrub(f"no replay of the final policy: {' '.join(problem.split())}"))


def _recorded(trainer: Trainer, folder: Path) -> Recorded:
    config, task = trainer.config.evaluation, trainer.curriculum.task
    limit = min(config.replay_max_steps, _MAX_STEPS)
    simulation = {f"training/{task.name}": SimulationConfig(max_seconds=_MAX_SECONDS)}
    evaluator = PolicyEvaluator(
        SimulationSuiteConfig(name="training", simulations=simulation),
        dataclasses.replace(config, replay_max_steps=limit),
        seed=trainer.config.seed,
        training_task=task,
    )
    state = trainer.state
    return evaluator.record(trainer.policy, folder, epoch=state.epoch, agent_step=state.agent_step)
