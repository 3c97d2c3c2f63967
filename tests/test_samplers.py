"""Samples for the middle of a network: exactly hard forwards, and backwards the estimates of the papers.

Given the sample, straight-through, ReinMax and the gapped estimate are matrices, written out here as in the papers.
For the others the noise is integrated by quadrature.
"""

import math

import exact
import exact_classes
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import DTYPES
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from scipy.special import expit, softmax

import disarm_jax as dj
from disarm_jax import samplers

pytestmark = pytest.mark.usefixtures("quick_compile")

NAMES = tuple(samplers.GRADIENTS)
SAMPLES = {"bits": dj.sample, "classes": dj.categorical.sample}
KEY = jax.random.key(3)
DRAWS = 20_000
SMALLEST_P = 1e-4
FIXED = {  # the derivative is a function of the sample
    "straight_through": {},
    "reinmax": {},
    "reinmax, warm": {"temperature": 1.5},
    "gapped": {},
    "gapped, far": {"temperature": 0.7, "gap": 2.5},
}


def name_of(case):
    return case.split(",")[0]


def through_softmax(p):
    return np.diag(p) - np.outer(p, p)


def matrix(case, logits, z):
    """∂ sample / ∂ logits of one variable, `[C, C]`, as in the papers (for ReinMax, Algorithm 2)."""
    temperature, p = FIXED[case].get("temperature", 1.0), softmax(logits)
    if name_of(case) == "straight_through":
        return through_softmax(p)
    if name_of(case) == "reinmax":
        between = (softmax(logits / temperature) + z) / 2
        return 2 * through_softmax(between) - 0.5 * through_softmax(p)
    gap = FIXED[case].get("gap", 1.0)
    raised = (logits.max() - logits) * z
    lowered = np.where(z == 1, 0, np.maximum(logits + gap - logits.max(), 0))
    return through_softmax(softmax((logits + raised - lowered) / temperature)) / temperature


def scale(case, logit, b):
    """∂ sample / ∂ logit of a bit, from two classes with the logits 0 and α."""
    return matrix(case, np.array([0.0, logit]), np.array([1.0 - b, b]))[1, 1]


def draws(sample, logits, name, num, **options):
    """Samples and their derivatives, for independent keys."""

    def one(key):
        draw = lambda logits: sample(key, logits, name, **options)
        return draw(logits), jax.jacobian(draw)(logits)

    return jax.jit(lambda keys: jax.lax.map(one, keys, batch_size=1000))(jax.random.split(KEY, num))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", SAMPLES)
def test_values_are_exactly_hard(kind, dtype):
    """Also for saturated logits and impossible classes, where the gradients are finite."""
    with jax.enable_x64(DTYPES[dtype]):
        bits = [0.3, -1.7, 30.0, -1e4, jnp.inf, -jnp.inf]
        classes = [[0.1, 0.5, -0.7], [-jnp.inf, 0.0, 0.5], [1e4, -1e4, 0.0], [-jnp.inf, -jnp.inf, 2.0]]
        logits = jnp.asarray({"bits": bits, "classes": classes}[kind], dtype)
        logits = jnp.broadcast_to(logits[None], (50, *logits.shape))
        weights = jnp.cos(jnp.arange(logits.size, dtype=dtype)).reshape(logits.shape)

        def losses(logits):
            b = {name: SAMPLES[kind](KEY, x, gradient=name) for name, x in logits.items()}
            return sum(jnp.sum(weights * x * x) for x in b.values()), b

        (_, samples), grads = jax.jit(jax.value_and_grad(losses, has_aux=True))(dict.fromkeys(NAMES, logits))
        possible = np.asarray(logits > -jnp.inf)
        for name in NAMES:
            assert samples[name].dtype == grads[name].dtype == logits.dtype
            b, grad = (np.asarray(x[name].astype(jnp.float32)) for x in (samples, grads))
            assert np.all((b == 0) | (b == 1))
            assert np.all(np.isfinite(grad))
            assert np.all(grad[np.isinf(logits)] == 0)
            assert np.any(grad != 0) == (name != "none")
            assert np.all(b[~possible] == 0)
            assert np.all(b.sum(axis=-1) == 1 if kind == "classes" else b[:, 4] == 1)


@pytest.mark.parametrize("kind", SAMPLES)
def test_a_broken_network_is_seen(kind):
    logits = jnp.array([[0.0, jnp.nan], [1.0, 2.0]])
    expected = [[False, True], [False, False]] if kind == "bits" else [[True, True], [False, False]]
    for sample in jax.jit(lambda x: [SAMPLES[kind](KEY, x, name) for name in NAMES])(logits):
        np.testing.assert_array_equal(jnp.isnan(sample), expected)


@pytest.mark.parametrize("name", NAMES)
def test_distribution(name):
    """Of three bits, and of two variables of three classes."""
    options = {"forward_temperature": 0.5} if name == "decoupled" else {}
    sharper = 2.0 if name == "decoupled" else 1.0
    bits, classes = np.array([-0.4, 0.9, 1.7]), np.array([[0.3, -0.5, 1.2], [0.0, 0.1, -1.0]])
    batches = [np.broadcast_to(x.astype(np.float32), (DRAWS, *x.shape)) for x in (bits, classes)]
    both = jax.jit(lambda *x: [sample(KEY, x, name, **options) for sample, x in zip(SAMPLES.values(), x, strict=True)])
    b, z = map(np.asarray, both(*batches))
    assert exact.chi_square(b, exact.probability(sharper * bits, exact.outcomes(3))) > SMALLEST_P
    chances = exact_classes.probability(sharper * classes, exact_classes.outcomes(2, 3))
    assert exact.chi_square_of_outcomes(np.argmax(z, axis=-1) @ [3, 1], chances) > SMALLEST_P


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("case", FIXED)
def test_the_derivative_given_the_sample(case):
    """Of each bit and each variable by itself, to 1e-12; with two classes it is that of a bit."""
    bits, classes = np.array([0.3, -1.2, 4.0]), np.array([[0.3, -0.5, 1.2], [0.0, 2.1, -1.0]])
    b, found = draws(dj.sample, jnp.asarray(bits), name_of(case), 200, **FIXED[case])
    for i in range(3):
        assert set(np.unique(b[:, i])) == {0, 1}
        expected = [scale(case, bits[i], bit) for bit in b[:, i]]
        np.testing.assert_allclose(found[:, i, i], expected, rtol=0, atol=1e-12)
    assert np.all(found[:, ~np.eye(3, dtype=bool)] == 0)
    z, found = draws(dj.categorical.sample, jnp.asarray(classes), name_of(case), 200, **FIXED[case])
    for d in range(2):
        assert np.all(z[:, d].sum(axis=0) > 0)
        expected = [matrix(case, classes[d], row) for row in z[:, d]]
        np.testing.assert_allclose(found[:, d, :, d], expected, rtol=0, atol=1e-12)
        assert np.all(found[:, d, :, 1 - d] == 0)


@pytest.mark.parametrize("degree", [1, 2, 3])
@pytest.mark.parametrize("case", FIXED)
def test_exact_where_theory_says_so(case, degree):
    """By enumeration: straight-through for linear losses, ReinMax at temperature 1 for quadratic ones; else a bias."""
    rng = np.random.default_rng(0)
    logits, w, m = np.array([0.3, -0.5, 1.2]), rng.normal(size=3), rng.normal(size=(3, 3))
    losses = {
        1: (lambda z: z @ w, lambda z: w),
        2: (lambda z: z @ w + z @ m @ z, lambda z: w + (m + m.T) @ z),
        3: (lambda z: (z @ w) ** 3, lambda z: 3 * (z @ w) ** 2 * w),
    }
    f, slope = losses[degree]
    q, right, found = softmax(logits), np.zeros(3), np.zeros(3)
    for p, z in zip(q, np.eye(3), strict=True):
        right += p * f(z) * (z - q)
        found += p * matrix(case, logits, z) @ slope(z)
    is_exact = degree <= {"straight_through": 1, "reinmax": 2}.get(case, 0)
    assert np.allclose(found, right, rtol=0, atol=1e-12) == is_exact
    assert is_exact or np.abs(found - right).max() > 0.005


def nodes(logit):
    """Logistic noise and weights of its expectation, on either side of the threshold at −logit."""
    x, weights = np.polynomial.legendre.leggauss(300)
    ends = (0.0, expit(-logit)), (expit(-logit), 1.0)
    u = np.concatenate([low + (high - low) * (x + 1) / 2 for low, high in ends])
    weights = np.concatenate([weights * (high - low) / 2 for low, high in ends])
    return np.log(u) - np.log1p(-u), weights


NOISY = {
    "gumbel": {"temperature": 0.7},
    "gumbel, soft": {"temperature": 0.7, "hard": False},
    "gumbel_rao": {"temperature": 0.7, "num_samples": 3},
    "gumbel_rao, cold": {"temperature": 0.2, "num_samples": 20},
    "decoupled": {"forward_temperature": 0.5, "backward_temperature": 1.6},
}


def noisy_moments(case, logit, slope):
    """Mean and variance of the derivative of a loss of one bit by quadrature."""
    options = NOISY[case]
    if name_of(case) == "decoupled":
        noise, weights = nodes(logit / options["forward_temperature"])
        b, temperature = logit / options["forward_temperature"] + noise > 0, options["backward_temperature"]
        relaxed = expit(logit / temperature + noise)
    else:
        noise, weights = nodes(logit)
        b, temperature = logit + noise > 0, options["temperature"]
        relaxed = expit((logit + noise) / temperature)
    g = relaxed * (1 - relaxed) / temperature * slope(relaxed if case == "gumbel, soft" else b * 1.0)
    mean, variance = exact.moments(weights, g)
    if name_of(case) == "gumbel_rao":  # the noise given the bit is averaged
        for side in (b, ~b):
            chance = weights[side].sum()
            variance += chance * exact.moments(weights[side] / chance, g[side])[1] * (1 / options["num_samples"] - 1)
    return mean, variance


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("kind", SAMPLES)
@pytest.mark.parametrize("case", NOISY)
def test_mean_and_variance_by_quadrature(case, kind):
    """Within 4.5 standard errors; a bit, or two classes with the same difference of logits. All of them are biased."""
    logit, slope = 0.8, lambda b: 3 * b**2 - 2 + b
    mean, variance = noisy_moments(case, logit, slope)
    f = lambda b: b**3 - 2 * b + b**2 / 2
    logits = jnp.array([0.3, 0.3 + logit])[None] if kind == "classes" else jnp.array([logit])
    batch = jnp.broadcast_to(logits[None], (DRAWS, *logits.shape))
    loss = lambda x: jnp.sum(f(SAMPLES[kind](KEY, x, name_of(case), **NOISY[case])[..., -1]))
    grad = np.asarray(jax.jit(jax.grad(loss))(batch))[..., -1].ravel()
    squares = (grad - mean) ** 2
    assert abs(grad.mean() - mean) < 4.5 * np.sqrt(variance / len(grad))
    assert abs(squares.mean() - variance) < 4.5 * squares.std() / np.sqrt(len(grad))
    forward = logit / NOISY[case].get("forward_temperature", 1.0)
    right = expit(forward) * expit(-forward) * f(1) / NOISY[case].get("forward_temperature", 1.0)
    assert abs(mean - right) > 0.005


def test_gumbel_rao_has_less_variance_and_the_same_mean():
    slope = lambda b: 3 * b**2 - 2 + b
    (mean, variance), (rao_mean, rao_variance) = (noisy_moments(case, 0.8, slope) for case in ("gumbel", "gumbel_rao"))
    assert mean == rao_mean
    assert rao_variance < variance


@pytest.mark.usefixtures("x64")
def test_reinmax_is_the_cold_limit_of_gumbel_rao():
    """ZGR (Shekhovtsov, 2023): given each class, at temperature 0.02, within 4.5 standard errors and 0.01 of bias."""
    logits, temperature, num = np.array([0.3, -0.5, 1.2]), 0.02, 200_000
    given = jax.jit(dj.categorical.hard_samples._given, static_argnums=3)
    for z in np.eye(3):
        x = given(KEY, logits[None], z[None], num)
        p = softmax(np.asarray(x)[:, 0] / temperature, axis=-1)
        matrices = (p[:, :, None] * (np.eye(3) - p[:, None])) / temperature
        error = 4.5 * matrices.std(axis=0) / np.sqrt(num)
        assert np.all(np.abs(matrices.mean(axis=0) - matrix("reinmax", logits, z)) < error + 0.01)
        assert np.all(error < 0.03)


@pytest.mark.usefixtures("x64")
def test_noise_given_the_class():
    """The largest is the class that was drawn; and as classes are drawn, the noise is that without a condition."""
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(DRAWS, 1, 4)))

    @jax.jit
    def classes_and_noise(logits):
        z = dj.categorical.distribution.sample(jax.random.key(0), logits, 1)[0]
        return z, dj.categorical.hard_samples._given(jax.random.key(1), logits, z, 1)[0]

    z, x = map(np.asarray, classes_and_noise(logits))
    np.testing.assert_array_equal(np.argmax(x, axis=-1), np.argmax(z, axis=-1))
    noise = x - np.asarray(jax.nn.log_softmax(logits, axis=-1))
    assert all(exact.stats.kstest(noise[:, 0, c], exact.stats.gumbel_r.cdf).pvalue > SMALLEST_P for c in range(4))
    correlation = np.corrcoef(noise[:, 0].T)[~np.eye(4, dtype=bool)]
    assert np.all(np.abs(correlation) < 4.5 / np.sqrt(DRAWS))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("estimator", "gradient"),
    [
        (("straight_through", {}), ("straight_through", {})),
        (("reinmax", {"temperature": 1.5}), ("reinmax", {"temperature": 1.5})),
        (("gumbel_", {"temperature": 0.7}), ("gumbel", {"temperature": 0.7})),
    ],
)
@pytest.mark.parametrize("kind", SAMPLES)
def test_the_estimators_of_these_names_have_the_same_gradient(kind, estimator, gradient):
    """Same moments for a nonlinear f: the means of two independent sets of draws differ by less than 4.5 errors."""
    module, shape, suffix = (dj, (3,), "sigmoid") if kind == "bits" else (dj.categorical, (2, 3), "softmax")
    name = estimator[0] + suffix if estimator[0].endswith("_") else estimator[0]
    est = module.make_estimator(name, **estimator[1])
    logits = jnp.broadcast_to(jnp.linspace(-1.0, 1.5, math.prod(shape)).reshape(shape), (DRAWS, *shape))
    weights = jnp.cos(jnp.arange(1.0, 1 + math.prod(shape)))
    f = lambda b: (b.reshape(*b.shape[: -len(shape)], -1) @ weights) ** 3
    loss = lambda x: jnp.sum(f(SAMPLES[kind](jax.random.key(1), x, gradient[0], **gradient[1])))
    both = jax.jit(lambda x: (est.apply((), jax.random.key(0), x, f).grad, jax.grad(loss)(x)))
    expected, found = map(np.asarray, both(logits))
    error = np.sqrt((expected.var(axis=0) + found.var(axis=0)) / DRAWS)
    assert np.all(np.abs(expected.mean(axis=0) - found.mean(axis=0)) < 4.5 * error)
    np.testing.assert_allclose(found.var(axis=0), expected.var(axis=0), rtol=0.15)


@pytest.mark.parametrize("kind", SAMPLES)
def test_transformations(kind):
    """vmap, scan, remat and forward mode give the gradients of one row after the other."""
    sample, keys = SAMPLES[kind], jax.random.split(KEY, 4)
    logits = jnp.sin(jnp.arange(24.0 * len(NAMES))).reshape(4, len(NAMES), 2, 3)

    def loss(logits, key):
        samples = jnp.stack([sample(key, x, name) for x, name in zip(logits, NAMES, strict=True)])
        return jnp.sum(jnp.cos(samples @ jnp.arange(1.0, 4.0)))

    alone = jax.jit(jax.grad(loss))
    expected = jnp.stack([alone(*args) for args in zip(logits, keys, strict=True)])
    scanned = lambda logits: jax.lax.scan(lambda total, row: (total + loss(*row), None), 0.0, (logits, keys))[0]
    for found in (
        jax.jit(jax.vmap(jax.grad(loss)))(logits, keys),
        jax.jit(jax.grad(scanned))(logits),
        jax.jit(jax.vmap(jax.grad(jax.checkpoint(loss))))(logits, keys),
        jax.jit(jax.vmap(jax.jacfwd(loss)))(logits, keys),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", SAMPLES)
@pytest.mark.parametrize("name", ["reinmax", "gumbel_rao"])
def test_shard_map(name, kind):
    """Each device has a key and data: the gradient with respect to shared logits is the sum of the devices'."""
    mesh = jax.make_mesh((4,), ("devices",), axis_types=(AxisType.Auto,))
    keys, logits, data = jax.random.split(KEY, 4), jnp.linspace(-1.0, 1.0, 6).reshape(2, 3), jnp.arange(1.0, 5.0)
    loss = lambda logits, key, x: jnp.sum((SAMPLES[kind](key, logits, name) @ jnp.arange(1.0, 4.0) - x) ** 2)
    on_device = lambda logits, key, x: jax.grad(loss)(logits, key[0], x[0])
    split = jax.shard_map(on_device, mesh=mesh, in_specs=(P(), P("devices"), P("devices")), out_specs=P())
    gradient = jax.jit(jax.grad(loss))
    alone = sum(gradient(logits, *args) for args in zip(keys, data, strict=True))
    np.testing.assert_allclose(jax.jit(split)(logits, keys, data), alone, rtol=1e-4, atol=1e-4)


def test_single_variables():
    """A bit has no axis, a variable that of its classes; under vmap these are what a module sees."""
    keys = jax.random.split(KEY, 5)
    assert jax.eval_shape(jax.vmap(dj.sample), keys, jnp.zeros(5)).shape == (5,)
    assert jax.eval_shape(jax.vmap(dj.categorical.sample), keys, jnp.zeros((5, 3))).shape == (5, 3)
    assert jax.eval_shape(jax.grad(lambda x: dj.sample(KEY, x)), 0.3).shape == ()


def test_a_temperature_that_falls():
    """It may be traced, and is then the same number; no derivative reaches it."""
    logits, loss = jnp.linspace(-1.0, 1.0, 5), lambda x, t: jnp.sum(dj.sample(KEY, x, "gumbel", temperature=t) ** 3)
    fixed = jax.grad(loss)(logits, 0.3)
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(logits, 0.3), fixed, rtol=1e-6)
    assert jax.grad(loss, argnums=1)(logits, jnp.float32(0.3)) == 0
    assert dj.sample(KEY, logits, "gapped", gap=jnp.float32(2.0)).shape == (5,)
    with pytest.raises(ValueError, match=r"temperature must be a number, got an array of shape \(5,\)"):
        loss(logits, jnp.ones(5))


def test_first_derivatives_only():
    loss = lambda x: jnp.sum(dj.sample(KEY, x) @ jnp.arange(3.0))
    second = jax.jit(jax.hessian(loss))(jnp.array([0.3, 1.0, -2.0]))
    np.testing.assert_array_equal(second, np.zeros((3, 3)))


@pytest.mark.parametrize(
    ("sample", "args", "options", "error", "message"),
    [
        (
            dj.sample,
            ("st",),
            {},
            ValueError,
            "unknown gradient 'st'; known: decoupled, gapped, gumbel, gumbel_rao, none",
        ),
        (dj.sample, (2,), {}, TypeError, "gradient must be one of the names decoupled, .*, got 2"),
        (
            dj.categorical.sample,
            (2,),
            {},
            TypeError,
            r"gradient=….*distribution\.sample\(key, logits, 2\)",
        ),
        (dj.sample, ("reinmax",), {"tau": 1}, TypeError, "reinmax has no option 'tau'; accepted: temperature"),
        (dj.sample, ("none",), {"tau": 1}, TypeError, "none has no option 'tau'; accepted: none"),
        (dj.sample, ("gumbel",), {"temperature": 0}, ValueError, "temperature must be positive and finite, got 0"),
        (dj.sample, ("gumbel",), {"hard": 1}, ValueError, "hard must be True or False, got 1"),
        (dj.sample, ("gapped",), {"gap": -1}, ValueError, "gap must be a finite number of at least 0, got -1"),
        (dj.sample, ("gumbel_rao",), {"num_samples": 0}, ValueError, "num_samples must be at least 1, got 0"),
        (dj.sample, ("decoupled",), {"forward_temperature": -1.0}, ValueError, "forward_temperature must be positive"),
    ],
)
def test_errors(sample, args, options, error, message):
    with pytest.raises(error, match=message):
        sample(KEY, jnp.zeros((2, 3)), *args, **options)


def test_logits_must_be_floats():
    with pytest.raises(TypeError, match="must be real floating-point numbers, got dtype int32"):
        dj.sample(KEY, jnp.zeros(3, jnp.int32))
    with pytest.raises(ValueError, match=r"\(\)"):
        dj.categorical.sample(KEY, jnp.zeros(()))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "none"])
def test_docstrings_name_bias_and_paper(name):
    text = samplers.GRADIENTS[name].__doc__
    assert text.startswith("Biased: ")
    assert "\n    Paper: " in text
    assert f'`"{name}"`' in dj.sample.__doc__
