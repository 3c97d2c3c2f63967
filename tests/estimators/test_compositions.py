"""Combinators of estimators: control variates on other bases, chains of any estimator of samples."""

import dataclasses

import exact
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from smooth import LOGITS, function
from test_hierarchical import SMOOTH, layers_of, mean_gradients, numpy_layers, smooth_f

import disarm_jax as dj

pytestmark = pytest.mark.usefixtures("x64", "quick_compile")


@pytest.mark.parametrize(("name", "beta"), [("reinforce_loo", 0.0), ("interpolated", 0.4), ("disarm", 1.0)])
@pytest.mark.parametrize("kind", ["plain", "averaged"])
def test_midpoints_of_every_pair(name, beta, kind):
    """All pairs through `apply`, one per example: no bias for any λ, and at λ = 1 less variance than the base."""
    b, b_tilde, probabilities = exact.pair_law(LOGITS, beta)
    stack = jnp.asarray(np.stack([b, b_tilde]))
    every_pair = lambda params, key, logits: (stack, None)
    base = dataclasses.replace(dj.make_estimator(name), sampler=every_pair)
    logits, f = jnp.broadcast_to(jnp.asarray(LOGITS), b.shape), function(kind)
    truth = exact.gradient(LOGITS, lambda b: np.asarray(function("plain")(jnp.asarray(b))))

    est = dj.midpoint(base, init_scale=1.0)
    apply = jax.jit(lambda params, key, logits: est.apply(params, key, logits, f))

    def moments(scale):
        params = {"scale": (scale,), "base": {"beta": beta} if name == "interpolated" else ()}
        return exact.moments(probabilities, np.asarray(apply(params, jax.random.key(1), logits).grad))

    for scale in (-0.8, 0.0, 1.0):
        np.testing.assert_allclose(moments(scale)[0], truth, rtol=0, atol=1e-10)
    assert moments(1.0)[1].sum() < 0.6 * moments(0.0)[1].sum()


BASES = {
    "arms(3)": dj.arms(num_samples=3),
    "reinforce_loo(4)": dj.reinforce_loo(num_samples=4),
    "disarm(2 pairs)": dj.disarm(num_pairs=2),
    "interpolated": dj.make_estimator("interpolated"),
    "leg": dj.make_estimator("leg"),
    "ugc": dj.make_estimator("ugc"),
    "midpoint of 2 pairs": dj.disarm_midpoint(num_pairs=2),
    "midpoint of reinforce_loo": dj.midpoint(dj.reinforce_loo()),
    "midpoint of arms(3)": dj.midpoint(dj.arms(num_samples=3)),
    "taylor of arms(3)": dj.taylor(dj.arms(num_samples=3)),
    "taylor of reinforce": dj.taylor(dj.make_estimator("reinforce"), order=1),
}


@pytest.mark.parametrize("name", BASES)
def test_chains_of_every_estimator_of_samples(name):
    """The mean of 400,000 draws is the exact gradient, by 4.5 standard errors, each below 1% of the gradient's norm."""
    est = dj.hierarchical(BASES[name])
    if name == "interpolated":  # `mean_gradients` moves the tunables, and β has an end
        est = dj.hierarchical(dj.make_estimator("interpolated", init_beta=0.2))
    for grads, truth in zip(*mean_gradients(est, 400_000, jax.random.key(2)), strict=True):
        stderr = grads.std(axis=0) / np.sqrt(len(grads))
        assert np.linalg.norm(stderr) < 0.01 * np.linalg.norm(truth)
        assert np.abs((grads.mean(axis=0) - truth) / stderr).max() < 4.5


def test_the_coupling_of_a_chain_is_learnt_without_bias():
    """The derivative of the summed variance in each layer's β, 400,000 draws against enumeration, by 4.5 errors."""
    beta, step, inputs = 0.4, 1e-4, np.array([0.6])
    weights = jax.tree.map(jnp.asarray, SMOOTH)

    def second_moment(betas):
        """Σ_t E |g_t|², with the coupling of one layer changed at a time, which does not touch the other's."""
        total = 0.0
        for t, own in enumerate(betas):
            columns, probabilities = exact.chain_law(numpy_layers(SMOOTH, inputs), (2, 2), own)
            values = np.asarray(smooth_f([jnp.asarray(column) for column in columns]))
            before = columns[t - 1][:, 0] if t else np.broadcast_to(inputs, (len(values), 1))
            logits = jnp.asarray(before @ SMOOTH[t][0] + SMOOTH[t][1])
            pair = [jnp.asarray(columns[t][:, row]) for row in (0, t + 1)]
            g = dj.formulas.interpolated(logits, *pair, values[:, 0], values[:, t + 1], jnp.asarray(own))
            total += probabilities @ np.asarray(jnp.sum(g**2, axis=-1))
        return total

    def changed(t, by):
        return second_moment([beta + by * (s == t) for s in range(2)])

    truth = [(changed(t, step) - changed(t, -step)) / (2 * step) for t in range(2)]
    est, rows, chunks = dj.hierarchical(dj.make_estimator("interpolated", init_beta=beta)), 4_000, 100
    chain = dj.Chain(jnp.full((rows, 1), 0.6), layers_of(weights))
    params = est.init(jax.random.key(0), chain)
    loss = lambda params, key: dj.variance_loss(est)(params, key, chain, smooth_f) / rows
    grads = jax.jit(lambda keys: jax.lax.map(lambda key: jax.grad(loss)(params, key), keys))(
        jax.random.split(jax.random.key(1), chunks)
    )
    for found, expected in zip(grads, truth, strict=True):
        stderr = float(found["beta"].std()) / np.sqrt(chunks)
        assert stderr < 0.02 * abs(expected)
        assert abs(float(found["beta"].mean()) - expected) < 4.5 * stderr


def test_gradient_variance_of_a_chain():
    """One number and one array per layer, as from draws by hand."""
    est, weights = dj.hierarchical("disarm"), jax.tree.map(jnp.asarray, SMOOTH)
    chain, key = dj.Chain(jnp.full((3, 1), 0.6), layers_of(weights)), jax.random.key(1)
    found = jax.jit(lambda key: dj.gradient_variance(est)((), key, chain, smooth_f, 50))(key)
    apply = jax.jit(lambda key: est.apply((), key, chain, smooth_f).grad)
    draws = [apply(k) for k in jax.random.split(key, 50)]
    for t in range(2):
        by_hand = np.stack([grad[t] for grad in draws])
        np.testing.assert_allclose(found.mean[t], by_hand.mean(axis=0), rtol=1e-9)
        np.testing.assert_allclose(found.variance[t], by_hand.var(axis=0, ddof=1), rtol=1e-9)
    np.testing.assert_allclose(found.total, sum(float(v.sum()) for v in found.variance), rtol=1e-12)
