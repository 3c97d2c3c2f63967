"""The formulas for classes, by enumeration of all outcomes: exact mean, exact variance, and the binary case."""

import exact
import exact_classes
import jax.numpy as jnp
import numpy as np
import pytest

import disarm_jax as dj

pytestmark = pytest.mark.usefixtures("x64", "quick_compile")

RANDOM = np.random.default_rng(3).normal(size=(3, 5), scale=1.5)
LOGITS = {
    "two classes": RANDOM[:, :2],
    "three classes": RANDOM[:2, :3],
    "four classes": RANDOM[:2, :4],
    "five classes": RANDOM[:2],
    "three variables": RANDOM[:, :3],
    "ascending": np.sort(RANDOM[:2], axis=-1),
    "descending": np.sort(RANDOM[:2, :4], axis=-1)[:, ::-1],
    "equal": np.array([[0.3, 0.3, 0.3, 0.3], [0.0, 1.0, 0.0, 1.0]]),
    "nearly certain": np.array([[9.0, -9.0, 0.0, 1.0], [-20.0, 0.5, 20.0, 20.0]]),
    "classes that do not occur": np.array([[0.2, -np.inf, 0.7, -0.4], [-np.inf, -np.inf, 0.3, -0.1]]),
}
every_pair = pytest.mark.parametrize("name", exact_classes.PAIRS)
every_logits = pytest.mark.parametrize("case", LOGITS)


def formula_of(name):
    """The formula under test, as one of pairs."""
    if name == "reinforce_loo":
        return lambda logits, z, z_tilde, *f: np.stack(
            [
                dj.categorical.formulas.reinforce_loo(logits, jnp.stack(pair), jnp.stack(values))
                for *pair, values in [(z[k], z_tilde[k], [f[0][k], f[1][k]]) for k in range(len(z))]
            ]
        )
    return getattr(dj.categorical.formulas, name)


@every_pair
@every_logits
def test_mean_and_variance(name, case):
    """Mean equal to the exact gradient, and each estimate, so the variance too, to the definition by enumeration."""
    logits = LOGITS[case]
    f = exact_classes.table_function(*logits.shape)
    z, z_tilde, chances = exact_classes.pair_law(name, logits)
    np.testing.assert_allclose(chances.sum(), 1, rtol=1e-12)
    if name == "reinforce_loo":  # over samples, not over leading axes
        stack, values = np.stack([z, z_tilde]), np.stack([f(z), f(z_tilde)])
        batch = np.broadcast_to(logits, z.shape)
        g = dj.categorical.formulas.reinforce_loo(batch, stack, values)
    else:
        g = getattr(dj.categorical.formulas, name)(logits, z, z_tilde, f(z), f(z_tilde))
    mean, variance = exact.moments(chances, np.asarray(g))
    np.testing.assert_allclose(mean, exact_classes.gradient(logits, f), rtol=0, atol=1e-10)
    with np.errstate(invalid="ignore"):
        defined = exact_classes.PAIRS[name](logits, z, z_tilde, f(z), f(z_tilde))
    if case != "classes that do not occur":
        np.testing.assert_allclose(g, defined, rtol=0, atol=1e-10)
        np.testing.assert_allclose(variance, exact.moments(chances, defined)[1], rtol=0, atol=1e-10)
