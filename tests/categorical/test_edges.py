"""The edges of the estimators for classes: two classes, NaN, classes that do not occur, wrong arguments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import disarm_jax as dj

pytestmark = pytest.mark.usefixtures("quick_compile")


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["disarm_sb", "disarm_tree", "disarm_iw"])
def test_two_classes_with_the_noise_of_a_bit(name):
    """The same key, the same noise, the same pair up to its order: the gradient of binary DisARM."""
    alpha = jnp.asarray(np.random.default_rng(0).normal(size=(50, 3)))
    logits = jnp.stack([jnp.full_like(alpha, 0.4), 0.4 + alpha], axis=-1)
    f = lambda b: (b.sum(-1) - 1.3) ** 3 + b[..., 0]
    est = dj.categorical.make_estimator(name, num_pairs=3)

    @jax.jit
    def both(key):
        return dj.disarm(num_pairs=3).apply((), key, alpha, f), est.apply((), key, logits, lambda z: f(z[..., 1]))

    bits, classes = both(jax.random.key(3))
    if name != "disarm_iw":  # it has a node for each class, and so draws other noise
        np.testing.assert_allclose(classes.value, bits.value, rtol=0, atol=1e-12)
        np.testing.assert_allclose(classes.grad, jnp.stack([-bits.grad, bits.grad], axis=-1), rtol=0, atol=1e-12)
    weight = np.asarray(jax.nn.sigmoid(jnp.abs(alpha)))
    np.testing.assert_allclose(classes.grad[..., 0], -classes.grad[..., 1], rtol=0, atol=1e-12)
    assert np.all(np.abs(classes.grad[..., 1]) <= 0.5 * 10 * weight)


@pytest.mark.parametrize("name", dj.categorical.estimator_names())
def test_a_nan_reaches_all_classes_of_its_variable(name):
    """They share the normaliser; other variables and examples are left alone, and f still receives one-hot samples."""
    logits = jnp.zeros((2, 2, 3)).at[0, 0, 1].set(jnp.nan)
    est = dj.categorical.make_estimator(name)
    f = lambda z: (z[..., 0].sum(-1), z)
    out, z = jax.jit(lambda key: est.apply((), key, logits, f, has_aux=True))(jax.random.key(0))
    np.testing.assert_array_equal(np.isnan(out.grad), np.isnan(logits).any(axis=-1, keepdims=True) & np.ones(3, bool))
    np.testing.assert_array_equal(z.sum(axis=-1), np.ones(z.shape[:-1]))


@pytest.mark.parametrize("name", dj.categorical.estimator_names())
def test_classes_that_do_not_occur(name):
    """Logits of −∞ mask classes, as for actions that are not allowed: never drawn, no gradient, nothing NaN."""
    logits = jnp.array([[[0.2, -jnp.inf, 0.7, -jnp.inf, 0.1]], [[-jnp.inf, -jnp.inf, 0.0, -jnp.inf, -jnp.inf]]])
    est = dj.categorical.make_estimator(name)
    f = lambda z: (z[..., 0, :] @ jnp.arange(5.0), z)
    apply = jax.jit(lambda key: est.apply((), key, logits, f, has_aux=True))
    for seed in range(5):
        out, z = apply(jax.random.key(seed))
        never = np.asarray(logits == -jnp.inf)
        assert not np.any(np.asarray(z)[:, never])
        assert np.all(np.isfinite(out.grad))
        assert not np.any(np.asarray(out.grad)[never])


@pytest.mark.parametrize("name", dj.categorical.estimator_names())
def test_logits_need_two_axes(name):
    est = dj.categorical.make_estimator(name)
    for call in (lambda x: est.init(jax.random.key(0), x), lambda x: est.apply((), jax.random.key(0), x, jnp.sum)):
        with pytest.raises(ValueError, match=r"logits must have the shape \[\*batch, D, C\], got shape \(3,\)"):
            call(jnp.zeros(3))


@pytest.mark.parametrize(
    ("name", "options", "error", "words"),
    [
        ("disarm", {}, ValueError, "'disarm'; known: disarm_iw, disarm_iw_midpoint, disarm_sb"),
        ("disarm_sb", {"num_pairs": 0}, ValueError, "num_pairs must be at least 1, got 0"),
        ("disarm_tree", {"pairs": 2}, TypeError, "disarm_tree has no option 'pairs'; accepted: num_pairs"),
        ("disarm_iw", {"num_pairs": 1.5}, ValueError, "num_pairs must be an integer of at least 1, got 1.5"),
        ("reinforce_loo", {"num_samples": 1}, ValueError, "num_samples must be at least 2, got 1"),
        ("gumbel_softmax", {"temperature": -1.0}, ValueError, "temperature must be positive and finite, got -1.0"),
        ("gumbel_softmax", {"hard": 1}, ValueError, "hard must be True or False, got 1"),
    ],
)
def test_wrong_options_are_named(name, options, error, words):
    for call in (dj.categorical.make_estimator, dj.categorical.estimator_info):
        with pytest.raises(error, match=words):
            call(name, **options)
