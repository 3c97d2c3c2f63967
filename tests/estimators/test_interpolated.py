"""The interpolated estimator's β: the law it makes, the gradient of its variance, and what it learns."""

import exact
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import disarm_jax as dj

LOGITS = np.array([0.9, -1.4, 0.3])

pytestmark = pytest.mark.usefixtures("x64", "quick_compile")


def exact_second_moment(beta, logits, f):
    """Σ_i E g_i² by enumeration, as a function of β that JAX differentiates: law and weight both depend on it."""
    b, b_tilde, _ = exact.pair_law(logits, 0.5)
    log_prob = dj.bernoulli.interpolated_log_prob(jnp.asarray(logits), jnp.asarray(b), jnp.asarray(b_tilde), beta)
    g = dj.formulas.interpolated(jnp.asarray(logits), b, b_tilde, f(b), f(b_tilde), beta)
    return jnp.sum(jnp.exp(log_prob.sum(-1)) * jnp.sum(g**2, axis=-1))


@pytest.mark.parametrize("beta", [0.0, 0.25, 0.9, 1.0])
def test_log_probabilities_of_pairs(beta):
    for logits in (LOGITS, np.array([0.0, -0.0, 6.0])):
        b, b_tilde, probabilities = exact.pair_law(logits, beta)
        ours = dj.bernoulli.interpolated_log_prob(
            jnp.asarray(logits), jnp.asarray(b), jnp.asarray(b_tilde), jnp.array(beta)
        )
        np.testing.assert_allclose(jnp.exp(ours.sum(-1)), probabilities, rtol=1e-12)


@pytest.mark.parametrize(("beta", "nearest"), [(1.3, 1.0), (-0.2, 0.0)])
@pytest.mark.parametrize("name", ["interpolated", "arms_interpolated"])
def test_a_beta_outside_acts_as_the_nearest_end(name, beta, nearest):
    """An update of an optimiser cannot bias the gradient, and what is learnt pulls β back in."""
    est, f = dj.make_estimator(name), exact.table_function(3, seed=3)
    table = jnp.asarray(f.table)

    def f_of_bits(b):
        return table[(b @ jnp.array([4.0, 2.0, 1.0])).astype(int)]

    logits, key = jnp.broadcast_to(jnp.asarray(LOGITS), (50, 3)), jax.random.key(0)

    @jax.jit
    def found(beta):
        loss = lambda params: dj.variance_loss(est)(params, key, logits, f_of_bits)
        return est.apply({"beta": beta}, key, logits, f_of_bits), jax.value_and_grad(loss)({"beta": beta})

    jax.tree.map(np.testing.assert_array_equal, found(beta), found(nearest))
    assert found(beta)[1][1]["beta"] != 0


@pytest.mark.parametrize(("beta", "nearest"), [(1.5, 1.0), (-0.5, 0.0), (np.array([2.0, -1.0, 0.3]), [1.0, 0.0, 0.3])])
def test_formulas_and_probabilities_with_a_beta_outside(beta, nearest):
    """Whoever calls them without an estimator gets those of the nearest end, too."""
    logits, key, f_b = jnp.asarray(LOGITS), jax.random.key(0), jnp.array([1.0, -2.0])

    def found(beta):
        beta = jnp.asarray(beta)
        pair = dj.bernoulli.interpolated_pairs(key, logits, beta, 1)
        b = dj.bernoulli.interpolated_copula_samples(key, logits, beta, 2)
        return (
            dj.bernoulli.interpolated_log_prob(logits, *pair, beta),
            dj.bernoulli.interpolated_copula_log_prob(logits, b, beta),
            dj.formulas.interpolated(logits, *pair, f_b[:1], f_b[1:], beta),
            dj.formulas.arms_interpolated(logits, b, f_b, beta),
        )

    jax.tree.map(np.testing.assert_array_equal, found(beta), found(nearest))


@pytest.mark.parametrize("per_dimension", [False, True])
@pytest.mark.parametrize("num_pairs", [1, 3])
def test_gradient_of_the_variance(per_dimension, num_pairs):
    """`variance_loss` of every outcome, weighted by its probability, has the derivative of the enumerated variance."""
    logits, f = LOGITS[:2], exact.table_function(2, seed=3)
    table = jnp.asarray(f.table)
    est = dj.make_estimator("interpolated", num_pairs=num_pairs, init_beta=0.3, per_dimension=per_dimension)
    params = est.init(jax.random.key(0), jnp.asarray(logits))
    assert params["beta"].shape == ((2,) if per_dimension else ())
    truth = jax.grad(exact_second_moment)(params["beta"], logits, f) / num_pairs
    *outcomes, probabilities = exact.copies(exact.pair_law(logits, 0.3), num_pairs)

    def one(*pairs):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dj.bernoulli, "interpolated_pairs", lambda *args: pairs)
            traced_f = lambda b: table[(b @ jnp.array([2.0, 1.0])).astype(int)]
            return jax.grad(dj.variance_loss(est))(params, jax.random.key(0), jnp.asarray(logits), traced_f)["beta"]

    grads = jax.jit(jax.vmap(one, in_axes=1))(*map(jnp.asarray, outcomes))
    np.testing.assert_allclose(np.tensordot(probabilities, grads, axes=1), truth, rtol=1e-10)
    step = 1e-6  # and the law that is differentiated is the enumerated one
    ahead, behind = (exact_variance(logits, f, 0.3 + change) for change in (step, -step))
    np.testing.assert_allclose((ahead - behind) / (2 * step * num_pairs), jnp.sum(truth), rtol=1e-6)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_the_variance_gradient_is_finite(beta):
    """Also at the ends, where some pairs are impossible, and at saturated logits."""
    est = dj.make_estimator("interpolated", init_beta=beta)
    logits = jnp.array([0.0, -0.0, 1e4, -1e4, 3.0])
    params = est.init(jax.random.key(0), logits)
    loss = lambda params, key: dj.variance_loss(est)(params, key, logits, lambda b: b.sum(-1))
    grads = jax.jit(jax.vmap(jax.grad(loss), in_axes=(None, 0)))(params, jax.random.split(jax.random.key(0), 5))
    assert np.all(np.isfinite(grads["beta"]))


def test_an_impossible_pair_does_no_harm(monkeypatch):
    """At β = 1 the rarer bit is never drawn twice, unless noise falls on the threshold: its probability is left out."""
    pair = jnp.array([[1.0, 1.0]]), jnp.array([[1.0, 0.0]])
    monkeypatch.setattr(dj.bernoulli, "interpolated_pairs", lambda *args: pair)
    est, logits, f = dj.make_estimator("interpolated", init_beta=1.0), jnp.array([-1.0, 0.5]), lambda b: b.sum(-1)
    params, key = est.init(jax.random.key(0), logits), jax.random.key(1)
    loss, grads = jax.value_and_grad(dj.variance_loss(est))(params, key, logits, f)
    assert loss == jnp.sum(est.apply(params, key, logits, f).grad ** 2) > 0
    assert np.isfinite(grads["beta"])


def learn(f, logits, steps, learning_rate):
    """Projected stochastic gradient descent on the variance, from the middle."""
    est = dj.make_estimator("interpolated")
    logits = jnp.broadcast_to(jnp.asarray(logits), (256, len(logits)))

    def step(params, key):
        grads = jax.grad(dj.variance_loss(est))(params, key, logits, f)
        return jax.tree.map(lambda p, g: jnp.clip(p - learning_rate * g / 256, 0.0, 1.0), params, grads), None

    params = est.init(jax.random.key(0), logits)
    run = jax.jit(lambda params: jax.lax.scan(step, params, jax.random.split(jax.random.key(1), steps))[0])
    return float(run(params)["beta"])


def test_beta_learns_which_coupling_suits_f():
    """Appendix B's claim, on two functions whose exact variances say which end is better."""
    cases = [
        # Only one bit matters. To the others its flips are noise, and an antithetic pair flips it twice as often.
        (lambda b: 2 * b[..., 0], np.array([0.0] + 7 * [1.2]), 0.0),
        # Nearly even under flipping all bits: antithetic partners cancel what is common to them.
        (lambda b: (b.sum(-1) - 1.8) ** 2, np.array([0.2, -0.3, 0.1, 0.4]), 1.0),
    ]
    for f, logits, better in cases:
        variances = [exact_variance(logits, f, beta) for beta in np.linspace(0, 1, 6)]
        assert np.all(np.diff(variances) * (0.5 - better) > 0)
        assert abs(learn(f, logits, 600, 0.2) - better) < 0.05


def exact_variance(logits, f, beta):
    b, b_tilde, probabilities = exact.pair_law(logits, beta)
    possible = probabilities > 0
    pair = b[possible], b_tilde[possible]
    g = exact.interpolated(logits, *pair, f(pair[0]), f(pair[1]), beta)
    return exact.moments(probabilities[possible], g)[1].sum()
