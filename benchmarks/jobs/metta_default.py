"""metta as it comes."""

from benchmarks import settings as s
from metta import PPOTrainer

trainer = PPOTrainer(
    None,
    "CartPole-v1",
    **s.METTA_SETTINGS,
)
trainer.train(s.TOTAL_STEPS, on_epoch_end=lambda state, _: s.report(state.agent_step))
