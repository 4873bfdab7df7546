"""The one workload that every job runs: CartPole, 8 environments x 128 steps."""

import time

NUM_ENVS = 8
HORIZON = 128
UPDATE_EPOCHS = 4
NUM_MINIBATCHES = 4
LEARNING_RATE = 2.5e-4
GAMMA, GAE_LAMBDA = 0.99, 0.95
CLIP, ENTROPY, VALUE, MAX_GRAD_NORM = 0.2, 0.01, 0.5, 0.5
BATCH = NUM_ENVS * HORIZON
TOTAL_STEPS = 100 * BATCH
HIDDEN = 64

METTA_SETTINGS = {
    "num_envs": NUM_ENVS,
    "horizon": HORIZON,
    "update_epochs": UPDATE_EPOCHS,
    "num_minibatches": NUM_MINIBATCHES,
    "learning_rate": LEARNING_RATE,
    "gamma": GAMMA,
    "gae_lambda": GAE_LAMBDA,
    "clip_coef": CLIP,
    "ent_coef": ENTROPY,
    "vf_coef": VALUE,
    "max_grad_norm": MAX_GRAD_NORM,
}


def report(steps: int) -> None:
    """One line per iteration: agent steps so far and a clock that all processes share."""
    print(f"{steps} {time.monotonic():.6f}", flush=True)


def require_one_thread() -> None:
    """Small networks run best on one thread; every job does."""
    import torch

    torch.set_num_threads(1)
