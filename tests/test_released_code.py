"""What docs/released-code.md says of public code, each with the calculation that shows it."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp, softmax

from disarm_jax.formulas import bounds
from scripts import released_vimco


def exact_signals(log_w):
    """L̂ − L̂^{−k} with the geometric baseline, sample by sample in the widest floats there are."""
    log_w = np.asarray(log_w, np.longdouble)
    found = []
    for k in range(len(log_w)):
        others = np.delete(log_w, k, axis=0)
        swapped = np.concatenate([others, others.mean(axis=0, keepdims=True)])
        found.append(logsumexp(log_w, axis=0) - logsumexp(swapped, axis=0))
    return np.array(found)


def log_weights(spread, num=20, rows=400):
    """Log-weights around those of an image, in float32; the rows differ in how far one sample is above the others."""
    rng = np.random.default_rng(5)
    return (-110 + spread * rng.normal(size=(num, rows))).astype(np.float32)


def test_in_float64_the_released_vimco_is_ours(x64):
    log_w = log_weights(2.0).astype(np.float64)
    for version in released_vimco.VERSIONS:
        found = released_vimco.released_signals(jnp.asarray(log_w), version)
        np.testing.assert_allclose(found, exact_signals(log_w).astype(float), rtol=0, atol=1e-8)


@pytest.mark.parametrize(("version", "least", "most"), [("0.10", 8.0, 40.0), ("0.25", 0.05, 0.7)])
def test_the_released_vimco_loses_precision_where_a_sample_dominates(version, least, most):
    log_w = log_weights(8.0)
    expected = exact_signals(log_w).astype(float)
    found = np.asarray(released_vimco.released_signals(jnp.asarray(log_w), version))
    worst = np.abs(found - expected).max()
    assert least < worst < most
    ours = np.asarray(bounds.vimco_signal(jnp.asarray(log_w), "geometric"))
    assert np.abs(ours - expected).max() < 2e-5
    if version == "0.10":  # what is too much is added to the squares, and so to the variance
        assert np.sum(found**2) > 1.1 * np.sum(expected**2)


def test_disarm_iw_is_biased_unless_the_logits_are_sorted(x64):
    """The importance weight needs that both samples can pass every class, so q(class | not before) ≤ ½ at each."""
    logits, values = np.array([1.0, 0.0, -1.0]), np.array([0.0, 1.0, 0.0])

    def mean_estimate(order):
        """The exact mean of the estimate ½ (f(z) − f(z̃)) (z − z̃) w along sticks in this order."""
        q = softmax(logits)[order]
        stop = np.array([q[0], q[1] / (q[1] + q[2])])  # the probabilities of the two choices
        total = np.zeros(3)
        edges = [np.unique([0.0, p, 1 - p, 1.0]) for p in stop]
        for cell in itertools.product(*map(itertools.pairwise, edges)):
            probability = np.prod([high - low for low, high in cell])
            u = np.array([0.5 * (low + high) for low, high in cell])
            z, z_tilde = (np.append(np.flatnonzero(v < stop), 2)[0] for v in (u, 1 - u))
            if z == z_tilde:
                continue
            first = min(z, z_tilde)
            # q(0)² / P(both pass) at every class before; at the first one P(stop) P(pass) / P(one stops).
            passed = np.where(stop < 0.5, (1 - stop) ** 2 / np.where(stop < 0.5, 1 - 2 * stop, 1), 0)[:first]
            weight = np.prod(passed) * max(stop[first], 1 - stop[first])
            score = np.eye(3)[order[z]] - np.eye(3)[order[z_tilde]]
            total += probability * 0.5 * (values[order[z]] - values[order[z_tilde]]) * score * weight
        return total

    q = softmax(logits)
    truth = q * (values - q @ values)
    np.testing.assert_allclose(mean_estimate(np.argsort(logits)), truth, atol=1e-12)
    released = mean_estimate(np.arange(3))
    bias = np.linalg.norm(released - truth) / np.linalg.norm(truth)
    np.testing.assert_allclose(bias, 0.126, rtol=1e-3)  # ours sorts them by itself: see test_class_formulas.py


def test_a_tree_of_whole_levels_does_not_reach_all_of_ten_classes():
    levels = int(np.log2(9 + 1))  # of nine nodes, as `convert_balanced_tree_to_category` has them
    reached = {int("".join(map(str, choices)), 2) for choices in itertools.product((0, 1), repeat=levels)}
    assert reached == set(range(8))
