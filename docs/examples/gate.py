"""Conditional computation: gates decide, for each bag of points, which experts run. A gate that is 0 skips its expert.

The loss is the squared error plus a price for each expert that runs. The estimators of E f(b) see the network as a
black box of the gates, and skip with `lax.cond`. A straight-through sample cannot: it needs the slope of an expert
that did not run, so it runs them all. Every method trains for the same number of steps.
"""

import common
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from matplotlib.figure import Figure

import disarm_jax as dj

EXPERTS, WIDTH, POINTS, INPUTS, BAGS, PRICE = 4, 64, 256, 4, 8, 0.05
SAMPLES = {"Gumbel": "gumbel", "ReinMax": "reinmax"}
ESTIMATORS = {"REINFORCE-LOO": dj.reinforce_loo(), "DisARM": dj.disarm(), "midpoint": dj.disarm_midpoint()}
COLORS = dict(zip([*SAMPLES, *ESTIMATORS], ["#0072B2", "#44AA99", "#E69F00", "#D55E00", "#CC79A7"], strict=True))


def data(key, bags):
    """Bags of points; the sign of each entry of a bag's context says whether its target contains that term."""
    context_key, x_key = jax.random.split(key)
    context, x = jax.random.normal(context_key, (bags, EXPERTS)), jax.random.normal(x_key, (bags, POINTS, INPUTS))
    terms = jnp.sin(2 * x @ jax.random.normal(jax.random.key(7), (INPUTS, EXPERTS)) / INPUTS**0.5)
    return context, (x, jnp.sum(jnp.where(context[:, None] > 0.3, terms, 0), axis=-1))


def init(key):
    """Weights of the experts, and of the gates' network, which sees the context."""
    shapes = (EXPERTS, INPUTS, WIDTH), (EXPERTS, WIDTH, WIDTH), (EXPERTS, WIDTH, 1), (EXPERTS, 32), (32, EXPERTS)
    keys = jax.random.split(key, len(shapes))
    return [jax.random.normal(key, shape) / shape[-2] ** 0.5 for key, shape in zip(keys, shapes, strict=True)]


def logits_of(weights, context):
    """Logits of the gates, `[bags, EXPERTS]`."""
    return jax.nn.relu(context @ weights[3]) @ weights[4]


def loss_of(weights, points, skip):
    """f: gates `[N, bags, EXPERTS]` to losses `[N, bags]`, one bag after the other."""

    def one(row):
        b, x, y = row

        def add(total, expert):
            gate, first, second, third = expert
            run = lambda: gate * (jax.nn.relu(jax.nn.relu(x @ first) @ second) @ third)[:, 0]
            return total + (lax.cond(gate > 0, run, lambda: jnp.zeros_like(y)) if skip else run()), None

        return jnp.mean(lax.scan(add, -y, (b, *weights[:3]))[0] ** 2) + PRICE * jnp.sum(b)

    return lambda b: lax.map(lambda b: lax.map(one, (b, *points)), b)


def objective(method, logits, weights, key, points):
    """The mean loss of a batch, to be differentiated."""
    if method in SAMPLES:
        b = dj.sample(key, logits, gradient=SAMPLES[method])
        return loss_of(weights, points, skip=False)(b[None]).mean()
    est = ESTIMATORS[method]
    return dj.expectation(est)(est.init(key, logits), key, logits, loss_of(weights, points, skip=True)).mean()


def train(method, chunks, evaluate):
    """CPU seconds, test losses and shares of open gates, and the weights in the end."""

    def loss(weights, key):
        batch_key, key = jax.random.split(key)
        context, points = data(batch_key, BAGS)
        return objective(method, logits_of(weights, context), weights, key, points)

    return common.fit(loss, init(jax.random.key(0)), 1e-2, chunks, 50, evaluate)


def exact_gradient(logits, weights, points):
    """The derivative of the mean loss with respect to the logits, from all outcomes of the gates of a bag."""
    outcomes = jnp.asarray(np.indices((2,) * EXPERTS).reshape(EXPERTS, 1, -1).T, float)
    outcomes = jnp.broadcast_to(outcomes, (2**EXPERTS, *logits.shape))
    f_b = loss_of(weights, points, skip=True)(outcomes)
    return jax.grad(lambda a: jnp.sum(jnp.exp(dj.bernoulli.log_prob(a, outcomes)) * f_b, axis=0).mean())(logits)


def run(small):
    """Trains with every method, and compares their gradients at the weights that ReinMax found early."""
    chunks, draws, test = (1, 4, data(jax.random.key(1), 4)) if small else (12, 200, data(jax.random.key(1), 64))

    @jax.jit
    def evaluate(weights):
        b = dj.bernoulli.sample(jax.random.key(2), logits_of(weights, test[0]), 1)
        return loss_of(weights, test[1], skip=True)(b).mean(), b.mean()

    weights, (context, points) = train("ReinMax", 1 if small else 6, evaluate)[2], data(jax.random.key(4), BAGS)
    logits = logits_of(weights, context)
    exact = jax.jit(exact_gradient)(logits, weights, points)
    figure, lines = Figure(figsize=(7, 3.5)), [f"{'':14} test loss  gates open  ms per step  signal to noise"]
    ax = figure.subplots()
    for method, color in COLORS.items():
        seconds, seen, _ = train(method, chunks, evaluate)
        gradient = lambda key, method=method: jax.grad(objective, 1)(method, logits, weights, key, points)
        found = jax.jit(lambda keys, g=gradient: lax.map(g, keys))(jax.random.split(jax.random.key(5), draws))
        ratio = jnp.sum(exact**2) / jnp.mean(jnp.sum((found - exact) ** 2, axis=(1, 2)))  # a bias counts as noise
        ax.plot(seconds, seen[:, 0], color=color, label=method)
        speed = 1000 * seconds[-1] / (50 * chunks)
        lines.append(f"{method:14} {seen[-1, 0]:9.3f} {seen[-1, 1]:10.0%} {speed:12.1f} {ratio:16.2f}")
    ax.set(xlabel="CPU seconds of training", ylabel="test loss", yscale="log")
    ax.legend()
    return lines, figure


if __name__ == "__main__":
    common.report("gate", run)
