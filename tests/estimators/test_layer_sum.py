"""An f that is a sum over the layers of a chain: the same numbers as any f, with fewer rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from test_hierarchical import SAMPLES

import disarm_jax as dj

pytestmark = pytest.mark.usefixtures("x64", "quick_compile")

DIMS = (2, 3, 2)
ELSEWHERE = (
    "arms_midpoint",
    "arms_quadratic",
    "disarm_quadratic",
)  # look at log q away from the points of an expansion
PAIRS = {"arms_midpoint": 6, "disarm_midpoint": 1, "reinforce_loo_midpoint": 1}  # with a midpoint each
EXPANDED = ("disarm_taylor", "muprop", *PAIRS, *ELSEWHERE)  # at the means too, a row of every term


def make(weights, scale, inputs, stop, seen, with_log_q=True):
    """Layers of a chain, and an f of neighbouring layers and logits that notes the rows of its terms."""

    def layers_of(weights):
        def layer(t):
            return lambda b: b @ weights[t] if t else inputs @ weights[0]

        return [layer(t) for t in range(len(DIMS))]

    def term(t, below, a, b, logits):
        seen.append((t, b.shape[0]))
        below = jnp.ones_like(b) if below is None else below
        value = scale * jnp.sin(b.sum(-1) * below.sum(-1) + t)
        return value - dj.bernoulli.log_prob(logits, b) if with_log_q else value

    own = layers_of(lax.stop_gradient(weights) if stop else weights)
    return layers_of(weights), dj.LayerSum(term, lambda t, below: own[t](below), stop_layers=stop)


@pytest.mark.parametrize(
    ("name", "stop"),
    [(name, False) for name in dj.hierarchical_names()]
    + [(name, True) for name in ("arms_midpoint", "disarm", "disarm_quadratic", "relax")],  # the sum's own affair
)
def test_the_same_as_a_plain_function(name, stop):
    """Value, gradients and all derivatives; the terms of layer t only for the rows that have left the trunk by then.

    Expansions leave out how log q of the next layer changes around their points, so for some f has no log q here.
    """
    rng, inputs = np.random.default_rng(0), jnp.full((4, 1), 0.7)
    weights = [jnp.asarray(rng.normal(size=size)) for size in zip((1, *DIMS), DIMS, strict=False)]
    est, key = dj.hierarchical(name, **({"hidden": 3} if name == "relax" else {})), jax.random.key(3)
    layers, _ = make(weights, 1.0, inputs, stop, [])
    params = est.init(jax.random.key(0), dj.Chain(inputs, layers))
    seen = {True: [], False: []}

    def objective(weights, scale, structured):
        layers, f = make(weights, scale, inputs, stop, seen[structured], name not in ELSEWHERE)
        plain = lambda b: sum(f.terms(b, [f.logits(t, b[t - 1] if t else None) for t in range(len(b))])[0])
        f_or_plain, chain = f if structured else plain, dj.Chain(inputs, layers)
        out = est.apply(params, key, chain, f_or_plain)
        return out.value.sum(), out

    @jax.jit
    def of_both_kinds(weights, scale):
        derivative = jax.value_and_grad(objective, argnums=(0, 1), has_aux=True)
        return [derivative(weights, scale, structured) for structured in (True, False)]

    found, expected = of_both_kinds(weights, 1.3)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), found, expected)
    if name in ("relax", "rebar"):
        assert set(seen[True]) == {(t, 1) for t in range(3)} | {(t, 2 * (t + 1)) for t in range(3)}
        assert set(seen[False]) == {(t, rows) for t in range(3) for rows in (1, 6)}
    else:
        branches = [dim if name == "leg" else SAMPLES.get(name, 2) - 1 for dim in DIMS]
        rows = [1 + sum(branches[: t + 1]) for t in range(3)]
        means = {(t, num) for t in range(3) for num in (1, PAIRS.get(name, 1), 2 * PAIRS.get(name, 0))}
        expected = set(enumerate(rows))
        assert expected <= set(seen[True]) <= expected | (means if name in EXPANDED else set())
        assert {(t, rows[-1]) for t in range(3)} <= set(seen[False])


def test_wrong_use():
    with pytest.raises(TypeError, match="term must be a function, got 3"):
        dj.LayerSum(3, lambda t, below: below)
    with pytest.raises(ValueError, match="stop_layers must be True or False, got 1"):
        dj.LayerSum(lambda *_: 0.0, lambda t, below: below, stop_layers=1)
    f = dj.LayerSum(lambda t, below, a, b, logits: b, lambda t, below: jnp.zeros(2))
    with pytest.raises(ValueError, match=r"term 0 must return one number per sample, shape \(3,\), got shape \(3, 2\)"):
        f((jnp.zeros((3, 2)),))
