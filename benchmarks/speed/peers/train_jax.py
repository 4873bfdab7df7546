"""PPO and CartPole in JAX, compiled as one loop: nothing returns to Python within a chunk of iterations."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from job_settings import read_settings, report

Tree = Any
GRAVITY, CART, POLE, HALF_LENGTH, FORCE, SECONDS = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
MAX_POSITION, MAX_ANGLE, MAX_STEPS = 2.4, 12 * 2 * np.pi / 360, 500
BETA1, BETA2, EPS = 0.9, 0.999, 1e-5


class World(NamedTuple):
    """Many CartPoles."""

    bodies: jax.Array
    """``[N, 4]``: position, speed, angle, angular speed."""
    ages: jax.Array
    """``[N]``: steps of the episode so far."""


class Learner(NamedTuple):
    """Weights, and the moments of Adam."""

    weights: Tree
    first: Tree
    second: Tree
    count: jax.Array


def fresh_bodies(key: jax.Array, num_envs: int) -> jax.Array:
    """States in which episodes begin."""
    return jax.random.uniform(key, (num_envs, 4), minval=-0.05, maxval=0.05)


def step_world(world: World, actions: jax.Array, key: jax.Array):
    """One Euler step of the equations of Barto, Sutton and Anderson (1983); ended episodes begin anew."""
    _, speed, angle, spin = world.bodies.T
    force = jnp.where(actions == 1, FORCE, -FORCE)
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    total, moment = CART + POLE, POLE * HALF_LENGTH
    pushed = (force + moment * spin**2 * sine) / total
    turning = (GRAVITY * sine - cosine * pushed) / (
        HALF_LENGTH * (4.0 / 3.0 - POLE * cosine**2 / total)
    )
    acceleration = pushed - moment * turning * cosine / total
    rates = jnp.stack([speed, acceleration, spin, turning], 1)
    bodies, ages = world.bodies + SECONDS * rates, world.ages + 1
    fell = (jnp.abs(bodies[:, 0]) > MAX_POSITION) | (jnp.abs(bodies[:, 2]) > MAX_ANGLE)
    ended = fell | (ages >= MAX_STEPS)
    begun = fresh_bodies(key, len(bodies))
    following = World(jnp.where(ended[:, None], begun, bodies), jnp.where(ended, 0, ages))
    return following, ended, jnp.where(ended, ages, 0)


def make_layers(key: jax.Array, sizes: list[int], last_gain: float) -> Tree:
    """Orthogonal weights and zero biases."""
    gains = [2**0.5] * (len(sizes) - 2) + [last_gain]
    keys = jax.random.split(key, len(gains))
    shapes = zip(keys, gains, sizes[:-1], sizes[1:], strict=True)
    return [
        (jax.nn.initializers.orthogonal(gain)(own, (inputs, outputs)), jnp.zeros(outputs))
        for own, gain, inputs, outputs in shapes
    ]


def forward(layers: Tree, inputs: jax.Array) -> jax.Array:
    """Tanh between layers."""
    for weight, bias in layers[:-1]:
        inputs = jnp.tanh(inputs @ weight + bias)
    weight, bias = layers[-1]
    return inputs @ weight + bias


def chosen(log_probs: jax.Array, actions: jax.Array) -> jax.Array:
    """Log-probabilities of the actions that were taken."""
    return jnp.take_along_axis(log_probs, actions[:, None], 1)[:, 0]


def loss_of(weights: Tree, batch: Tree) -> jax.Array:
    """PPO's loss of a minibatch."""
    obs, actions, old_log_probs, advantages, returns, old_values = batch
    log_probs = jax.nn.log_softmax(forward(weights["actor"], obs))
    values = forward(weights["critic"], obs)[:, 0]
    ratios = jnp.exp(chosen(log_probs, actions) - old_log_probs)
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    clipped = jnp.clip(ratios, 1 - s.clip_coef, 1 + s.clip_coef)
    surrogate = jnp.minimum(ratios * advantages, clipped * advantages).mean()
    near = old_values + jnp.clip(values - old_values, -s.vf_clip_coef, s.vf_clip_coef)
    value_loss = 0.5 * jnp.maximum((values - returns) ** 2, (near - returns) ** 2).mean()
    entropy = -(jnp.exp(log_probs) * log_probs).sum(-1).mean()
    return s.vf_coef * value_loss - surrogate - s.ent_coef * entropy


def learn(learner: Learner, batch: Tree):
    """One step of Adam with a clipped gradient."""
    gradient = jax.grad(loss_of)(learner.weights, batch)
    norm = jnp.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(gradient)))
    scale = jnp.minimum(1.0, s.max_grad_norm / (norm + 1e-6))
    gradient = jax.tree.map(lambda leaf: leaf * scale, gradient)
    count = learner.count + 1
    first = jax.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g, learner.first, gradient)
    second = jax.tree.map(lambda v, g: BETA2 * v + (1 - BETA2) * g**2, learner.second, gradient)

    def stepped(weight: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
        mean, square = m / (1 - BETA1**count), v / (1 - BETA2**count)
        return weight - s.learning_rate * mean / (jnp.sqrt(square) + EPS)

    weights = jax.tree.map(stepped, learner.weights, first, second)
    return Learner(weights, first, second, count), None


def collect(weights: Tree, world: World, key: jax.Array):
    """A rollout, and the lengths of episodes that ended in it."""

    def play(world: World, key: jax.Array):
        acting, beginning = jax.random.split(key)
        logits = forward(weights["actor"], world.bodies)
        values = forward(weights["critic"], world.bodies)[:, 0]
        actions = jax.random.categorical(acting, logits)
        log_probs = chosen(jax.nn.log_softmax(logits), actions)
        following, ended, lengths = step_world(world, actions, beginning)
        return following, (world.bodies, actions, log_probs, values, ended, lengths)

    return jax.lax.scan(play, world, jax.random.split(key, s.horizon))


def advantages_of(values: jax.Array, ended: jax.Array, following: jax.Array) -> jax.Array:
    """Generalised advantage estimates; the reward of CartPole is 1."""

    def back(carried: Tree, step: Tree):
        running, next_value = carried
        value, is_end = step
        alive = 1.0 - is_end
        delta = 1.0 + s.gamma * alive * next_value - value
        running = delta + s.gamma * s.gae_lambda * alive * running
        return (running, value), running

    start = jnp.zeros_like(following), following
    return jax.lax.scan(back, start, (values, ended), reverse=True)[1]


def iterate(carried: Tree, _: None):
    """One rollout and all passes over it."""
    learner, world, key = carried
    key, playing, drawing = jax.random.split(key, 3)
    world, (obs, actions, log_probs, values, ended, lengths) = collect(
        learner.weights, world, playing
    )
    following = forward(learner.weights["critic"], world.bodies)[:, 0]
    advantages = advantages_of(values, ended, following)
    columns = (obs, actions, log_probs, advantages, advantages + values, values)
    flat = [column.reshape(s.batch, *column.shape[2:]) for column in columns]

    def one_pass(learner: Learner, key: jax.Array):
        order = jax.random.permutation(key, s.batch)
        pieces = [x[order].reshape(s.num_minibatches, s.minibatch, *x.shape[1:]) for x in flat]
        return jax.lax.scan(learn, learner, pieces)

    learner, _ = jax.lax.scan(one_pass, learner, jax.random.split(drawing, s.update_epochs))
    return (learner, world, key), lengths


def main() -> None:
    """Train to the end; says what the last episodes returned, to see that it learned."""
    making, placing, key = jax.random.split(jax.random.key(1), 3)
    making = jax.random.split(making)
    weights = {
        "actor": make_layers(making[0], [4, 64, 64, 2], 0.01),
        "critic": make_layers(making[1], [4, 64, 64, 1], 1.0),
    }
    zeros = jax.tree.map(jnp.zeros_like, weights)
    learner = Learner(weights, zeros, zeros, jnp.float32(0))
    world = World(fresh_bodies(placing, s.num_envs), jnp.zeros(s.num_envs, jnp.int32))
    run = jax.jit(lambda state: jax.lax.scan(iterate, state, None, s.chunk))
    state, steps = (learner, world, key), 0
    while steps < s.steps:
        state, lengths = run(state)
        ended = np.asarray(lengths)
        steps += s.chunk * s.batch
        report(steps)
    print(f"result episode_return {ended[ended > 0][-100:].mean():.4g}", flush=True)


if __name__ == "__main__":
    s = read_settings()
    main()
