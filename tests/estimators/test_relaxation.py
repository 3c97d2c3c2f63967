"""REBAR and RELAX: unbiased by quadrature for one bit and by a z-test for several, and their identities."""

import exact
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from scipy.special import expit

import disarm_jax as dj

LOGITS = np.array([0.7, -1.1, 2.5])
DRAWS = 500_000
ESTIMATORS = {"rebar": dj.make_estimator("rebar"), "relax": dj.relax(hidden=6)}
WEIGHTS = np.array([1.3, -0.8, 0.6])

pytestmark = pytest.mark.usefixtures("quick_compile")


def f(b):
    """Smooth, nonlinear, not symmetric; works for numpy and JAX arrays."""
    total = b[..., 0] * WEIGHTS[0] + b[..., 1] * WEIGHTS[1] + b[..., 2] * WEIGHTS[2]
    return (total - 0.4) ** 2 + 0.5 * b[..., 0] * b[..., 2]


def far_from_initial(params):
    """Tunables as training might leave them, so that no term is hidden by a special value."""
    network = params.get("network")
    params = params | {"log_temperature": jnp.log(jnp.array(0.6, jnp.float64)), "scale": jnp.array(0.7, jnp.float64)}
    if network is None:
        return params
    return params | {
        "network": jax.tree.map(
            lambda a: a + 0.3 * jnp.cos(jnp.arange(a.size, dtype=a.dtype)).reshape(a.shape), network
        )
    }


def z_scores(grads, truth):
    """Deviation of the mean in standard errors; the test is only worth something if they are below 1%."""
    stderr = grads.std(axis=0) / np.sqrt(len(grads))
    assert np.linalg.norm(stderr) < 0.01 * np.linalg.norm(truth)
    return (grads.mean(axis=0) - truth) / stderr


SEES_FEATURES = (  # a control variate that sees more than z, here the example's own features
    lambda key, logits: {"w": jax.random.normal(key, logits.shape[-1:], logits.dtype)},
    lambda params, z: jnp.sum(
        jnp.tanh(z * 0.5) * (params["w"] * jnp.arange(1.0, 1 + z.shape[-1]))[None, None], axis=-1
    ),
)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("est", [*ESTIMATORS.values(), dj.relax(control_variate=SEES_FEATURES)])
def test_unbiased(est):
    """Several bits, tunables far from the initial ones: a z-test with a standard error below 1% of the gradient."""
    logits = jnp.broadcast_to(jnp.asarray(LOGITS), (DRAWS, 3))
    params = far_from_initial(est.init(jax.random.key(1), logits))
    grads = np.asarray(jax.jit(lambda key: est.apply(params, key, logits, f).grad)(jax.random.key(2)))
    assert np.abs(z_scores(grads, exact.gradient(LOGITS, f))).max() < 4


def nodes_of_both_bits(logit):
    """Gauss–Legendre nodes of u, which makes b, and v, which makes z̃ given b, and their weights.

    Given b the estimate is a term in u plus a term in v, so both may run through the same nodes. They are denser at the
    ends, where z is infinite, and in many short intervals, as the slope of a LeakyReLU jumps.
    """
    nodes, weights = np.polynomial.legendre.leggauss(8)
    starts = np.arange(2000)[:, None] / 2000
    t, weights = (starts + (nodes + 1) / 4000).ravel(), np.tile(weights / 4000, 2000)
    v, weights = t**3 * (10 - 15 * t + 6 * t**2), weights * 30 * t**2 * (1 - t) ** 2
    zero = expit(-logit)
    return np.concatenate([zero * v, zero + (1 - zero) * v]), np.tile(v, 2), np.outer((zero, 1 - zero), weights).ravel()


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_unbiased_by_quadrature(name, moved, monkeypatch):
    """One bit: gradients of 0.1 and more to 1e-5, which is what the quadrature makes of the jumps."""
    est, curved = ESTIMATORS[name], lambda b: (1.3 * b[..., 0] - 0.4) ** 2 + jnp.sin(b[..., 0])
    for logit in (0.7, -1.9):
        u, v, weights = nodes_of_both_bits(logit)
        noise = jnp.asarray(np.log(u) - np.log1p(-u))[:, None]
        monkeypatch.setattr(dj.bernoulli, "logistic_noise", lambda *args, noise=noise: noise)
        monkeypatch.setattr(dj.bernoulli, "open_uniform", lambda *args, v=v: jnp.asarray(v)[:, None])
        logits = jnp.full((len(u), 1), logit)
        params = est.init(jax.random.key(1), logits)
        params = far_from_initial(params) if moved else params
        out = jax.jit(lambda params, logits: est.apply(params, jax.random.key(2), logits, curved))(params, logits)
        truth = exact.gradient(np.array([logit]), lambda b: np.asarray(curved(b)))
        np.testing.assert_allclose(weights @ out.grad, truth, rtol=0, atol=1e-5)
        np.testing.assert_allclose(weights @ out.value, exact.expectation(np.array([logit]), curved), atol=1e-9)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("scaled_network", [False, True])
def test_reads_the_tunables_as_documented(scaled_network):
    """One draw computed by hand with the textbook formulas, from the relaxed points that f received."""
    est = dj.relax(hidden=4, scaled_network=scaled_network)
    logits, points = jnp.asarray(LOGITS), {}

    def spy(b):
        jax.debug.callback(lambda b: points.update({len(b): np.asarray(b)}), b)
        return f(b)

    params = far_from_initial(est.init(jax.random.key(1), logits))
    out = jax.jit(lambda key: est.apply(params, key, logits, spy))(jax.random.key(3))
    jax.effects_barrier()
    b, relaxed = points[1][0], points[2]  # by the number of rows
    temperature, scale = 0.6, 0.7
    z, z_tilde = temperature * np.log(relaxed / (1 - relaxed))
    np.testing.assert_array_equal(b, z > 0)
    np.testing.assert_array_equal(b, z_tilde > 0)
    p = expit(LOGITS)
    v_prime = expit(z_tilde - LOGITS)
    v = np.where(b == 1, (v_prime - 1 + p) / p, v_prime / (1 - p))
    assert np.all((v > 0) & (v < 1))

    def r(z):
        net = params["network"]
        hidden = z @ net["hidden"]["kernel"] + net["hidden"]["bias"]
        hidden = jnp.where(hidden > 0, hidden, 0.3 * hidden)
        return hidden @ net["output"]["kernel"][:, 0] + net["output"]["bias"]

    def c(alpha, conditional):
        q = jax.nn.sigmoid(alpha)
        again = jnp.where(b == 1, v * q + 1 - q, v * (1 - q))
        z_again = alpha + (jnp.log(again / (1 - again)) if conditional else z - LOGITS)
        network_scale = scale if scaled_network else 1.0
        return scale * f(jax.nn.sigmoid(z_again / temperature)) + network_scale * r(z_again)

    alpha = jnp.asarray(LOGITS)
    slope = jax.jit(jax.grad(c), static_argnums=1)
    by_hand = (f(b) - c(alpha, True)) * (b - p) + slope(alpha, False) - slope(alpha, True)
    np.testing.assert_allclose(out.grad, by_hand, rtol=0, atol=1e-10)


@pytest.mark.usefixtures("x64")
def test_a_zero_control_variate_is_reinforce():
    nothing = (lambda key, logits: (), lambda params, z: jnp.zeros(z.shape[:-1], z.dtype))
    logits, with_samples = jnp.broadcast_to(jnp.asarray(LOGITS), (100, 3)), lambda b: (f(b), b)
    for est in (dj.make_estimator("rebar", init_scale=0.0), dj.relax(init_scale=0.0, control_variate=nothing)):
        params = est.init(jax.random.key(0), logits)
        apply = jax.jit(lambda est=est, p=params: est.apply(p, jax.random.key(1), logits, with_samples, has_aux=True))
        out, b = apply()
        reinforce = dj.formulas.reinforce(logits, b, f(b))
        np.testing.assert_allclose(out.grad, reinforce, rtol=0, atol=1e-14)


@pytest.mark.usefixtures("x64")
def test_conditional_logit_is_the_textbook_form():
    """s (softplus(s α + log v) − log(1 − v)) is α + logit(v′), and so is the derivative, through v′ too."""
    alpha = jnp.linspace(-6.0, 6.0, 13)

    def textbook(alpha, b, v):
        p = jax.nn.sigmoid(alpha)
        v_prime = v * p + 1 - p if b else v * (1 - p)
        return alpha + jnp.log(v_prime) - jnp.log1p(-v_prime)

    def ours(alpha, b, v):
        used = v if b else 1 - v  # for b = 0 the uniform number is used mirrored
        return dj.bernoulli.conditional_logit(alpha, jnp.full(13, b), jnp.full(13, used))

    for b in (0.0, 1.0):
        for v in (0.03, 0.5, 0.9):
            ones = jnp.ones_like(alpha)
            found, expected = (
                jax.jvp(lambda a, g=g, b=b, v=v: g(a, b, v), (alpha,), (ones,)) for g in (ours, textbook)
            )
            np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_conditional_logit_in_float32():
    """Finite with finite slopes at logits of ±1e4 and at the ends of the uniform numbers, and of the right sign."""
    with_slope = jax.jit(
        lambda a, b, v: jax.jvp(lambda a: dj.bernoulli.conditional_logit(a, b, v), (a,), (jnp.ones(1),))
    )
    for logit in (-1e4, -30.0, 0.0, 30.0, 1e4):
        for v in (np.finfo(np.float32).tiny, 0.5, 1 - 2.0**-24):
            for b in (0.0, 1.0):
                args = [jnp.full((1,), a, jnp.float32) for a in (b, v)]
                z, slope = with_slope(jnp.full(1, logit), *args)
                assert np.isfinite(z).all()
                assert np.isfinite(slope).all()
                assert z[0] == 0 or (z[0] > 0) == (b == 1)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_init(dtype):
    """The paper's values by default, in float32 for narrow logits; options and the number of bits are obeyed."""
    logits = jnp.zeros((5, 3), dtype)
    params = dj.relax().init(jax.random.key(0), logits)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))
    np.testing.assert_allclose([jnp.exp(params["log_temperature"]), params["scale"]], [0.1, 1.0], rtol=1e-6)
    assert params["network"]["hidden"]["kernel"].shape == (3, 137)
    assert set(dj.make_estimator("rebar").init(jax.random.key(0), logits)) == {"log_temperature", "scale"}
    params = dj.relax(init_temperature=0.7, init_scale=0.2, hidden=4).init(jax.random.key(0), logits)
    np.testing.assert_allclose([jnp.exp(params["log_temperature"]), params["scale"]], [0.7, 0.2], rtol=1e-6)
    assert params["network"]["hidden"]["kernel"].shape == (3, 4)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ESTIMATORS)
def test_gradient_of_the_variance_loss(name):
    """The noise does not depend on the tunables: with a fixed key it is an ordinary derivative; finite differences."""
    est, logits = ESTIMATORS[name], jnp.broadcast_to(jnp.asarray(LOGITS), (4, 3))
    params = far_from_initial(est.init(jax.random.key(1), logits))
    loss = jax.jit(lambda params: dj.variance_loss(est)(params, jax.random.key(2), logits, f))
    grads = jax.jit(lambda params: est.apply(params, jax.random.key(2), logits, f).grad)(params)
    np.testing.assert_allclose(loss(params), jnp.sum(grads**2), rtol=1e-10)
    check_grads(loss, (params,), order=1, modes=["rev"])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ESTIMATORS)
def test_learning_the_tunables_lowers_the_variance(name):
    est = ESTIMATORS[name]
    logits = jnp.broadcast_to(jnp.asarray(LOGITS), (64, 3))
    params = est.init(jax.random.key(1), logits)
    loss = dj.variance_loss(est)

    @jax.jit
    def train(params):
        def step(params, key):
            grads = jax.grad(loss)(params, key, logits, f)
            return jax.tree.map(lambda p, g: p - 1e-3 * g / 64, params, grads), None

        return jax.lax.scan(step, params, jax.random.split(jax.random.key(2), 3000))[0]

    measure = jax.jit(lambda params: dj.gradient_variance(est)(params, jax.random.key(3), logits, f, 1000))
    before, after = measure(params), measure(train(params))
    assert before.total - after.total > 10 * (before.total_stderr + after.total_stderr)
    assert after.total < 0.8 * before.total


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"init_temperature": 0.0}, ValueError, "init_temperature must be positive and finite, got 0.0"),
        ({"init_temperature": float("nan")}, ValueError, "init_temperature must be positive and finite, got nan"),
        ({"hidden": 0}, ValueError, "hidden must be at least 1, got 0"),
        ({"control_variate": "mlp"}, TypeError, "pair of functions"),
    ],
)
def test_wrong_options(options, error, words):
    with pytest.raises(error, match=words):
        dj.relax(**options)


def test_a_control_variate_of_the_wrong_shape_is_named():
    est = dj.relax(control_variate=(lambda key, logits: (), lambda params, z: z))
    with pytest.raises(ValueError, match=r"\(2, 4\).*\(2, 4, 3\)"):
        jax.eval_shape(
            lambda key: est.apply(est.init(key, jnp.zeros((4, 3))), key, jnp.zeros((4, 3)), f), jax.random.key(0)
        )
