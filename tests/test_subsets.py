"""Exactly k of n: against the enumeration of all subsets, and at n = 1,000."""

import itertools

import exact
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from black_box import black_box

import disarm_jax as dj
from disarm_jax import subsets

pytestmark = pytest.mark.usefixtures("quick_compile")

SIZES = [(n, k) for n in (1, 2, 8) for k in range(n + 1)]
SMALLEST_P = 1e-4

# Compiled as wholes, for each k and shape once; operation by operation, most of the time would go to the compiler.
log_prob = jax.jit(subsets.log_prob, static_argnums=2)
sample = jax.jit(subsets.sample, static_argnums=(2, 3))
marginals = jax.jit(subsets.marginals, static_argnums=1)
entropy = jax.jit(subsets.entropy, static_argnums=1)
straight_through = jax.jit(subsets.straight_through, static_argnums=2)


def enumerate_subsets(logits, k):
    """All subsets of k `[M, n]` and their probabilities `[M]`; logits may be infinite where a subset is left."""
    n = len(logits)
    b = np.array([[float(i in chosen) for i in range(n)] for chosen in itertools.combinations(range(n), k)])
    weights = np.exp(b @ np.clip(logits, -300, 300))
    return b.reshape(-1, n), weights / weights.sum()


def some_logits(n):
    return 2 * np.random.default_rng(n).normal(size=n) + 3


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_against_enumeration(n, k):
    """Log-probability, marginals, entropy and their derivatives to 1e-10."""
    logits = some_logits(n)
    b, q = enumerate_subsets(logits, k)
    mean, alpha = q @ b, jnp.asarray(logits)
    covariance = (b.T * q) @ b - np.outer(mean, mean)

    def all_of_them(alpha):
        values = subsets.log_prob(alpha, b, k), subsets.entropy(alpha, k), subsets.marginals(alpha, k)
        return values, values

    derivatives, values = jax.jit(jax.jacobian(all_of_them, has_aux=True))(alpha)
    np.testing.assert_allclose(np.exp(values[0]), q, rtol=1e-10)
    np.testing.assert_allclose(derivatives[0], b - mean, atol=1e-10)
    np.testing.assert_allclose(values[1], -q @ np.log(q), atol=1e-10)
    np.testing.assert_allclose(derivatives[1], -covariance @ logits, atol=1e-10)
    np.testing.assert_allclose(values[2], mean, atol=1e-10)
    np.testing.assert_allclose(derivatives[2], covariance, atol=1e-10)


@pytest.mark.parametrize(("n", "k"), [(5, 0), (5, 2), (5, 5), (8, 3)])
def test_samples_have_the_distribution(n, k):
    logits = some_logits(n)
    b, q = enumerate_subsets(logits, k)
    drawn = np.asarray(sample(jax.random.key(0), jnp.asarray(logits, jnp.float32), k, 20_000))
    assert drawn.shape == (20_000, n)
    powers = 2 ** np.arange(n)
    chances = np.zeros(2**n)
    chances[(b @ powers).astype(int)] = q
    if len(q) == 1:
        np.testing.assert_array_equal(drawn, np.broadcast_to(b, drawn.shape))
    else:
        assert exact.chi_square_of_outcomes((drawn @ powers).astype(int), chances) > SMALLEST_P


def test_batches_are_rows():
    """Any number of batch axes; a row does not depend on the others."""
    logits, key = jnp.sin(jnp.arange(30.0)).reshape(2, 3, 5), jax.random.key(0)
    b = sample(key, logits, 2, 4)
    assert b.shape == (4, 2, 3, 5)
    assert jnp.all(b.sum(axis=-1) == 2)
    b, logits = np.asarray(b), np.asarray(logits)
    log_probs, means, entropies = (
        np.asarray(a) for a in (log_prob(logits, b, 2), marginals(logits, 2), entropy(logits, 2))
    )
    assert log_probs.shape == (4, 2, 3)
    for i, j in [(0, 0), (1, 2)]:
        np.testing.assert_allclose(log_probs[:, i, j], log_prob(logits[i, j], b[:, i, j], 2), rtol=1e-5)
        np.testing.assert_allclose(means[i, j], marginals(logits[i, j], 2), rtol=1e-5)
        np.testing.assert_allclose(entropies[i, j], entropy(logits[i, j], 2), rtol=1e-5)


def test_what_is_no_subset_is_impossible():
    b = jnp.array([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.5, 0.5, 1.0], [2.0, 0.0, 0.0]])
    total = lambda x: jnp.sum(jnp.exp(subsets.log_prob(x, b, 2)))
    probability, gradient = jax.jit(jax.value_and_grad(total))(jnp.zeros(3))
    np.testing.assert_array_equal(np.asarray(log_prob(jnp.zeros(3), b, 2))[1:], -np.inf)
    np.testing.assert_allclose(probability, 1 / 3, rtol=1e-6)
    np.testing.assert_allclose(gradient, [1 / 9, 1 / 9, -2 / 9], rtol=1e-5)


@pytest.mark.parametrize("k", [1, 3])
def test_infinite_and_saturated_logits(k):
    """Certain and impossible elements: as without them, with finite derivatives that are zero for them."""
    logits = jnp.array([0.3, jnp.inf, -jnp.inf, 1.0, -2.0, -1e4])
    b, q = enumerate_subsets(np.array([0.3, 1.0, -2.0]), k - 1)
    b = np.insert(np.insert(b, 1, 1, axis=1), 2, 0, axis=1)
    b = np.append(b, np.zeros((len(b), 1)), axis=1)
    np.testing.assert_allclose(marginals(logits, k), q @ b, atol=1e-6)
    np.testing.assert_allclose(entropy(logits, k), -q @ np.log(q), atol=1e-6)
    impossible = np.eye(6)[2] + b[0] - np.eye(6)[1]
    found = log_prob(logits, np.append(b, impossible[None], axis=0).astype(np.float32), k)
    np.testing.assert_allclose(found, np.append(np.log(q), -np.inf), atol=1e-5)
    for function in (subsets.entropy, lambda a, k: jnp.sum(subsets.marginals(a, k) ** 2)):
        gradient = np.asarray(jax.jit(jax.grad(function), static_argnums=1)(logits, k))
        assert np.all(np.isfinite(gradient))
        np.testing.assert_array_equal(gradient[1:3], 0)
    drawn = np.asarray(sample(jax.random.key(0), logits, k, 100))
    np.testing.assert_array_equal(drawn[:, 1:3], np.broadcast_to([1.0, 0.0], (100, 2)))


def test_without_a_subset_all_is_nan():
    """Too few possible elements, too many certain ones, or NaN: seen in values, and not in other rows."""
    rows = [[-jnp.inf, -jnp.inf, 0.0], [jnp.inf, jnp.inf, jnp.inf], [jnp.nan, 0.0, 0.0], [0.0, 0.0, 0.0]]
    logits, b = jnp.array(rows), jnp.array([1.0, 1.0, 0.0])
    for found in (
        marginals(logits, 2),
        entropy(logits, 2)[:, None],
        log_prob(logits, np.broadcast_to(b, (4, 3)), 2)[:, None],
        sample(jax.random.key(0), logits, 2, 1)[0],
        straight_through(jax.random.key(0), logits, 2),
    ):
        np.testing.assert_array_equal(np.isnan(found), np.broadcast_to([[True], [True], [True], [False]], found.shape))


@pytest.mark.parametrize(("k", "spread"), [(10, 0.1), (500, 3.0)])
def test_a_thousand(k, spread):
    """In float32: marginals sum to k and are those of float64 to 1e-5; finite derivatives; frequencies."""
    logits = jnp.asarray(spread * np.random.default_rng(k).normal(size=1000), jnp.float32)
    b = np.asarray(sample(jax.random.key(1), logits, k, 2000))
    all_of_them = jax.jit(lambda x, b: (subsets.marginals(x, k), subsets.entropy(x, k), subsets.log_prob(x, b, k)))
    means, total, log_probs = map(np.asarray, all_of_them(logits, b[:200]))
    with jax.enable_x64(True):
        wide = all_of_them(np.asarray(logits, np.float64), b[:200].astype(np.float64))
    np.testing.assert_allclose(means, wide[0], atol=1e-5)
    np.testing.assert_allclose(total, wide[1], rtol=1e-4)
    np.testing.assert_allclose(log_probs, wide[2], atol=1e-3)
    np.testing.assert_allclose(means.sum(), k, rtol=1e-5)
    np.testing.assert_array_equal(b.sum(axis=-1), k)
    assert 0 <= means.min() <= means.max() <= 1
    often = means * (1 - means) > 0.005
    error = np.sqrt(means * (1 - means) / 2000)[often]
    assert np.all(np.abs(b.mean(axis=0) - means)[often] < 5 * error)
    assert abs(-log_probs.mean() - total) < 4.5 * log_probs.std() / np.sqrt(200) + 1e-3
    loss = lambda x: jnp.sum(subsets.marginals(x, k) ** 2) + subsets.entropy(x, k)
    assert np.all(np.isfinite(jax.jit(jax.grad(loss))(logits)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dtypes(dtype):
    """What is returned has the dtype of the logits; narrow ones are not computed with."""
    logits = jnp.asarray([0.5, -1.0, 2.0, 0.25], dtype)
    b = sample(jax.random.key(0), logits, 2, 3)
    for found in (b, marginals(logits, 2), entropy(logits, 2), log_prob(logits, b, 2)):
        assert found.dtype == logits.dtype
    np.testing.assert_array_equal(b, sample(jax.random.key(0), logits.astype(jnp.float32), 2, 3).astype(dtype))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("n", "k"), [(4, 0), (4, 2), (5, 3), (4, 4)])
def test_reinforce_loo_by_enumeration(n, k):
    """All pairs of subsets: the mean is the exact gradient to 1e-10, the variance that of the formula with scores."""
    logits, est = some_logits(n), subsets.reinforce_loo(k)
    b, q = enumerate_subsets(logits, k)
    f_b = exact.table_function(n)(b)
    right = (q * f_b) @ (b - q @ b)
    pairs, chances = exact.copies((b, q), 2)
    f_pairs = exact.table_function(n)(pairs)
    batch = jnp.broadcast_to(jnp.asarray(logits), pairs.shape[1:])
    out = est.tell((), batch, dj.estimators.estimator.Samples(jnp.asarray(pairs), None), jnp.asarray(f_pairs))
    mean, variance = exact.moments(chances, np.asarray(out.grad))
    np.testing.assert_allclose(mean, right, atol=1e-10)
    deviation = f_pairs - f_pairs.mean(axis=0)
    by_hand = np.sum(deviation[..., None] * (pairs - q @ b), axis=0)
    np.testing.assert_allclose(variance, exact.moments(chances, by_hand)[1], atol=1e-10)


def test_reinforce_loo_through_the_verbs():
    """`expectation` differentiates by it, `draw` and `tell` are `apply`, f is not differentiated in b."""
    est, key = subsets.reinforce_loo(2, num_samples=3), jax.random.key(0)
    logits = jnp.linspace(-1.0, 1.0, 10).reshape(2, 5)
    f = black_box(lambda b: jnp.cos(b @ jnp.arange(5.0)))
    out = est.apply((), key, logits, f)
    samples = est.draw((), key, logits)
    assert samples.b.shape == (3, 2, 5)
    assert jnp.all(samples.b.sum(axis=-1) == 2)
    jax.tree.map(np.testing.assert_array_equal, est.tell((), logits, samples, f(samples.b)), out)
    value, grad = jax.value_and_grad(lambda x: jnp.sum(dj.expectation(est)((), key, x, f)))(logits)
    np.testing.assert_allclose(value, out.value.sum(), rtol=1e-6)
    np.testing.assert_allclose(grad, out.grad, rtol=1e-6)
    assert est.info[:2] == ("reinforce_loo", 3)


def test_bits_that_are_not_independent_are_refused_where_they_must_be():
    est = subsets.reinforce_loo(2)
    for transform in (dj.taylor, dj.midpoint):
        with pytest.raises(ValueError, match="base must draw independent bits, and those of reinforce_loo are not"):
            transform(est)
    with pytest.raises(ValueError, match="has no form for chains, because its bits are not independent"):
        dj.hierarchical(est)


def test_check_does_not_compare_with_independent_bits(capsys):
    report = dj.check(subsets.reinforce_loo(2), lambda b: jnp.sum(b * b, axis=-1), jnp.zeros((2, 4)))
    assert report.ok
    assert "are for independent bits" in report.findings[-1].text
    assert not report.comparison


@pytest.mark.usefixtures("x64")
def test_straight_through():
    """The derivative is the covariance of the subset: exact for linear losses, for quadratic ones with a bias."""
    logits = some_logits(5)
    b, q = enumerate_subsets(logits, 2)
    covariance = (b.T * q) @ b - np.outer(q @ b, q @ b)
    weights, m = np.arange(5.0), np.cos(np.arange(25.0)).reshape(5, 5)

    @jax.jit
    def gradients(x, key):
        draw = lambda x: subsets.straight_through(key, x, 2)
        return draw(x), jax.grad(lambda x: draw(x) @ weights)(x), jax.grad(lambda x: (lambda b: b @ m @ b)(draw(x)))(x)

    drawn, linear, quadratic = map(np.asarray, gradients(logits, jax.random.key(1)))
    np.testing.assert_allclose(linear, covariance @ weights, atol=1e-12)
    np.testing.assert_array_equal(drawn, sample(jax.random.key(1), logits, 2, 1)[0])
    np.testing.assert_allclose(quadratic, covariance @ (m + m.T) @ drawn, atol=1e-12)
    mean = covariance @ (m + m.T) @ (q @ b)
    right = (q * np.einsum("mi,ij,mj->m", b, m, b)) @ (b - q @ b)
    assert np.abs(mean - right).max() > 0.01


def test_transformations():
    logits, keys = jnp.sin(jnp.arange(12.0)).reshape(3, 4), jax.random.split(jax.random.key(0), 3)
    loss = lambda x, key: jnp.sum(subsets.straight_through(key, x, 2) * jnp.arange(4.0)) ** 2 + subsets.entropy(x, 2)
    alone = jax.jit(jax.grad(loss))
    expected = jnp.stack([alone(*args) for args in zip(logits, keys, strict=True)])
    for found in (jax.jit(jax.vmap(jax.grad(loss))), jax.jit(jax.vmap(jax.grad(jax.checkpoint(loss))))):
        np.testing.assert_allclose(found(logits, keys), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: subsets.marginals(jnp.zeros(3), 4), ValueError, "k must be at most the number of logits, 3, got 4"),
        (lambda: subsets.entropy(jnp.zeros(3), -1), ValueError, "k must be at least 0, got -1"),
        (lambda: subsets.sample(jax.random.key(0), jnp.zeros(3), 1.5, 1), ValueError, "k must be an integer"),
        (lambda: subsets.marginals(jnp.zeros(3, jnp.int32), 1), TypeError, "must be real floating-point numbers"),
        (lambda: subsets.log_prob(jnp.zeros(3), jnp.zeros(4), 1), ValueError, r"shape \(4,\) do not fit .* \(3,\)"),
        (lambda: subsets.reinforce_loo(2, num_samples=1), ValueError, "num_samples must be at least 2, got 1"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()
