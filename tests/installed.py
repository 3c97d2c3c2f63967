"""Is the installed package right, with no more than jax and numpy beside it? `scripts/oldest_jax.sh` runs this.

    python tests/installed.py

For every registered estimator, of bits and of classes, the mean of many draws is compared with the exact gradient of a
small function, found by enumeration, in units of its standard error; estimators that are biased have to miss it. Then
`expectation` and `sample` are differentiated under jit and vmap. It runs with the oldest release of JAX that
`pyproject.toml` names, and so uses nothing newer.
"""

import itertools
import sys

import jax
import jax.numpy as jnp
import numpy as np

import disarm_jax as dj

DRAWS = 10_000
LIMIT = 5.0  # standard errors: about 250 comparisons, with fixed keys
SAMPLES_OF_BOUND = {"vimco": 2}  # by default; the others have one pair or group


def exact_gradient(logits, f, outcomes, log_prob, num_samples):
    """Returns the gradient of E f, or of E log ½ (e^f + e^f) of two samples, by enumeration."""

    def mean(logits):
        probabilities, values = jnp.exp(log_prob(logits, outcomes)), f(outcomes)
        if num_samples == 1:
            return probabilities @ values
        return probabilities @ (jnp.logaddexp(values[:, None], values) - jnp.log(2.0)) @ probabilities

    return jax.grad(mean)(logits)


def wrong_estimators(library, logits, f, outcomes, log_prob):
    """Yields a sentence for each estimator whose mean is not what its facts say."""
    for name in library.estimator_names():
        est, info = library.make_estimator(name), library.estimator_info(name)
        exact = exact_gradient(logits, f, outcomes, log_prob, SAMPLES_OF_BOUND.get(name, 1))
        params = est.init(jax.random.key(0), logits)
        found = library.gradient_variance(est)(params, jax.random.key(1), logits, f, DRAWS)
        # What does not vary has to be equal to the last digits of float32.
        z = float(np.max(np.abs(found.mean - exact) / (np.asarray(found.mean_stderr) + 1e-6)))
        print(f"{name:30} {'unbiased' if info.unbiased else 'biased':8} {z:7.1f} standard errors", flush=True)
        if not np.isfinite(z) or info.unbiased == (z > LIMIT):
            yield f"{name}: {z:.1f} standard errors from the exact gradient"


def wrong_verbs():
    """Yields a sentence if a derivative under jit and vmap is not finite, or nothing but zeros."""
    keys, logits = jax.random.split(jax.random.key(0), 4), jnp.linspace(-1.0, 1.0, 12).reshape(4, 3)
    losses = {
        "sample": lambda logits, key: jnp.sum(jnp.cos(dj.sample(key, logits) @ jnp.arange(3.0))),
        "expectation": lambda logits, key: dj.expectation(dj.disarm())((), key, logits, lambda b: jnp.cos(b.sum(-1))),
    }
    for name, loss in losses.items():
        grads = jax.jit(jax.vmap(jax.grad(loss)))(logits, keys)
        if not (jnp.all(jnp.isfinite(grads)) and jnp.any(grads != 0)):
            yield f"{name}: the gradients are {grads}"


def main():
    """Prints a line for each estimator, and exits with a message if anything is wrong."""
    print(f"Python {sys.version.split()[0]}, jax {jax.__version__}, numpy {np.__version__}, {dj.__file__}")
    bits = jnp.array(list(itertools.product([0.0, 1.0], repeat=3)))
    f = lambda b: jnp.cos(b @ jnp.array([1.0, 2.0, 3.0])) + b[..., 0] * b[..., 1]
    wrong = [*wrong_verbs(), *wrong_estimators(dj, jnp.array([0.5, -1.0, 0.2]), f, bits, dj.bernoulli.log_prob)]

    def log_prob(logits, z):
        return jnp.sum(z * jax.nn.log_softmax(logits), axis=(-2, -1))

    classes = jnp.array(list(itertools.product(jnp.eye(3), repeat=2)))
    f = lambda z: jnp.cos(jnp.sum(z * jnp.arange(6.0).reshape(2, 3), axis=(-2, -1)))
    logits = jnp.array([[0.5, -1.0, 0.2], [0.0, 0.3, -0.4]])
    wrong += wrong_estimators(dj.categorical, logits, f, classes, log_prob)
    sys.exit("\n".join(wrong) or None)


if __name__ == "__main__":
    main()
