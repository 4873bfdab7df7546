"""Which settings of a run may change when it goes on."""

from metta.errors import ConfigError
from metta.train.problems import shown
from metta.train.schema import setting_values
from metta.train.train_config import TrainingConfig

__all__ = ["MAY_CHANGE", "check_changes"]

MAY_CHANGE = (
    "experiment_name",
    "trainer.total_timesteps",
    "trainer.verbose",
    "trainer.device",
    "trainer.rollout.num_workers",
    "trainer.rollout.step_timeout_seconds",
    "trainer.rollout.start_timeout_seconds",
    "trainer.checkpoint.",
    "trainer.evaluation.",
    "trainer.logging.",
)
"""Settings, and groups of them (with a dot at the end), that do not decide what was learned up to now."""


def check_changes(stored: TrainingConfig, wanted: TrainingConfig, where: str) -> None:
    """Refuse to go on with a run under settings that it was not begun with; names all of them."""
    before, after = setting_values(stored), setting_values(wanted)
    changed = [
        f"{path} was {shown(before[path])}, now {shown(after[path])}"
        for path in after
        if before[path] != after[path] and not path.startswith(MAY_CHANGE)
    ]
    if changed:
        raise ConfigError(
            f"{where} holds a run with other settings, which would make two runs of one: "
            f"{'; '.join(changed)}. Begin in another run directory, or leave these settings as they were"
        )
