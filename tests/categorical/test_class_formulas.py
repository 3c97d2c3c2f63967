"""The formulas for classes, by enumeration of all outcomes: exact mean, exact variance, and the binary case."""

import exact
import exact_classes
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax

import disarm_jax as dj

pytestmark = pytest.mark.usefixtures("x64", "quick_compile")

formulas = dj.categorical.formulas
RANDOM = np.random.default_rng(3).normal(size=(3, 5), scale=1.5)
LOGITS = {
    "two classes": RANDOM[:, :2],
    "three classes": RANDOM[:, :3],
    "four classes": RANDOM[:2, :4],
    "five classes": RANDOM[:2],
    "ascending": np.sort(RANDOM[:2, :4], axis=-1),
    "descending": np.sort(RANDOM[:2, :4], axis=-1)[:, ::-1],
    "equal": np.array([[0.3, 0.3, 0.3, 0.3], [0.0, 1.0, 0.0, 1.0]]),
    "nearly certain": np.array([[9.0, -9.0, 0.0, 1.0], [-20.0, 0.5, 20.0, 20.0]]),
    "classes that do not occur": np.array([[0.2, -np.inf, 0.7, -0.4], [-np.inf, -np.inf, 0.3, -0.1]]),
}
every_pair = pytest.mark.parametrize("name", exact_classes.PAIRS)


def loo_of_pairs(logits, z, z_tilde, f_z, f_z_tilde):
    """The formula of K samples, for a batch of pairs."""
    batch = jnp.broadcast_to(logits, z.shape)
    return formulas.reinforce_loo(batch, jnp.stack([z, z_tilde]), jnp.stack([f_z, f_z_tilde]))


COMPILED = {name: jax.jit(getattr(formulas, name)) for name in exact_classes.PAIRS}
COMPILED["reinforce_loo"] = jax.jit(loo_of_pairs)


@every_pair
@pytest.mark.parametrize("case", LOGITS)
def test_mean_and_variance(name, case):
    """The mean is the exact gradient, and each estimate, so the variance too, the one of the definition."""
    logits = LOGITS[case]
    f = exact_classes.table_function(*logits.shape)
    z, z_tilde, chances = exact_classes.pair_law(name, logits)
    np.testing.assert_allclose(chances.sum(), 1, rtol=1e-12)
    pairs = z, z_tilde, f(z), f(z_tilde)
    g = np.asarray(COMPILED[name](logits, *pairs))
    mean, variance = exact.moments(chances, g)
    np.testing.assert_allclose(mean, exact_classes.gradient(logits, f), rtol=0, atol=1e-10)
    defined = exact_classes.PAIRS[name](logits, *pairs)
    np.testing.assert_allclose(g[chances > 0], defined[chances > 0], rtol=0, atol=1e-10)
    np.testing.assert_allclose(variance, exact.moments(chances, defined)[1], rtol=0, atol=1e-10)
    assert np.any(variance > 1e-5)


@pytest.mark.parametrize("name", ["disarm_sb", "disarm_tree", "disarm_iw"])
def test_two_classes_are_a_bit(name):
    """The same pairs, the same gradient in the direction of the difference of the logits, the same variance."""
    logits = RANDOM[:, :2]
    alpha = logits[:, 1] - logits[:, 0]
    f = exact_classes.table_function(3, 2)
    z, z_tilde, chances = exact_classes.pair_law(name, logits)
    b, b_tilde, of_bits = exact.pair_law(alpha)
    np.testing.assert_allclose(chances, of_bits, atol=1e-15)
    np.testing.assert_array_equal(z[..., 1], b)
    g = COMPILED[name](logits, z, z_tilde, f(z), f(z_tilde))
    of_bits = exact.disarm(alpha, b, b_tilde, f(z), f(z_tilde))
    np.testing.assert_allclose(g, np.stack([-of_bits, of_bits], axis=-1), rtol=0, atol=1e-12)


def test_importance_weights_are_less_than_two():
    """At equal logits they are largest; also with so many classes that products could overflow."""
    z = jnp.eye(50)[:, None]
    later = jnp.roll(z, 1, axis=0)
    ones = jnp.ones(50)
    for logits in (jnp.zeros((1, 50)), jnp.linspace(-100, 100, 50)[None], jnp.linspace(3, 0, 50)[None]):
        g = formulas.disarm_iw(logits, z, later, 2 * ones, 0 * ones)
        assert np.all(np.abs(g) < 2)
        assert np.all(np.abs(g).max(axis=-1) > 0.4)


def test_order_matters_where_it_should():
    """Importance-weighted and independent estimates do not depend on the order of the classes, sticks do."""
    logits, order = RANDOM[:2, :4], [2, 0, 3, 1]
    f = exact_classes.table_function(2, 4)
    back = np.argsort(order)

    def variance(name, logits, f):
        z, z_tilde, chances = exact_classes.pair_law(name, logits)
        return exact.moments(chances, np.asarray(COMPILED[name](logits, z, z_tilde, f(z), f(z_tilde))))[1]

    for name in exact_classes.PAIRS:
        permuted = variance(name, logits[:, order], lambda z: f(z[..., back]))[:, back]
        same = np.allclose(permuted, variance(name, logits, f), rtol=0, atol=1e-10)
        assert same == (name in ("disarm_iw", "reinforce_loo")), name


def test_loo_of_three_samples():
    logits = RANDOM[:1, :3]
    f = exact_classes.table_function(1, 3)
    z = exact_classes.outcomes(1, 3)
    stack, chances = exact.copies((z, exact_classes.probability(logits, z)), 3)
    g = np.asarray(formulas.reinforce_loo(np.broadcast_to(logits, stack.shape[1:]), stack, f(stack)))
    scores = stack - softmax(logits, axis=-1)
    written = [(f(stack[k]) - (f(stack[k - 1]) + f(stack[k - 2])) / 2)[:, None, None] * scores[k] for k in range(3)]
    np.testing.assert_allclose(g, np.mean(written, axis=0), rtol=0, atol=1e-12)
    np.testing.assert_allclose(exact.moments(chances, g)[0], exact_classes.gradient(logits, f), rtol=0, atol=1e-10)


# The biased ones. An f of one-hot samples with a slope: its degree in each variable is that of the power.

WEIGHTS = np.random.default_rng(5).normal(size=(2, 3))


def power(degree):
    """f and ∇f, a product over the variables of powers of a linear function of each."""

    def f(z):
        return np.prod(np.sum(WEIGHTS * z, axis=-1) ** degree + 0.3, axis=-1)

    def slope(z):
        inner = np.sum(WEIGHTS * z, axis=-1)
        others = (inner**degree + 0.3)[..., ::-1]
        return (degree * inner ** (degree - 1) * others)[..., None] * WEIGHTS

    return f, slope


@pytest.mark.parametrize(("name", "order"), [("straight_through", 1), ("reinmax", 2)])
@pytest.mark.parametrize("degree", [1, 2, 3])
def test_exact_up_to_its_order(name, order, degree):
    """Straight-through for an f that is linear in each variable, ReinMax for a quadratic one; biased beyond."""
    logits, (f, slope) = RANDOM[:2, :3], power(degree)
    z = exact_classes.outcomes(2, 3)
    args = (slope(z),) if name == "straight_through" else (z, slope(z))
    g = np.asarray(getattr(formulas, name)(logits, *args))
    mean, _ = exact.moments(exact_classes.probability(logits, z), g)
    truth = exact_classes.gradient(logits, f)
    is_exact = np.allclose(mean, truth, rtol=0, atol=1e-10)
    assert is_exact == (degree <= order)
    assert is_exact or np.abs(mean - truth).max() > 0.1 * np.abs(truth).max()
    assert not dj.categorical.estimator_info(name).unbiased


def test_reinmax_is_that_of_its_paper():
    """2 ∂softmax at (softmax + z) / 2 less half of straight-through."""
    logits, z, slope = RANDOM[:2, :3], np.eye(3)[[2, 0]], np.random.default_rng(6).normal(size=(2, 3))
    p = softmax(logits, axis=-1)

    def through(p):
        return np.stack([(np.diag(row) - np.outer(row, row)) @ s for row, s in zip(p, slope, strict=True)])

    expected = 2 * through((p + z) / 2) - 0.5 * through(p)
    np.testing.assert_allclose(formulas.reinmax(logits, z, slope), expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(formulas.straight_through(logits, slope), through(p), rtol=0, atol=1e-12)
    warm = through(softmax(logits / 0.7, axis=-1)) / 0.7
    np.testing.assert_allclose(formulas.gumbel_softmax(logits, slope, 0.7), warm, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "of_bits"),
    [("straight_through", "straight_through"), ("reinmax", "reinmax"), ("gumbel_softmax", "gumbel_sigmoid")],
)
def test_two_classes_of_the_biased_are_a_bit(name, of_bits):
    logits, slope, z = RANDOM[:, :2], RANDOM[:, 2:4], np.eye(2)[[0, 1, 1]]
    alpha, along = logits[:, 1] - logits[:, 0], slope[:, 1] - slope[:, 0]
    middle, options = ((z,), ()) if name == "reinmax" else ((), (0.7,) if name == "gumbel_softmax" else ())
    bit = getattr(dj.formulas, of_bits)(alpha, *(z[..., 1] for z in middle), along, *options)
    g = getattr(formulas, name)(logits, *middle, slope, *options)
    np.testing.assert_allclose(g, np.stack([-bit, bit], axis=-1), rtol=0, atol=1e-12)


def test_wrong_shapes_are_named():
    z, logits = jnp.zeros((4, 2, 3)), jnp.zeros((2, 3))
    with pytest.raises(ValueError, match=r"\[\*batch, D, C\], got shape \(3,\)"):
        formulas.disarm_sb(jnp.zeros(3), z, z, jnp.zeros(4), jnp.zeros(4))
    with pytest.raises(ValueError, match=r"shape \(4,\), got \(4, 2\)"):
        formulas.disarm_tree(logits, z, z, jnp.zeros((4, 2)), jnp.zeros((4, 2)))
    with pytest.raises(ValueError, match=r"\(4, 2, 3\) do not fit logits of shape \(2, 4\)"):
        formulas.disarm_iw(jnp.zeros((2, 4)), z, z, jnp.zeros(4), jnp.zeros(4))
    with pytest.raises(ValueError, match="reinforce_loo needs at least 2 samples"):
        formulas.reinforce_loo(logits, z[:1], jnp.zeros(1))
