"""metta as it comes."""

from benchmarks import settings as s
from metta import PPOTrainer

trainer = PPOTrainer(
    None,
    "CartPole-v1",
    num_envs=s.NUM_ENVS,
    horizon=s.HORIZON,
    update_epochs=s.UPDATE_EPOCHS,
    num_minibatches=s.NUM_MINIBATCHES,
    learning_rate=s.LEARNING_RATE,
    gamma=s.GAMMA,
    gae_lambda=s.GAE_LAMBDA,
    clip_coef=s.CLIP,
    ent_coef=s.ENTROPY,
    vf_coef=s.VALUE,
    max_grad_norm=s.MAX_GRAD_NORM,
)
trainer.train(s.TOTAL_STEPS, on_epoch_end=lambda state, _: s.report(state.agent_step))
