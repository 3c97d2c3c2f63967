"""The multi-sample bound with weights that depend on the logits: the whole gradient, against enumeration (trap 1)."""

import exact
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import disarm_jax as dj

LOGITS = np.array([0.6, -0.9])
LOG_P = jnp.log(jnp.array([0.35, 0.2, 0.3, 0.15]))  # a joint log p(x, b) without structure


def independent(num_samples):
    b, probabilities = exact.sample_law(LOGITS, num_samples)
    return "sample", b, probabilities


def pairs(num_pairs):
    b, b_tilde, probabilities = exact.copies(exact.pair_law(LOGITS), num_pairs)
    return "antithetic_pairs", (b, b_tilde, b), probabilities


def groups(num_samples, group_size):
    b, law = exact.copula_law(LOGITS, group_size)
    b, probabilities = exact.copies((np.moveaxis(b, 0, 1)[law > 0], law[law > 0]), num_samples)
    return "copula_samples", np.moveaxis(b, 2, 0), probabilities


# The estimator, K, and what takes the place of its sampler: the name in `bernoulli`, all outcomes, their probabilities.
CASES = {
    "vimco": (dj.vimco(num_samples=3), 3, independent(3)),
    "vimco, geometric": (dj.vimco(num_samples=3, baseline="geometric"), 3, independent(3)),
    "vimco, repeats": (dj.vimco(num_samples=3, repeats=2), 3, independent(6)),
    "multisample_disarm": (dj.multisample_disarm(num_pairs=3), 3, pairs(3)),
    "multisample_disarm, all": (dj.multisample_disarm(num_pairs=3, configurations="all"), 3, pairs(3)),
    "multisample_arms": (dj.make_estimator("multisample_arms", num_samples=2, group_size=3), 2, groups(2, 3)),
    "naive_multisample_disarm": (dj.make_estimator("naive_multisample_disarm", num_pairs=3), 3, pairs(3)),
}


def log_w(logits):
    """log p(x, b) − log q(b), the weights of the importance-weighted bound."""

    def f(b):
        log_p = LOG_P.astype(b.dtype)[(2 * b[..., 0] + b[..., 1]).astype(int)]
        return log_p - dj.bernoulli.log_prob(logits, b)

    return f


def exact_bound(logits, num_samples):
    """E log 1/K Σ w over all outcomes, differentiable in the logits: law and weights both depend on them."""
    b, _ = exact.sample_law(LOGITS, num_samples)
    b = jnp.asarray(b)
    weights = log_w(jnp.broadcast_to(logits, b.shape[1:]))(b)
    log_q = jnp.sum(dj.bernoulli.log_prob(logits, b), axis=0)
    return jnp.sum(jnp.exp(log_q) * (jax.nn.logsumexp(weights, axis=0) - jnp.log(float(num_samples))))


@pytest.mark.usefixtures("x64", "quick_compile")
@pytest.mark.parametrize("which", CASES)
def test_whole_gradient_of_the_bound(which, monkeypatch):
    """The mean over all outcomes; the pathwise term is a large part of it."""
    est, num_samples, (sampler, outcomes, probabilities) = CASES[which]
    monkeypatch.setattr(dj.bernoulli, sampler, lambda *args: jax.tree.map(jnp.asarray, outcomes))
    logits = jnp.asarray(LOGITS)
    truth = jax.grad(exact_bound)(logits, num_samples)
    batch = jnp.broadcast_to(logits, (len(probabilities), 2))

    @jax.jit
    def both(batch):
        def objective(batch, weighted):
            value = dj.expectation(est)((), jax.random.key(1), batch, log_w(weighted))
            return value.sum(), value

        whole = jax.grad(lambda batch: objective(batch, batch), has_aux=True)(batch)
        return *whole, jax.grad(lambda batch: objective(batch, jax.lax.stop_gradient(batch))[0])(batch)

    grads, values, without_pathwise = both(batch)
    np.testing.assert_allclose(probabilities @ values, exact_bound(logits, num_samples), rtol=0, atol=1e-12)
    np.testing.assert_allclose(probabilities @ grads, truth, rtol=0, atol=1e-12)
    assert np.abs(probabilities @ without_pathwise - truth).max() > 0.1 * np.linalg.norm(truth)
