"""Learning: advantages, minibatches, losses and the step, from one rollout."""
