"""The multi-sample bound with weights that depend on the logits: the whole gradient, against enumeration (trap 1)."""

import exact
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import disarm_jax as dj

LOGITS, DRAWS = np.array([0.6, -0.9]), 1_000_000
LOG_P = jnp.log(jnp.array([0.35, 0.2, 0.3, 0.15]))  # a joint log p(x, b) without structure

ESTIMATORS = {
    ("vimco", "arithmetic"): dj.vimco(num_samples=3),
    ("vimco", "geometric"): dj.vimco(num_samples=3, baseline="geometric"),
    ("vimco", "repeats"): dj.vimco(num_samples=3, repeats=2),
    ("multisample_disarm",): dj.multisample_disarm(num_pairs=3),
    ("multisample_disarm", "all"): dj.multisample_disarm(num_pairs=3, configurations="all"),
    ("multisample_arms",): dj.multisample_arms(num_samples=3, group_size=3),
    ("naive_multisample_disarm",): dj.naive_multisample_disarm(num_pairs=3),
}


def log_w(logits):
    """log p(x, b) − log q(b), the weights of the importance-weighted bound."""

    def f(b):
        log_p = LOG_P.astype(b.dtype)[(2 * b[..., 0] + b[..., 1]).astype(int)]
        return log_p - dj.bernoulli.log_prob(logits, b)

    return f


def exact_bound(logits, num_samples=3):
    """E log 1/K Σ w over all outcomes, differentiable in the logits: law and weights both depend on them."""
    b, _ = exact.sample_law(LOGITS, num_samples)
    b = jnp.asarray(b)
    weights = log_w(jnp.broadcast_to(logits, b.shape[1:]))(b)
    log_q = jnp.sum(dj.bernoulli.log_prob(logits, b), axis=0)
    return jnp.sum(jnp.exp(log_q) * (jax.nn.logsumexp(weights, axis=0) - jnp.log(float(num_samples))))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("which", ESTIMATORS)
def test_whole_gradient_of_the_bound(which):
    """1,000,000 draws; z-test with a standard error below 1%, and the pathwise term is far larger than that."""
    logits, est = jnp.asarray(LOGITS), ESTIMATORS[which]
    truth = np.asarray(jax.grad(exact_bound)(logits))
    batch = jnp.broadcast_to(logits, (DRAWS, 2))

    def objective(batch, stopped):
        weights = log_w(jax.lax.stop_gradient(batch) if stopped else batch)
        value = dj.expectation(est)((), jax.random.key(1), batch, weights)
        return value.sum(), value

    run = jax.jit(jax.grad(objective, has_aux=True), static_argnums=1)
    grads, values = map(np.asarray, run(batch, False))
    stderr = grads.std(axis=0) / np.sqrt(DRAWS)
    assert np.linalg.norm(stderr) < 0.01 * np.linalg.norm(truth)
    assert np.abs((grads.mean(axis=0) - truth) / stderr).max() < 4
    assert abs(values.mean() - exact_bound(logits)) < 4 * values.std() / np.sqrt(DRAWS)
    without_pathwise = np.asarray(run(batch, True)[0]).mean(axis=0)
    assert np.abs((without_pathwise - truth) / stderr).max() > 10
