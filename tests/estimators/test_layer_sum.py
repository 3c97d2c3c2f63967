"""An f that is a sum over the layers of a chain: the same numbers as any f, with fewer rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import disarm_jax as dj

pytestmark = pytest.mark.usefixtures("x64", "quick_compile")

DIMS = (2, 3, 2)
EXPANDED = ("disarm_midpoint", "disarm_quadratic", "disarm_taylor")  # at the means too, a row of every term


def make(weights, scale, inputs, stop, seen):
    """Layers of a chain, and an f of neighbouring layers and logits that notes the rows of its terms."""

    def layers_of(weights):
        def layer(t):
            return lambda b: b @ weights[t] if t else inputs @ weights[0]

        return [layer(t) for t in range(len(DIMS))]

    def term(t, below, b, logits):
        seen.append((t, b.shape[0]))
        below = jnp.ones_like(b) if below is None else below
        return scale * jnp.sin(b.sum(-1) * below.sum(-1) + t) - dj.bernoulli.log_prob(logits, b)

    own = layers_of(lax.stop_gradient(weights) if stop else weights)
    return layers_of(weights), dj.LayerSum(term, lambda t, below: own[t](below), stop_layers=stop)


@pytest.mark.parametrize("stop", [True, False])
@pytest.mark.parametrize("name", dj.hierarchical_names())
def test_the_same_as_a_plain_function(name, stop):
    """Value, gradients and all derivatives; the terms of layer t only for the rows that have left the trunk by then."""
    rng, inputs = np.random.default_rng(0), jnp.full((4, 1), 0.7)
    weights = [jnp.asarray(rng.normal(size=size)) for size in zip((1, *DIMS), DIMS, strict=False)]
    est, key = dj.hierarchical(name, **({"hidden": 3} if name == "relax" else {})), jax.random.key(3)
    layers, _ = make(weights, 1.0, inputs, stop, [])
    params = est.init(jax.random.key(0), inputs, layers)
    seen = {True: [], False: []}

    def objective(weights, scale, structured):
        layers, f = make(weights, scale, inputs, stop, seen[structured])
        f = f if structured else lambda b, f=f: f(b)
        out = est.apply(params, key, inputs, layers, f)
        return dj.hierarchical_expectation(est)(params, key, inputs, layers, f).sum(), out

    found, expected = (
        jax.jit(jax.value_and_grad(lambda w, s, kind=kind: objective(w, s, kind), argnums=(0, 1), has_aux=True))(
            weights, 1.3
        )
        for kind in (True, False)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), found, expected)
    branches = 3 if name == "arms" else 1
    if name == "relax":
        assert set(seen[True]) == {(t, 1) for t in range(3)} | {(t, 2 * (t + 1)) for t in range(3)}
        assert set(seen[False]) == {(t, rows) for t in range(3) for rows in (1, 6)}
    else:
        means = {(t, 1) for t in range(3)} if name in EXPANDED else set()
        assert set(seen[True]) == means | {(t, 1 + (t + 1) * branches) for t in range(3)}
        assert set(seen[False]) == means | {(t, 1 + 3 * branches) for t in range(3)}


def test_wrong_use():
    with pytest.raises(TypeError, match="term must be a function, got 3"):
        dj.LayerSum(3, lambda t, below: below)
    with pytest.raises(ValueError, match="stop_layers must be True or False, got 1"):
        dj.LayerSum(lambda *_: 0.0, lambda t, below: below, stop_layers=1)
    f = dj.LayerSum(lambda t, below, b, logits: b, lambda t, below: jnp.zeros(2))
    with pytest.raises(ValueError, match=r"term 0 must return one number per sample, shape \(3,\), got shape \(3, 2\)"):
        f((jnp.zeros((3, 2)),))
