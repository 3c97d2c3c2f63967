"""Noise, probabilities and samples: tails, symmetry and digits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

import disarm_jax as dj
from disarm_jax import bernoulli


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_logistic_noise(dtype):
    with jax.enable_x64(dtype == "float64"):
        noise = np.asarray(bernoulli.logistic_noise(jax.random.key(0), (1_000_000,), jnp.dtype(dtype)))
    assert noise.dtype == dtype
    assert stats.kstest(noise, stats.logistic.cdf).pvalue > 1e-3
    assert np.all(np.isfinite(noise))


def test_logistic_noise_reaches_both_tails_alike():
    """All the words that make the extremes: sign and tail probability are as documented, and nothing is infinite."""
    words = jnp.array([0, 1, 2, 3, 2**32 - 2, 2**32 - 1], jnp.uint32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.random, "bits", lambda key, shape, dtype: words)
        noise = np.asarray(bernoulli.logistic_noise(None, (6,), jnp.dtype("float32")))
    np.testing.assert_array_equal(noise[0::2], -noise[1::2])
    np.testing.assert_allclose(noise[1], np.log((2 - 2.0**-32) / 2.0**-32), rtol=1e-6)
    np.testing.assert_allclose(noise[5], 0, atol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_samplers_take_logits_of_any_float_dtype(dtype):
    """40,000 draws; numpy's float64 is JAX's float32 here. Right to 5 standard errors at logits ±5."""
    logits = np.array([-5.0, 0.0, 5.0])
    logits = logits if dtype == "float64" else jnp.asarray(logits, dtype)
    pairs = bernoulli.antithetic_pairs(jax.random.key(1), logits, 40_000)[:2]
    between = bernoulli.interpolated_pairs(jax.random.key(2), logits, 0.5, 40_000)
    for b in (bernoulli.sample(jax.random.key(0), logits, 40_000), *pairs, *between):
        assert b.dtype == ("float32" if dtype == "float64" else dtype)
        p = expit(np.array([-5.0, 0.0, 5.0]))
        found = np.asarray(b.astype(jnp.float32)).mean(axis=0)
        assert np.all(np.abs(found - p) < 5 * np.sqrt(p * (1 - p) / 40_000))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_logits_are_not_compared_as_such(dtype):
    """The same noise gives the same bits as with these logits in float32."""
    logits = jnp.asarray([-2.3, 0.7, 1.9], dtype)
    b, wide = (bernoulli.sample(jax.random.key(0), x, 40_000) for x in (logits, logits.astype(jnp.float32)))
    np.testing.assert_array_equal(b.astype(jnp.float32), wide)


def test_narrow_noise_is_refused():
    with pytest.raises(TypeError, match="bfloat16"):
        bernoulli.logistic_noise(jax.random.key(0), (3,), jnp.dtype("bfloat16"))


def test_rare_bits_have_the_right_frequency():
    """At logit ∓13 (p = 2.3e-6) with 10^8 bits: within 4.5 standard errors, and as often up as down."""
    draws, p = 100_000_000, expit(-13.0)

    @jax.jit
    def count(key):
        up = bernoulli.sample(key, jnp.full((draws // 10,), -13.0), 10).sum(dtype=jnp.float32)
        down = (1 - bernoulli.sample(jax.random.fold_in(key, 1), jnp.full((draws // 10,), 13.0), 10)).sum(
            dtype=jnp.float32
        )
        return up, down

    for count_of in count(jax.random.key(0)):
        assert abs(count_of - draws * p) < 4.5 * np.sqrt(draws * p)


@pytest.mark.parametrize("num_samples", [2, 3, 20])
def test_rare_bits_of_the_copula_have_the_right_frequency(num_samples):
    """At logit ∓10 (p = 4.5e-5) with 10^7 bits: every sample within 4.5 standard errors, up as down."""
    draws, p = 10_000_000, expit(-10.0)

    @jax.jit
    def count(key, logit):
        b = bernoulli.copula_samples(key, jnp.full((draws // num_samples,), logit), num_samples)
        return jnp.where(logit < 0, b, 1 - b).sum(axis=1, dtype=jnp.float32)

    for seed, logit in enumerate((-10.0, 10.0)):
        per_sample = np.asarray(count(jax.random.key(seed), logit))
        assert np.all(np.abs(per_sample - draws / num_samples * p) < 4.5 * np.sqrt(draws / num_samples * p))
        assert abs(per_sample.sum() - draws * p) < 4.5 * np.sqrt(draws * p)


def test_open_uniform_is_open():
    """Of 2^27 float32 numbers about 16 would be 0 in the half-open interval of `jax.random.uniform`."""
    uniform = jax.jit(lambda key: bernoulli.open_uniform(key, (2**27,), jnp.dtype("float32")))(jax.random.key(0))
    assert 0 < uniform.min() < uniform.max() < 1


@pytest.mark.usefixtures("x64")
def test_log_prob_and_score():
    logits = jnp.array([[0.3, -40.0, 1e4], [800.0, -0.0, -3.0]])
    b = jnp.asarray(np.random.default_rng(0).integers(0, 2, (5, 2, 3)), jnp.float64)
    by_hand = -np.logaddexp(0, np.where(b == 1, -logits, logits)).sum(-1)
    np.testing.assert_allclose(bernoulli.log_prob(logits, b), by_hand, rtol=1e-14)
    by_autodiff = jax.grad(lambda logits: bernoulli.log_prob(logits, b).sum())(logits)
    np.testing.assert_allclose(bernoulli.score(logits, b).sum(0), by_autodiff, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("shape", [(2,), (1, 2)])
def test_log_prob_of_certain_bits(shape):
    """Logits of ±∞ add nothing, and the derivative with respect to the others is what it is without them."""
    certain, b = jnp.broadcast_to(jnp.array([jnp.inf, -jnp.inf]), shape), jnp.array([[1.0, 0.0, 1.0]])

    def log_prob(alpha):
        return bernoulli.log_prob(jnp.concatenate([certain, jnp.broadcast_to(alpha, (*shape[:-1], 1))], axis=-1), b)

    value, grad = jax.value_and_grad(lambda alpha: log_prob(alpha).sum())(0.3)
    np.testing.assert_allclose(value, jax.nn.log_sigmoid(0.3), rtol=1e-6)
    np.testing.assert_allclose(grad, jax.nn.sigmoid(-0.3), rtol=1e-6)
    impossible = bernoulli.log_prob(certain, jnp.broadcast_to(jnp.array([0.0, 0.0]), (1, 2)))
    assert impossible < -1e38


def test_log_prob_multiplies_in_full_precision():
    """On accelerators a product is rounded to fewer digits unless it is told otherwise."""
    text = str(jax.make_jaxpr(jax.grad(lambda a, b: bernoulli.log_prob(a, b).sum()))(jnp.zeros(3), jnp.ones((4, 3))))
    assert text.count("dot_general[") == 4
    assert text.count("precision=(Precision.HIGHEST, Precision.HIGHEST)") == 4


def test_log_prob_keeps_small_probabilities_in_float32():
    np.testing.assert_allclose(
        bernoulli.log_prob(jnp.array([20.0]), jnp.array([1.0])), -np.log1p(np.exp(-20.0)), rtol=1e-5
    )


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_softplus(dtype):
    """To 4 units in the last place; its first two derivatives too, also at 0, where |x| has none; and at infinity."""
    with jax.enable_x64(dtype == "float64"):
        x = jnp.asarray([-1e4, -88.0, -20.0, -0.5, -0.0, 0.0, 0.5, 20.0, 88.0, 1e4], dtype)
        exact = np.asarray(x, np.float64)
        p, eps = expit(exact), float(jnp.finfo(dtype).eps)
        found = [bernoulli.softplus, jax.grad(bernoulli.softplus), jax.grad(jax.grad(bernoulli.softplus))]
        for function, expected in zip(found, (np.logaddexp(exact, 0), p, p * (1 - p)), strict=True):
            np.testing.assert_allclose(np.asarray(jax.vmap(function)(x), np.float64), expected, rtol=4 * eps, atol=eps)
        assert bernoulli.softplus(jnp.asarray(jnp.inf, dtype)) == jnp.inf
        assert bernoulli.softplus(jnp.asarray(-jnp.inf, dtype)) == 0
        assert np.isnan(bernoulli.softplus(jnp.asarray(jnp.nan, dtype)))


def test_log_prob_of_shared_logits():
    """Logits without a batch take another way, to the same values and derivatives."""
    logits, b = jnp.array([-1e4, -3.0, 0.0, 2.0, 1e4]), bernoulli.sample(jax.random.key(0), jnp.zeros((3, 4, 5)), 2)
    b = b.at[..., 0].set(0).at[..., 4].set(1)  # what such logits give
    batched = lambda logits: bernoulli.log_prob(jnp.broadcast_to(logits, (3, 4, 5)), b)
    shared = lambda logits: bernoulli.log_prob(logits, b)
    np.testing.assert_allclose(shared(logits), batched(logits), rtol=1e-6)
    weights = jnp.cos(jnp.arange(24.0)).reshape(2, 3, 4)
    both = [jax.grad(lambda logits, f=f: jnp.sum(weights * f(logits)))(logits) for f in (shared, batched)]
    np.testing.assert_allclose(*both, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("draw", "number", "message"),
    [
        (bernoulli.sample, -1, "num_samples must be at least 0, got -1"),
        (bernoulli.antithetic_pairs, -1, "num_pairs must be at least 0, got -1"),
        (
            lambda key, logits, number: bernoulli.interpolated_pairs(key, logits, 0.5, number),
            -1,
            "num_pairs must be at",
        ),
        (
            lambda key, logits, number: dj.subsets.sample(key, logits, 2, number),
            -1,
            "num_samples must be at least 0, got -1",
        ),
        (bernoulli.copula_samples, 1, "num_samples must be at least 2, got 1"),
        (bernoulli.copula_samples, -3, "num_samples must be at least 2, got -3"),
    ],
)
def test_numbers_of_samples_that_are_none(draw, number, message):
    """The copula of one sample would always give the likelier bit."""
    with pytest.raises(ValueError, match=message):
        draw(jax.random.key(0), jnp.zeros((3, 4)), number)


@pytest.mark.parametrize("name", ["disarm", "relax", "vimco", "rebar", "arms"])
def test_no_variables(name):
    est, logits = dj.make_estimator(name), jnp.zeros((3, 0))
    with pytest.raises(ValueError, match=r"logits must have at least one variable, got shape \(3, 0\)"):
        est.apply(est.init(jax.random.key(0), logits), jax.random.key(0), logits, lambda b: b.sum(-1))


@pytest.mark.parametrize("name", ["disarm_sb", "disarm_tree", "reinforce_loo"])
def test_no_classes(name):
    est, logits = dj.categorical.make_estimator(name), jnp.zeros((3, 2, 0))
    with pytest.raises(
        ValueError, match=r"logits must have at least one variable and one class, got shape \(3, 2, 0\)"
    ):
        est.apply((), jax.random.key(0), logits, lambda z: z.sum((-2, -1)))
