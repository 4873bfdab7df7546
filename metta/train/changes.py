"""Which settings of a run may change when it goes on."""

from metta.errors import ConfigError
from metta.train.problems import shown
from metta.train.schema import setting_values
from metta.train.train_config import TrainingConfig

__all__ = ["MAY_CHANGE", "check_changes"]

MAY_CHANGE: tuple[str, ...] = (
    "experiment_name",
    "trainer.total_timesteps",
    "trainer.verbose",
    "trainer.device",
    "trainer.rollout.num_workers",
    "trainer.rollout.step_timeout_seconds",
    "trainer.rollout.start_timeout_seconds",
    "trainer.rollout.max_worker_restarts",
    "trainer.rollout.on_env_error",
    "trainer.checkpoint.checkpoint_interval",
    "trainer.checkpoint.wandb_checkpoint_interval",
    "trainer.checkpoint.keep_last",
    "trainer.checkpoint.keep_every",
    "trainer.checkpoint.rescue_share",
    "trainer.numerics.",
    "trainer.evaluation.",
    "trainer.logging.",
)
"""Settings, and how groups of them begin, that do not decide what was learned up to now.

What decides only the last bits (`numerics`, `device`) is compared with the checkpoint itself.
"""
_SYNC_RESET = "sync_reset"


def check_changes(stored: TrainingConfig, wanted: TrainingConfig, where: str) -> None:
    """Refuse to go on with a run under settings that it was not begun with; names all of them."""
    before, after = setting_values(stored), setting_values(wanted)
    may_change = MAY_CHANGE
    if (
        stored.trainer.checkpoint.env_restore == _SYNC_RESET
    ):  # episodes end where checkpoints are made
        may_change = tuple(path for path in MAY_CHANGE if not path.endswith(".checkpoint_interval"))
    changed = [
        f"{path} was {shown(before[path])}, now {shown(after[path])}"
        for path in after
        if before[path] != after[path] and not path.startswith(may_change)
    ]
    if changed:
        raise ConfigError(
            f"{where} holds a run with other settings, which would make two runs of one: "
            f"{'; '.join(changed)}. Begin in another run directory, or leave these settings as they were"
        )
