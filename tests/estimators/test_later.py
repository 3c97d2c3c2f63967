"""The estimators that came after the paper: exact mean and variance through `apply`.

Each sampler is replaced by the enumeration of all its outcomes, so that one call of `apply` gives the estimate of every
outcome; their law is enumerated in `exact`, and that the samplers have it is tested in test_samples.py.
"""

import decimal

import exact
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats
from scipy.special import expit

import disarm_jax as dj
from disarm_jax import bernoulli

pytestmark = pytest.mark.usefixtures("x64", "quick_compile")

LOGITS = {1: np.array([1.0]), 2: np.array([-0.7, 1.9]), 3: np.array([0.9, -2.6, 0.0])}
WEIGHTS = np.array([1.3, -0.8, 0.6])


def power(b, degree):
    """Of the given degree in every bit, and none of it symmetric; numpy or JAX."""
    total = sum(b[..., i] * WEIGHTS[i] for i in range(b.shape[-1]))
    return (total - 0.4) ** degree + 0.5 * b[..., 0] - 0.3


def power_slope(b, degree):
    total = b @ WEIGHTS[: b.shape[-1]]
    slope = degree * (total - 0.4)[..., None] ** (degree - 1) * WEIGHTS[: b.shape[-1]]
    slope[..., 0] += 0.5
    return slope


def cubic(b):
    return power(b, 3)


def cubic_slope(b):
    return power_slope(b, 3)


def table(dim):
    """A function without structure, for numpy and for JAX."""
    f = exact.table_function(dim, seed=4)
    values, weights = jnp.asarray(f.table), jnp.asarray(2.0 ** np.arange(dim)[::-1])
    return f, lambda b: values[(b @ weights).astype(int)]


def apply_to_outcomes(est, params, logits, f, **samplers):
    """The estimates at enumerated outcomes, which take the place of what the samplers of `bernoulli` draw."""
    num = next(iter(samplers.values()))[0].shape[-2]
    with pytest.MonkeyPatch.context() as patch:
        for name, outcomes in samplers.items():
            outcomes = outcomes if len(outcomes) > 1 else outcomes[0]
            patch.setattr(bernoulli, name, lambda *args, outcomes=outcomes: jax.tree.map(jnp.asarray, outcomes))
        batch = jnp.broadcast_to(jnp.asarray(logits), (num, len(logits)))
        return jax.jit(lambda params, batch: est.apply(params, jax.random.key(0), batch, f))(params, batch)


def check_moments(logits, f, probabilities, ours, reference, unbiased=True):
    assert probabilities.sum() == pytest.approx(1, abs=1e-12)
    np.testing.assert_allclose(ours, reference, rtol=0, atol=1e-11)
    mean, variance = exact.moments(probabilities, np.asarray(ours))
    expected_mean, expected_variance = exact.moments(probabilities, reference)
    np.testing.assert_allclose(mean, exact.gradient(logits, f) if unbiased else expected_mean, rtol=0, atol=1e-10)
    np.testing.assert_allclose(variance, expected_variance, rtol=1e-10, atol=1e-12)
    return mean, variance


@pytest.mark.parametrize(("dim", "num_samples"), [(3, 2), (3, 3), (3, 4), (2, 6), (1, 9)])
def test_arms(dim, num_samples):
    f, traced_f = table(dim)
    b, probabilities = exact.copula_law(LOGITS[dim], num_samples)
    out = apply_to_outcomes(dj.arms(num_samples=num_samples), (), LOGITS[dim], traced_f, copula_samples=(b,))
    check_moments(LOGITS[dim], f, probabilities, out.grad, exact.arms(LOGITS[dim], b, f(b)))
    np.testing.assert_allclose(out.value, f(b).mean(axis=0), atol=1e-12)


def test_two_samples_of_arms_are_disarm():
    logits, (f, _) = LOGITS[3], table(3)
    b, probabilities = exact.copula_law(logits, 2)
    *pair, law = exact.pair_law(logits)
    np.testing.assert_allclose(b, pair)
    np.testing.assert_allclose(probabilities, law, atol=1e-15)
    ours = dj.formulas.arms(jnp.broadcast_to(logits, pair[0].shape), b, f(b))
    np.testing.assert_allclose(ours, dj.formulas.disarm(jnp.asarray(logits), *pair, f(b[0]), f(b[1])), atol=1e-13)


def test_more_samples_of_arms_have_less_variance_than_pairs_of_disarm():
    logits, (f, _) = LOGITS[2], table(2)
    *pair, law = exact.pair_law(logits)
    disarm = exact.moments(law, exact.disarm(logits, *pair, f(pair[0]), f(pair[1])))[1].sum()
    for num_samples in (4, 6):
        b, probabilities = exact.copula_law(logits, num_samples)
        arms = exact.moments(probabilities, exact.arms(logits, b, f(b)))[1].sum()
        assert arms < disarm / (num_samples / 2)


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0, (0.2, 0.9)])
@pytest.mark.parametrize("num_samples", [2, 3, 5])
def test_arms_interpolated(num_samples, beta):
    logits, (f, traced_f), beta = LOGITS[2], table(2), np.array(beta)
    b, probabilities = exact.mixture_law(logits, num_samples, beta)
    est, params = dj.make_estimator("arms_interpolated", num_samples=num_samples), {"beta": jnp.asarray(beta)}
    out = apply_to_outcomes(est, params, logits, traced_f, interpolated_copula_samples=(b,))
    check_moments(logits, f, probabilities, out.grad, exact.arms_interpolated(logits, b, f(b), beta))
    batch = jnp.broadcast_to(logits, b.shape[1:])
    log_prob = bernoulli.interpolated_copula_log_prob(batch, jnp.asarray(b), params["beta"]).sum(-1)
    np.testing.assert_allclose(jnp.exp(log_prob), probabilities, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("beta", [0.3, 0.8, (0.2, 0.9)])
def test_arms_interpolated_learns_from_the_gradient_of_the_exact_variance(beta):
    """`variance_loss` of every outcome, weighted by its probability, has the derivative of the enumerated variance."""
    logits, (f, traced_f), beta = LOGITS[2], table(2), jnp.array(beta)
    b, probabilities = exact.mixture_law(logits, 4, np.asarray(beta))
    est = dj.make_estimator("arms_interpolated", per_dimension=beta.ndim > 0)

    def exact_second_moment(beta):
        possible = probabilities > 0
        batch = jnp.broadcast_to(logits, b[:, possible].shape[1:])
        log_prob = bernoulli.interpolated_copula_log_prob(batch, jnp.asarray(b[:, possible]), beta).sum(-1)
        g = dj.formulas.arms_interpolated(batch, b[:, possible], f(b[:, possible]), beta)
        return jnp.sum(jnp.exp(log_prob) * jnp.sum(g**2, axis=-1))

    def loss_of_one(outcome):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bernoulli, "interpolated_copula_samples", lambda *args: outcome)
            return jax.grad(dj.variance_loss(est))({"beta": beta}, jax.random.key(0), jnp.asarray(logits), traced_f)[
                "beta"
            ]

    found = jax.jit(jax.vmap(loss_of_one, in_axes=1))(jnp.asarray(b))
    truth = jax.grad(exact_second_moment)(beta)
    np.testing.assert_allclose(np.tensordot(probabilities, found, axes=1), truth, rtol=1e-8)
    step = 1e-6  # and the law that is differentiated is the enumerated one
    ahead, behind = (
        exact.moments(law, exact.arms_interpolated(logits, b, f(b), value))[1].sum()
        for value in (np.asarray(beta) + step, np.asarray(beta) - step)
        for law in [exact.mixture_law(logits, 4, value)[1]]
    )
    np.testing.assert_allclose((ahead - behind) / (2 * step), jnp.sum(truth), rtol=1e-6)


def test_the_derivative_in_beta_keeps_its_digits():
    """In float32 with 8 samples and from even to nearly certain bits: to 1e-4 of its mean size."""
    for logit in (0.0, -2.0, 8.0):
        b, probabilities = exact.mixture_law(np.array([logit]), 8, 0.5)

        def score(dtype, b=b, logit=logit):
            batch = jnp.full(b.shape[1:], logit, dtype)
            law = lambda beta: bernoulli.interpolated_copula_log_prob(batch, jnp.asarray(b, dtype), beta)[:, 0]
            slope = jax.jit(lambda *at: jax.jvp(law, at[:1], at[1:])[1])
            return np.asarray(slope(jnp.array(0.5, dtype), jnp.ones((), dtype)), np.float64)

        narrow, wide = score(jnp.float32), score(jnp.float64)
        assert probabilities @ np.abs(narrow - wide) < 1e-4 * (probabilities @ np.abs(wide))


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_the_variance_gradient_of_arms_interpolated_is_finite(beta):
    """Also at the ends, where some groups are impossible, at saturated logits, in float32 and with 8 samples."""
    with jax.enable_x64(False):
        est = dj.make_estimator("arms_interpolated", init_beta=beta, num_samples=8)
        logits = jnp.array([0.0, -0.0, 1e4, -1e4, 3.0, -30.0])
        params = est.init(jax.random.key(0), logits)
        loss = lambda params, key: dj.variance_loss(est)(params, key, logits, lambda b: b.sum(-1))
        grads = jax.jit(jax.vmap(jax.grad(loss), in_axes=(None, 0)))(params, jax.random.split(jax.random.key(0), 5))
        assert np.all(np.isfinite(grads["beta"]))


@pytest.mark.parametrize(("dim", "num_samples", "group_size"), [(2, 1, 4), (2, 2, 3), (1, 3, 3), (1, 2, 5)])
def test_multisample_arms(dim, num_samples, group_size):
    """The bound is the expectation of one long vector of K·D bits, whose gradients are added up."""
    logits, (log_w, traced) = LOGITS[dim], table(dim)
    b, law = exact.copula_law(logits, group_size)
    groups, probabilities = exact.copies((np.moveaxis(b, 0, 1)[law > 0], law[law > 0]), num_samples)
    groups = np.moveaxis(groups, 2, 0)  # [n, K, M, D]
    est = dj.make_estimator("multisample_arms", num_samples=num_samples, group_size=group_size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bernoulli, "copula_samples", lambda *args: jnp.asarray(groups))
        apply = jax.jit(lambda batch: est.apply((), jax.random.key(0), batch, traced))
        out = apply(jnp.broadcast_to(logits, groups.shape[2:]))
    reference = exact.multisample_arms(logits, groups, log_w(groups))
    np.testing.assert_allclose(out.grad, reference, rtol=0, atol=1e-12)
    np.testing.assert_allclose(out.value, np.mean([exact.bound(w) for w in log_w(groups)], axis=0), atol=1e-12)

    def joint(b):
        return exact.bound(np.moveaxis(log_w(b.reshape(*b.shape[:-1], num_samples, dim)), -1, 0))

    truth = exact.gradient(np.tile(logits, num_samples), joint).reshape(num_samples, dim).sum(axis=0)
    mean, variance = exact.moments(probabilities, np.asarray(out.grad))
    np.testing.assert_allclose(mean, truth, rtol=0, atol=1e-10)
    # At as many evaluations, less variance than the mean of independent estimates of local DisARM.
    *pairs, law = exact.copies(exact.pair_law(logits), num_samples)
    disarm = exact.multisample_disarm(logits, *pairs, *(log_w(b) for b in pairs))
    assert variance.sum() < exact.moments(law, disarm)[1].sum() * 2 / group_size


def test_groups_of_two_are_multisample_disarm():
    logits, (log_w, _) = LOGITS[2], table(2)
    *pairs, _ = exact.copies(exact.pair_law(logits), 2)
    batch = jnp.broadcast_to(logits, pairs[0].shape[1:])
    ours = jax.jit(dj.formulas.multisample_arms)(batch, np.stack(pairs), log_w(np.stack(pairs)))
    disarm = jax.jit(dj.formulas.multisample_disarm)(batch, *pairs, *(log_w(b) for b in pairs))
    np.testing.assert_allclose(ours, disarm, rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("num_samples", [2, 3, 4, 8, 50])
def test_the_weight_of_arms_keeps_its_digits(dtype, num_samples):
    """Against p(1−p) / (p − P11) with 60 digits, up to logits where p is 0 or 1 in floating point."""
    logits = np.array([-1e4, -80.0, -20.0, -3.0, -0.2, -0.0, 0.0, 0.7, 5.0, 30.0, 1e4])
    with jax.enable_x64(dtype == "float64"):
        ours = np.asarray(bernoulli.copula_weight(jnp.asarray(logits, dtype), num_samples), np.float64)
    with decimal.localcontext(prec=60):
        for weight, logit in zip(ours, np.asarray(logits, dtype).astype(float), strict=True):
            m = 1 / (1 + decimal.Decimal(abs(logit)).exp())
            both = max(2 * m ** (decimal.Decimal(1) / (num_samples - 1)) - 1, decimal.Decimal(0)) ** (num_samples - 1)
            expected = m * (1 - m) / (m - both)
            assert weight == pytest.approx(float(expected), rel=float(4 * num_samples * np.finfo(dtype).eps))


@pytest.mark.parametrize(("dim", "num_samples"), [(3, 2), (2, 3), (1, 5)])
def test_double_cv(dim, num_samples):
    b, probabilities = exact.sample_law(LOGITS[dim], num_samples)
    est = dj.make_estimator("double_cv", num_samples=num_samples)
    for scale in (0.0, -0.5, 1.7):
        out = apply_to_outcomes(est, {"scale": scale}, LOGITS[dim], cubic, sample=(b,))
        reference = exact.double_cv(LOGITS[dim], b, cubic(b), cubic_slope(b), scale)
        check_moments(LOGITS[dim], cubic, probabilities, out.grad, reference)
    np.testing.assert_allclose(out.value, cubic(b).mean(axis=0), atol=1e-12)


def test_double_cv_is_exact_for_linear_f_and_loo_at_zero():
    b, _ = exact.sample_law(LOGITS[3], 2)
    linear = lambda b: power(b, 1)
    out = apply_to_outcomes(dj.make_estimator("double_cv"), {"scale": -1.0}, LOGITS[3], linear, sample=(b,))
    truth = exact.gradient(LOGITS[3], linear)
    np.testing.assert_allclose(out.grad, np.broadcast_to(truth, out.grad.shape), atol=1e-12)
    out = apply_to_outcomes(dj.make_estimator("double_cv"), {"scale": 0.0}, LOGITS[3], cubic, sample=(b,))
    np.testing.assert_allclose(out.grad, exact.reinforce_loo(LOGITS[3], b, cubic(b)), atol=1e-12)


def test_double_cv_learns_the_best_scale():
    """The exact variance is a parabola in a; stochastic descent of `variance_loss` ends at its minimum."""
    logits = LOGITS[3]
    b, probabilities = exact.sample_law(logits, 2)
    at = [
        exact.moments(probabilities, exact.double_cv(logits, b, cubic(b), cubic_slope(b), a))[1].sum()
        for a in (-1, 0, 1)
    ]
    best = 0.5 * (at[0] - at[2]) / (at[0] - 2 * at[1] + at[2])
    assert best < 0
    est, batch = dj.make_estimator("double_cv"), jnp.broadcast_to(jnp.asarray(logits), (256, 3))

    def step(params, key):
        grads = jax.grad(dj.variance_loss(est))(params, key, batch, cubic)
        return jax.tree.map(lambda p, g: p - 0.02 * g / 256, params, grads), params["scale"]

    run = jax.jit(lambda params: jax.lax.scan(step, params, jax.random.split(jax.random.key(1), 1000))[1])
    found = np.asarray(run(est.init(jax.random.key(0), batch)))[500:]
    assert abs(found.mean() - best) < 0.02


@pytest.mark.parametrize(("dim", "num_pairs"), [(2, 2), (1, 3)])
def test_disarm_taylor_cross(dim, num_pairs):
    logits, v = LOGITS[dim], expit(LOGITS[dim]) * expit(-LOGITS[dim])
    b, b_tilde, probabilities = exact.copies(exact.pair_law(logits), num_pairs)
    est = dj.make_estimator("disarm_taylor_cross", num_pairs=num_pairs)
    slopes = 0.5 * (cubic_slope(b) + cubic_slope(b_tilde))
    for scale in (0.0, 1.0, -0.6):
        out = apply_to_outcomes(est, {"scale": (scale,)}, logits, cubic, antithetic_pairs=(b, b_tilde, b))
        pairs = []
        for k in range(num_pairs):
            slope = np.delete(slopes, k, axis=0).mean(axis=0)
            values = [cubic(x) - scale * np.sum(slope * (x - expit(logits)), axis=-1) for x in (b[k], b_tilde[k])]
            pairs.append(exact.disarm(logits, b[k], b_tilde[k], *values) + scale * slope * v)
        check_moments(logits, cubic, probabilities, out.grad, np.mean(pairs, axis=0))


def make_network(hidden, seed):
    """Parameters of H with no zeros among them, and H in numpy."""
    rng = np.random.default_rng(seed)
    params = {
        "hidden": {"kernel": rng.normal(size=(2, hidden)), "bias": rng.normal(size=hidden)},
        "output": {"kernel": rng.normal(size=(hidden, 2)), "bias": rng.normal(size=2)},
    }

    def network(step, f_b):
        hidden = np.stack([step, f_b], axis=-1) @ params["hidden"]["kernel"] + params["hidden"]["bias"]
        return np.where(hidden > 0, hidden, 0.3 * hidden) @ params["output"]["kernel"] + params["output"]["bias"]

    return jax.tree.map(jnp.asarray, params), network


@pytest.mark.parametrize(("dim", "num_samples"), [(3, 2), (2, 3), (1, 4)])
def test_rodeo(dim, num_samples):
    b, probabilities = exact.sample_law(LOGITS[dim], num_samples)
    est = dj.make_estimator("rodeo", num_samples=num_samples, hidden=5)
    for seed, scales in enumerate([(0.8, -0.6), (-1.3, 0.0), (0.0, 2.0)]):
        params, network = make_network(5, seed)
        params = {"baseline_scale": scales[0], "control_scale": scales[1], "network": params}
        out = apply_to_outcomes(est, params, LOGITS[dim], cubic, sample=(b,))
        reference = exact.rodeo(LOGITS[dim], b, cubic(b), cubic_slope(b), network, *scales)
        check_moments(LOGITS[dim], cubic, probabilities, out.grad, reference)
    np.testing.assert_allclose(out.value, cubic(b).mean(axis=0), atol=1e-12)


def test_rodeo_starts_as_documented():
    est = dj.make_estimator("rodeo", init_scale=0.7, hidden=6)
    params = est.init(jax.random.key(0), jnp.zeros((5, 3), jnp.bfloat16))
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))
    assert jax.tree.map(jnp.shape, params["network"]["hidden"]) == {"kernel": (2, 6), "bias": (6,)}
    np.testing.assert_allclose([params["baseline_scale"], params["control_scale"]], 0.7, rtol=1e-6)


def test_rodeo_learns():
    """Descending `variance_loss` takes it from above REINFORCE-LOO well below it, by more than 10 standard errors."""
    est, logits = dj.make_estimator("rodeo", hidden=16), jnp.broadcast_to(jnp.asarray(LOGITS[3]), (64, 3))

    def step(params, key):
        grads = jax.grad(dj.variance_loss(est))(params, key, logits, cubic)
        return jax.tree.map(lambda p, g: p - 0.01 * g / 64, params, grads), None

    params = est.init(jax.random.key(1), logits)
    trained = jax.jit(lambda p: jax.lax.scan(step, p, jax.random.split(jax.random.key(2), 3000))[0])(params)
    measure = jax.jit(lambda p: dj.gradient_variance(est)(p, jax.random.key(3), logits, cubic, 1000))
    after = measure(trained)
    b, probabilities = exact.sample_law(LOGITS[3], 2)
    loo = 64 * exact.moments(probabilities, exact.reinforce_loo(LOGITS[3], b, cubic(b)))[1].sum()
    assert after.total + 10 * after.total_stderr < loo


@pytest.mark.parametrize("dim", LOGITS)
def test_leg(dim):
    f, traced_f = table(dim)
    b, probabilities = exact.sample_law(LOGITS[dim], 1)
    out = apply_to_outcomes(dj.make_estimator("leg"), (), LOGITS[dim], traced_f, sample=(b,))
    check_moments(LOGITS[dim], f, probabilities, out.grad, exact.leg(LOGITS[dim], b[0], f))
    np.testing.assert_allclose(out.value, f(b[0]), atol=1e-12)  # flips do not count


@pytest.mark.parametrize("name", ["bitflip", "ugc"])
def test_bitflip_and_ugc(name):
    """The bit is drawn uniformly, as test_samples.py checks; here every bit in turn."""
    logits, (f, traced_f) = LOGITS[3], table(3)
    if name == "bitflip":
        b, law = exact.sample_law(logits, 1)
        samplers = {"sample": (b,)}
        reference = lambda i: exact.bitflip(logits, b[0], i, f)
        value = f(b[0])
    else:
        b, b_tilde, law = exact.pair_law(logits)
        samplers = {"antithetic_pairs": (b[None], b_tilde[None], b[None])}
        reference = lambda i: exact.ugc(logits, b, b_tilde, i, f)
        value = 0.5 * (f(b) + f(b_tilde))
        rare = np.minimum(expit(logits), expit(-logits)) < 1 / 6
        assert np.any(rare)
        assert not np.all(rare)
    grads = []
    for i in range(3):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jax.random, "randint", lambda key, shape, low, high, i=i: jnp.full(shape, i))
            out = apply_to_outcomes(dj.make_estimator(name), (), logits, traced_f, **samplers)
        grads.append(out.grad)
        np.testing.assert_allclose(out.value, value, atol=1e-12)
    references = np.concatenate([reference(i) for i in range(3)])
    _, variance = check_moments(logits, f, np.tile(law / 3, 3), np.concatenate(grads), references)
    if name == "ugc":
        *pair, law = exact.pair_law(logits)
        disarm = exact.moments(law, exact.disarm(logits, *pair, f(pair[0]), f(pair[1])))[1]
        np.testing.assert_allclose(variance[~rare], disarm[~rare], rtol=1e-10)
        assert np.all(variance[rare] < disarm[rare])


@pytest.mark.parametrize("degree", [1, 2, 3])
@pytest.mark.parametrize("name", ["straight_through", "reinmax"])
def test_biased_as_they_should_be(name, degree):
    """Straight-through is exact for linear f, ReinMax for quadratic f; beyond that both have the bias enumerated."""
    logits, f = LOGITS[3], lambda b: power(b, degree)
    b, probabilities = exact.sample_law(logits, 1)
    b, noise = b[0], np.where(b[0] == 1, 1e3, -1e3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bernoulli, "logistic_noise", lambda *args: jnp.asarray(noise))
        batch = jnp.broadcast_to(jnp.asarray(logits), b.shape)
        out = dj.make_estimator(name).apply((), jax.random.key(0), batch, f)
    slope = power_slope(b, degree)
    reference = exact.straight_through(logits, slope) if name == "straight_through" else exact.reinmax(logits, b, slope)
    is_exact = degree <= {"straight_through": 1, "reinmax": 2}[name]
    mean, _ = check_moments(logits, f, probabilities, out.grad, reference, unbiased=is_exact)
    if not is_exact:
        assert np.abs(mean - exact.gradient(logits, f)).max() > 0.05
    np.testing.assert_allclose(out.value, f(b), atol=1e-12)


def gumbel_mean(logit, f_slope, temperature, hard):
    """E ∂f · dσ(z/τ)/dz by adaptive quadrature over z = α + logistic noise."""

    def integrand(z):
        relaxed = expit(z / temperature)
        at = float(z > 0) if hard else relaxed
        return f_slope(at) * relaxed * expit(-z / temperature) / temperature * stats.logistic.pdf(z - logit)

    return sum(integrate.quad(integrand, *ends, epsabs=1e-12, limit=500)[0] for ends in ((-60, 0), (0, 60)))


@pytest.mark.parametrize("hard", [True, False])
@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_gumbel_sigmoid_against_quadrature(hard, temperature):
    """Its mean from Gauss–Legendre nodes in the noise's uniform number, on either side of the threshold."""
    logit = LOGITS[1][0]
    nodes, weights = np.polynomial.legendre.leggauss(400)
    ends = (0.0, expit(-logit)), (expit(-logit), 1.0)
    u = np.concatenate([low + (high - low) * (nodes + 1) / 2 for low, high in ends])
    weights = np.concatenate([weights * (high - low) / 2 for low, high in ends])
    noise = jnp.asarray(np.log(u) - np.log1p(-u))[:, None]
    est = dj.make_estimator("gumbel_sigmoid", temperature=temperature, hard=hard)
    cases = [
        (lambda b: b[..., 0], lambda b: 1.0),
        (lambda b: (b[..., 0] - 0.3) ** 3, lambda b: 3 * (b - 0.3) ** 2),
    ]
    for f, slope in cases:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bernoulli, "logistic_noise", lambda *args: noise)
            out = jax.jit(lambda batch, f=f: est.apply((), jax.random.key(0), batch, f))(jnp.full((len(u), 1), logit))
        np.testing.assert_allclose(weights @ out.grad[:, 0], gumbel_mean(logit, slope, temperature, hard), atol=1e-8)
        np.testing.assert_allclose(weights @ out.value, exact.expectation(LOGITS[1], f), atol=1e-10)
    assert not dj.estimator_info("gumbel_sigmoid").unbiased


def test_gumbel_sigmoid_is_biased_even_for_a_linear_f():
    """The sheet's numbers: 0.151 at τ = 1 where 0.197 is right; the bias vanishes with τ."""
    found = [gumbel_mean(1.0, lambda b: 1.0, temperature, True) for temperature in (1.0, 0.3, 0.05)]
    right = expit(1.0) * expit(-1.0)
    assert found[0] == pytest.approx(0.151, abs=5e-4)
    assert right == pytest.approx(0.197, abs=5e-4)
    assert np.all(np.diff(np.abs(np.array(found) - right)) < 0)


def test_gumbel_sigmoid_without_hard_evaluates_f_at_bits_too():
    """For `value` and auxiliary outputs; evaluations are counted so."""
    calls = []

    def f(b):
        calls.append(b.shape)
        return b.sum(-1), b

    est = dj.make_estimator("gumbel_sigmoid", hard=False)
    out, b = est.apply((), jax.random.key(0), jnp.zeros((5, 3)), f, has_aux=True)
    assert calls == [(1, 5, 3)] * 2
    assert dj.estimator_info("gumbel_sigmoid", hard=False).evaluations == 2
    assert set(np.unique(b)) == {0.0, 1.0}
    np.testing.assert_array_equal(out.value, b[0].sum(-1))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("arms", {"num_samples": 1}, "num_samples must be at least 2, got 1"),
        ("arms_interpolated", {"num_samples": 9}, "2 to 8 samples, got num_samples=9"),
        ("arms_interpolated", {"init_beta": 2.0}, r"init_beta must be in \[0, 1\], got 2.0"),
        ("multisample_arms", {"group_size": 1}, "group_size must be at least 2, got 1"),
        ("multisample_arms", {"num_samples": 0}, "num_samples must be at least 1, got 0"),
        ("double_cv", {"num_samples": 1}, "num_samples must be at least 2, got 1"),
        ("double_cv", {"init_scale": "half"}, "init_scale must be a finite number, got 'half'"),
        ("rodeo", {"hidden": 0}, "hidden must be at least 1, got 0"),
        ("rodeo", {"init_scale": float("inf")}, "init_scale must be a finite number, got inf"),
        ("gumbel_sigmoid", {"temperature": 0.0}, "temperature must be positive and finite, got 0.0"),
        ("gumbel_sigmoid", {"hard": "no"}, "hard must be True or False, got 'no'"),
    ],
)
def test_wrong_options_are_named(name, options, words):
    for call in (dj.make_estimator, dj.estimator_info):
        with pytest.raises(ValueError, match=words):
            call(name, **options)


@pytest.mark.parametrize("name", ["arms", "double_cv", "rodeo"])
def test_formulas_need_two_samples(name):
    b, f_b = np.ones((1, 2)), np.ones(1)
    extra = {
        "arms": (),
        "double_cv": (np.ones((1, 2)), jnp.array(0.5)),
        "rodeo": (np.ones((2, 1)), np.ones((2, 1, 2))),
    }[name]
    with pytest.raises(ValueError, match=f"{name} needs at least 2 samples"):
        getattr(dj.formulas, name)(jnp.zeros(2), b, f_b, *extra)
