"""Through `apply`: the samples that f receives have the exact law, and `grad` is the formula of them."""

import exact
import exact_classes
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import softmax

import disarm_jax as dj

LOGITS = np.array([[0.4, -1.0, 0.9, -0.2], [1.1, 0.3, -0.6, 0.1]])
F = exact_classes.table_function(2, 4)
DRAWS = 20_000
SMALLEST_P = 1e-4  # of a dozen χ² tests with fixed seeds, none should fall below this by chance
PAIRS = tuple(exact_classes.PAIRS)


def multilinear(dtype):
    """F at one-hot samples, and between them, so that it has a slope; hands out the samples."""
    table = jnp.asarray(F.table, dtype)

    def f(z):
        wide = z.astype(dtype)
        values = jnp.einsum("...i,...j,ij->...", wide[..., 0, :], wide[..., 1, :], table)
        return values, z

    return f


def slope(z):
    """∇f of the same."""
    return np.stack([z[..., 1, :] @ F.table.T, z[..., 0, :] @ F.table], axis=-2)


def capture(name, options, dtype, draws=DRAWS, logits=LOGITS):
    """One call of `apply` with a large batch: the samples `[N, draws, D, C]`, and the estimate."""
    est = dj.categorical.make_estimator(name, **options)
    logits = jnp.broadcast_to(jnp.asarray(logits, dtype), (draws, *logits.shape))
    f = multilinear(jnp.float64 if dtype == jnp.float64 else jnp.float32)
    out, z = jax.jit(lambda key: est.apply((), key, logits, f, has_aux=True))(jax.random.key(8))
    assert z.dtype == dtype
    return np.asarray(z.astype(jnp.float32)), out


def one_hot_index(z):
    """The number of each one-hot sample `[..., D, C]` among all `C^D`."""
    assert np.all(np.sort(z, axis=-1) == np.eye(z.shape[-1])[-1])
    classes = np.argmax(z, axis=-1)
    return classes @ z.shape[-1] ** np.arange(z.shape[-2])[::-1]


@pytest.mark.usefixtures("x64", "quick_compile")
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("num", [1, 2])
def test_law_and_formula_of_pairs(name, num):
    """Rows k and k + num are a pair; different pairs, and different variables, are independent."""
    options = {"num_samples": 2 * num} if name == "reinforce_loo" else {"num_pairs": num}
    z, out = capture(name, options, jnp.float64)
    assert z.shape == (2 * num, DRAWS, 2, 4)
    *_, chances = exact_classes.pair_law(name, LOGITS)
    index = one_hot_index(z)
    for k in range(num):
        assert exact.chi_square_of_outcomes(16 * index[k] + index[k + num], chances) > SMALLEST_P
    if num == 2:
        marginal = chances.reshape(16, 16).sum(axis=1)
        assert exact.chi_square_of_outcomes(16 * index[0] + index[1], np.outer(marginal, marginal).ravel()) > SMALLEST_P
    np.testing.assert_allclose(out.value, F(z).mean(axis=0), rtol=0, atol=1e-12)
    if name == "reinforce_loo":
        scores, deviation = z - softmax(LOGITS, axis=-1), F(z) - F(z).mean(axis=0)
        expected = np.sum(deviation[..., None, None] * scores, axis=0) / (2 * num - 1)
    else:
        pairs = [(z[k], z[k + num], F(z[k]), F(z[k + num])) for k in range(num)]
        expected = np.mean([exact_classes.PAIRS[name](LOGITS, *pair) for pair in pairs], axis=0)
    np.testing.assert_allclose(out.grad, expected, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("x64", "quick_compile")
@pytest.mark.parametrize("name", ["straight_through", "reinmax", "gumbel_softmax"])
def test_law_and_formula_of_one_sample(name):
    z, out = capture(name, {}, jnp.float64)
    chances = exact_classes.probability(LOGITS, exact_classes.outcomes(2, 4))
    assert exact.chi_square_of_outcomes(one_hot_index(z)[0], chances) > SMALLEST_P
    np.testing.assert_allclose(out.value, F(z[0]), rtol=0, atol=1e-12)
    s = slope(z[0])
    if name == "straight_through":
        np.testing.assert_allclose(out.grad, dj.categorical.formulas.straight_through(LOGITS, s), rtol=0, atol=1e-12)
    elif name == "reinmax":
        np.testing.assert_allclose(out.grad, dj.categorical.formulas.reinmax(LOGITS, z[0], s), rtol=0, atol=1e-12)


@pytest.mark.usefixtures("x64", "quick_compile")
@pytest.mark.parametrize("hard", [True, False])
def test_gumbel_softmax_against_quadrature(hard):
    """Two classes: the difference of two Gumbel variables is logistic, so the mean is an integral over one number."""
    temperature, alpha = 0.7, 0.8
    est = dj.categorical.gumbel_softmax(temperature=temperature, hard=hard)
    f = lambda z: z[..., 0, 1] ** 3 + 2 * z[..., 0, 0]
    points = []

    def watched(z):
        points.append(z)
        return f(z)

    batch = jnp.broadcast_to(jnp.array([[0.3, 0.3 + alpha]]), (DRAWS, 1, 2))
    out = jax.jit(lambda key: est.apply((), key, batch, watched))(jax.random.key(2))
    assert len(points) == (1 if hard else 2)
    u = (np.arange(200_000) + 0.5) / 200_000
    x = alpha + np.log(u / (1 - u))
    y = 1 / (1 + np.exp(-x / temperature))
    at = (x > 0) if hard else y
    mean = np.mean((3 * at**2 - 2) * y * (1 - y) / temperature)
    grad = np.asarray(out.grad)
    stderr = grad[:, 0, 1].std() / np.sqrt(DRAWS)
    assert stderr < 0.003
    assert abs(grad[:, 0, 1].mean() - mean) < 4.5 * stderr
    np.testing.assert_allclose(grad[:, 0, 0], -grad[:, 0, 1], rtol=0, atol=1e-12)
    p = 1 / (1 + np.exp(-alpha))
    assert abs(mean - -p * (1 - p)) > 20 * stderr  # the bias: f is 1 at class 1 and 2 at class 0
    assert not dj.categorical.estimator_info("gumbel_softmax").unbiased


@pytest.mark.usefixtures("x64", "quick_compile")
def test_gumbel_noise_has_its_law():
    noise = np.asarray(dj.categorical.distribution.gumbel_noise(jax.random.key(0), (DRAWS,), jnp.float32))
    assert stats.kstest(noise, stats.gumbel_r.cdf).pvalue > SMALLEST_P
    assert np.all(np.isfinite(noise))


@pytest.mark.usefixtures("x64", "quick_compile")
@pytest.mark.parametrize("name", PAIRS)
def test_gradient_variance_measures_the_exact_moments(name):
    """8,000 draws: mean and total variance within 4.5 of their own standard errors, under 4% of the variance."""
    est = dj.categorical.make_estimator(name)
    f = multilinear(jnp.float64)

    @jax.jit
    def measure(key):
        return dj.categorical.gradient_variance(est)((), key, jnp.asarray(LOGITS), lambda z: f(z)[0], 8000, 1000)

    z, z_tilde, chances = exact_classes.pair_law(name, LOGITS)
    defined = exact_classes.PAIRS[name](LOGITS, z, z_tilde, F(z), F(z_tilde))
    mean, variance = exact.moments(chances, defined)
    measured = measure(jax.random.key(4))
    assert measured.variance.shape == (2, 4)
    assert np.all(np.abs(measured.mean - mean) < 4.5 * measured.mean_stderr)
    assert abs(measured.total - variance.sum()) < 4.5 * measured.total_stderr
    assert measured.total_stderr < 0.04 * variance.sum()


@pytest.mark.usefixtures("quick_compile")
@pytest.mark.parametrize("name", dj.categorical.estimator_names())
def test_frequencies_in_bfloat16(name):
    """Classes of probability 0.0067 and 0.018; in bfloat16 noise they would not come up as often. 20,000 draws."""
    logits = np.array([[5.0, 0.0, 1.0]])
    est = dj.categorical.make_estimator(name)
    batch = jnp.broadcast_to(jnp.asarray(logits, jnp.bfloat16), (20_000, 1, 3))
    out, z = jax.jit(lambda key: est.apply((), key, batch, lambda z: (z[..., 0, 1], z), has_aux=True))(
        jax.random.key(5)
    )
    assert out.grad.dtype == z.dtype == jnp.bfloat16
    for row in np.asarray(z.astype(jnp.float32)):
        for c, p in enumerate(softmax(logits[0])):
            assert abs(row[:, 0, c].mean() - p) < 4.5 * np.sqrt(p * (1 - p) / len(row))
