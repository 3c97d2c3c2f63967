"""Slopes from past pairs: unbiased by enumeration, what the regression learns, and the command."""

import importlib
import pathlib
import sys

import exact
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import flags

import disarm_jax as dj
from scripts import past_slopes
from scripts.past_slopes import Method

LOGITS = np.array([0.3, -1.2, 0.0, 2.0])
CONTROLLED = [Method("disarm", 2, "slopes"), Method("disarm", 2, "critic"), Method("reinforce_loo", 2, "critic")]

pytestmark = pytest.mark.usefixtures("quick_compile")


@pytest.fixture(autouse=True)
def as_a_user(monkeypatch):
    """With JAX as it comes, and without the folder of the examples on the path afterwards."""
    monkeypatch.syspath_prepend(str(past_slopes.EXAMPLES))
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield
    for name in ("subset", "common"):
        sys.modules.pop(name, None)


def outcomes(method, logits):
    """All samples `[M, 2, D]` of a method, and their probabilities `[M]`."""
    if method.base == "disarm":
        b, b_tilde, probabilities = exact.pair_law(logits)
        return np.stack([b, b_tilde], axis=1), probabilities
    b, probabilities = exact.sample_law(logits, 2)
    return b.swapaxes(0, 1), probabilities


def estimates(method, w, b, f):
    one = lambda b, f_b: past_slopes.estimate(method, jnp.asarray(w), jnp.asarray(LOGITS[: b.shape[-1]]), b, f_b)
    return np.asarray(jax.vmap(one)(jnp.asarray(b), jnp.asarray(f(b))))


@pytest.mark.parametrize("method", CONTROLLED, ids=str)
@pytest.mark.parametrize("bits", [3, 4])
def test_unbiased_for_any_slopes(method, bits, x64):
    """All pairs of 3 and 4 bits, an f that is a table of random numbers, and slopes that have nothing to do with it."""
    f, logits = exact.table_function(bits), LOGITS[:bits]
    b, probabilities = outcomes(method, logits)
    for seed in range(5):
        w = 3 * np.random.default_rng(seed).normal(size=bits)
        mean, _ = exact.moments(probabilities, estimates(method, w, b, f))
        np.testing.assert_allclose(mean, exact.gradient(logits, f), rtol=0, atol=1e-12)


@pytest.mark.parametrize("bits", [3, 4])
def test_slopes_subtract_the_term_of_the_other_bits(bits, x64):
    """DisARM less ½ h_i Σ_{k≠i} w_k (b_k − b̃_k), written out."""
    f, logits, w = exact.table_function(bits), LOGITS[:bits], np.random.default_rng(0).normal(size=bits)
    b, _ = outcomes(CONTROLLED[0], logits)
    sign, h = b[:, 0] - b[:, 1], (b[:, 0] - b[:, 1]) / (1 + np.exp(-np.abs(logits)))
    others = np.stack([np.delete(sign, i, axis=1) @ np.delete(w, i) for i in range(bits)], axis=1)
    expected = 0.5 * h * ((f(b[:, 0]) - f(b[:, 1]))[:, None] - others)
    np.testing.assert_allclose(estimates(CONTROLLED[0], w, b, f), expected, rtol=0, atol=1e-14)


def test_slopes_of_the_pair_itself_would_be_biased(x64):
    """The check sees it if w knows this pair: here w is learnt from it before it is used."""
    method, f = CONTROLLED[0], exact.table_function(3)
    b, probabilities = outcomes(method, LOGITS[:3])

    def one(b, f_b):
        nothing = jax.tree.map(lambda x: x.astype(b.dtype), past_slopes.nothing(3))
        w, _ = past_slopes.slopes(past_slopes.learn(method, nothing, jnp.zeros(3), b, f_b))
        return past_slopes.estimate(method, w, jnp.asarray(LOGITS[:3]), b, f_b)

    mean, _ = exact.moments(probabilities, np.asarray(jax.vmap(one)(jnp.asarray(b), jnp.asarray(f(b)))))
    assert np.abs(mean - exact.gradient(LOGITS[:3], f)).max() > 1e-3


@pytest.mark.parametrize("method", CONTROLLED, ids=str)
def test_a_linear_function_is_learnt(method):
    """Its slopes are found, λ becomes 1, and a critic leaves nearly no variance: with slopes, that of b_i ≠ b̃_i."""
    truth, logits = jnp.array([1.0, -2.0, 0.5, 3.0]), jnp.asarray(LOGITS, jnp.float32)
    f = lambda b: b @ truth + 7
    _, _, (past,) = past_slopes.walk([method], f, 0.0, 600, past_slopes.begin([method], logits), jax.random.key(0))
    w, scale = past_slopes.slopes(past)
    np.testing.assert_allclose(w, truth, rtol=0.05)
    assert 0.97 < scale <= 1

    def one(key):
        b = past_slopes.draw(method, key, logits)
        return past_slopes.estimate(method, scale * w, logits, b, f(b))

    grads = jax.vmap(one)(jax.random.split(jax.random.key(1), 4000))
    p = jax.nn.sigmoid(logits)
    differ = 2 * jnp.minimum(p, 1 - p)
    left = (0.5 * truth * jax.nn.sigmoid(jnp.abs(logits))) ** 2 * differ * (1 - differ)
    expected = left if method.control == "slopes" else jnp.zeros(4)
    np.testing.assert_allclose(jnp.var(grads, axis=0), expected, rtol=0.15, atol=0.02)


def test_best_subset_is_the_function_of_the_example():
    f, logits = past_slopes.problems()["best subset"]
    subset = importlib.import_module("subset")
    (x, y), *_ = subset.data(jax.random.key(1), len(logits))
    b = dj.bernoulli.sample(jax.random.key(0), logits, 5)
    expected = subset.make_f(x, y, jnp.log(len(logits) / subset.TRUE))(b)
    np.testing.assert_allclose(f(b), expected, rtol=1e-4)


def test_the_command(tmp_path, monkeypatch):
    """Two tables, a row for each method, and finite numbers; the tables that are kept have the same form."""
    monkeypatch.setattr(past_slopes, "METHODS", [Method("disarm", 2), *CONTROLLED])
    problem = past_slopes.problems()["knapsack, penalty"]
    monkeypatch.setattr(past_slopes, "problems", lambda: {"knapsack, penalty": problem})
    values = flags.FlagValues()
    past_slopes.define_flags(values)
    values(["past_slopes", f"--out={tmp_path}", "--seeds=2", "--evaluations=80", "--num_draws=10"])
    past_slopes.main([], values)
    text = (tmp_path / "past_slopes.md").read_text()
    kept = (pathlib.Path(past_slopes.__file__).parents[1] / "results/midpoint/past_slopes.md").read_text()
    assert "nan" not in text
    assert "nan" not in kept
    for method in CONTROLLED:
        assert text.count(f"| {method} | 2 |") == 2
        assert kept.count(f"| {method} | 2 |") == 6
