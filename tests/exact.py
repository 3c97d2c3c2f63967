"""Exact answers by enumerating all outcomes, in float64 numpy: nothing here uses the code under test.

Laws are enumerated as (outcomes, probabilities). The formulas are written out as in the papers, with loops and plain
probabilities, however slow or fragile that is.
"""

import itertools
import math

import numpy as np
from scipy import stats
from scipy.special import expit, logsumexp


def outcomes(dim: int) -> np.ndarray:
    """All 2^D bit vectors, `[2^D, D]`."""
    return np.array(list(itertools.product((0.0, 1.0), repeat=dim))).reshape(-1, dim)


def table_function(dim: int, seed: int = 0, scale: float = 1.0):
    """An f without any structure: a random number for each bit vector, none of it symmetric. Takes `[..., D]`."""
    table = scale * np.random.default_rng(seed).normal(size=2**dim) + 0.7
    weights = 2 ** np.arange(dim)[::-1]

    def f(b):
        return table[np.asarray(b).astype(int) @ weights]

    f.table = table
    return f


def probability(logits: np.ndarray, b: np.ndarray) -> np.ndarray:
    """q(b), for b `[..., D]`."""
    return np.prod(np.where(b == 1, expit(logits), expit(-np.asarray(logits))), axis=-1)


def expectation(logits: np.ndarray, f) -> np.ndarray:
    """E f(b), for logits `[D]`."""
    b = outcomes(len(logits))
    return probability(logits, b) @ f(b)


def gradient(logits: np.ndarray, f) -> np.ndarray:
    """∂ E f(b) / ∂ logits: p_i (1 − p_i) E[f(b_{i→1}) − f(b_{i→0})], with no sample in it."""
    result = np.zeros(len(logits))
    for i in range(len(logits)):
        high, low = outcomes(len(logits)), outcomes(len(logits))
        high[:, i], low[:, i] = 1, 0
        q = probability(logits, outcomes(len(logits)))
        result[i] = expit(logits[i]) * expit(-logits[i]) * (q @ (f(high) - f(low)))
    return result


def moments(probabilities: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of g `[M, ...]` under the probabilities `[M]`."""
    mean = np.tensordot(probabilities, g, axes=1)
    return mean, np.tensordot(probabilities, (g - mean) ** 2, axes=1)


# Laws of the samples.


def antithetic_table(p: float) -> np.ndarray:
    """P(b, b̃) of one coordinate of an antithetic pair, as in the paper's appendix B."""
    if p < 0.5:
        return np.array([[1 - 2 * p, p], [p, 0.0]])
    return np.array([[0.0, 1 - p], [1 - p, 2 * p - 1]])


def independent_table(p: float) -> np.ndarray:
    return np.outer([1 - p, p], [1 - p, p])


def pair_tables(logits: np.ndarray, beta) -> list[np.ndarray]:
    """P(b_i, b̃_i) per coordinate: antithetic with probability β, else independent."""
    betas = np.broadcast_to(beta, np.shape(logits))
    return [b * antithetic_table(p) + (1 - b) * independent_table(p) for p, b in zip(expit(logits), betas, strict=True)]


def pair_law(logits: np.ndarray, beta=1.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All pairs: b `[M, D]`, b̃ `[M, D]` and their probabilities `[M]`, M = 4^D."""
    dim, tables = len(logits), pair_tables(logits, beta)
    bits = outcomes(2 * dim)
    b, b_tilde = bits[:, :dim], bits[:, dim:]
    each = [tables[i][b[:, i].astype(int), b_tilde[:, i].astype(int)] for i in range(dim)]
    return b, b_tilde, np.prod(each, axis=0)


def copies(law: tuple[np.ndarray, ...], num: int) -> tuple[np.ndarray, ...]:
    """The law of `num` independent copies: arrays `[num, M^num, D]` and the probabilities `[M^num]`."""
    *arrays, probabilities = law
    index = np.array(list(itertools.product(range(len(probabilities)), repeat=num))).T
    return *(a[index] for a in arrays), np.prod(probabilities[index], axis=0)


def sample_law(logits: np.ndarray, num_samples: int) -> tuple[np.ndarray, np.ndarray]:
    """K independent samples: b `[K, M, D]`, probabilities `[M]`, M = 2^(D K)."""
    b = outcomes(len(logits))
    return copies((b, probability(logits, b)), num_samples)


def copula_table(p: float, num_samples: int) -> np.ndarray:
    """P(b_1, …, b_n) of one coordinate of n samples of the Dirichlet copula, `[2, …, 2]`.

    The rarer bit comes up where d_k > s = 1 − m^{1/(n−1)}, and P(d_1, …, d_k > s) = max(1 − k s, 0)^{n−1} for
    d ~ Dirichlet(1, …, 1); the rest is inclusion and exclusion.
    """
    m = min(p, 1 - p)
    s = 1 - m ** (1 / (num_samples - 1))
    all_of = [max(1 - k * s, 0.0) ** (num_samples - 1) for k in range(num_samples + 1)]
    table = np.zeros((2,) * num_samples)
    for bits in itertools.product((0, 1), repeat=num_samples):
        likely = sum(bits) if p >= 0.5 else num_samples - sum(bits)
        rare = num_samples - likely
        table[bits] = sum((-1) ** j * math.comb(likely, j) * all_of[rare + j] for j in range(likely + 1))
    return np.where(np.abs(table) < 1e-15, 0.0, table)


def copula_law(logits: np.ndarray, num_samples: int) -> tuple[np.ndarray, np.ndarray]:
    """n samples of the Dirichlet copula: b `[n, M, D]`, probabilities `[M]`, M = 2^(n D), as in `outcomes`."""
    bits = np.moveaxis(outcomes(num_samples * len(logits)).reshape(-1, num_samples, len(logits)), 1, 0)
    tables = [copula_table(p, num_samples) for p in expit(logits)]
    each = [table[tuple(bits[..., i].astype(int))] for i, table in enumerate(tables)]
    return bits, np.prod(each, axis=0)


def flip(b: np.ndarray, i: int) -> np.ndarray:
    """b `[..., D]` with bit i flipped."""
    b = b.copy()
    b[..., i] = 1 - b[..., i]
    return b


def chi_square(bits: np.ndarray, probabilities: np.ndarray) -> float:
    """The p-value of samples `[M, n]` of n bits under the law of all 2^n outcomes; an impossible one fails at once."""
    return chi_square_of_outcomes(bits.astype(int) @ 2 ** np.arange(bits.shape[1])[::-1], probabilities)


def chi_square_of_outcomes(index: np.ndarray, probabilities: np.ndarray) -> float:
    """The p-value of outcomes `[M]`, numbered as their probabilities are; an impossible one fails at once."""
    counts = np.bincount(index, minlength=len(probabilities))
    assert counts[probabilities == 0].sum() == 0, "the samples contain outcomes of probability 0"
    expected = len(index) * probabilities
    often, rare = expected >= 10, (expected > 0) & (expected < 10)
    observed, expected = (np.append(a[often], a[rare].sum()) for a in (counts, expected))
    if expected[-1] < 10:  # even all rare outcomes together are too few for the χ² approximation
        observed, expected = observed[:-1], expected[:-1] * observed[:-1].sum() / expected[:-1].sum()
    return stats.chisquare(observed, expected).pvalue


# The estimators, as the papers write them. b is [K, ..., D], f_b is [K, ...]; pairs have no sample axis.


def reinforce(logits, b, f_b):
    return np.mean(f_b[..., None] * (b - expit(logits)), axis=0)


def reinforce_loo(logits, b, f_b):
    num = len(b)
    total = 0.0
    for k in range(num):
        others = np.mean([f_b[j] for j in range(num) if j != k], axis=0)
        total = total + (f_b[k] - others)[..., None] * (b[k] - expit(logits))
    return total / num


def arm(u, f_b, f_b_tilde):
    return 0.5 * (f_b - f_b_tilde)[..., None] * (2 * u - 1)


def disarm(logits, b, b_tilde, f_b, f_b_tilde):
    return 0.5 * (f_b - f_b_tilde)[..., None] * (-1) ** b_tilde * (b != b_tilde) * expit(np.abs(logits))


def interpolated(logits, b, b_tilde, f_b, f_b_tilde, beta):
    """The posterior-weighted sum of DisARM and REINFORCE-LOO of the paper's appendix B, per coordinate."""
    result = np.zeros(np.shape(b))
    both = (
        disarm(logits, b, b_tilde, f_b, f_b_tilde),
        reinforce_loo(logits, np.stack([b, b_tilde]), np.stack([f_b, f_b_tilde])),
    )
    for i in range(b.shape[-1]):
        beta_i, p = np.broadcast_to(beta, b.shape[-1:])[i], expit(np.broadcast_to(logits, b.shape)[..., i].flat[0])
        index = b[..., i].astype(int), b_tilde[..., i].astype(int)
        antithetic = beta_i * antithetic_table(p)[index]
        independent = (1 - beta_i) * independent_table(p)[index]
        with np.errstate(invalid="ignore"):
            posterior = np.where(antithetic + independent > 0, antithetic / (antithetic + independent), 0.0)
        result[..., i] = posterior * both[0][..., i] + (1 - posterior) * both[1][..., i]
    return result


def arms(logits, b, f_b):
    """With P(b_j = b_k = 1) as in the paper, from plain probabilities."""
    num, p = len(b), expit(logits)
    low = np.maximum(2 * np.minimum(p, 1 - p) ** (1 / (num - 1)) - 1, 0) ** (num - 1)
    both = np.where(p < 0.5, low, 2 * p - 1 + low)
    total = 0.0
    for k in range(num):
        total = total + (f_b[k] - np.mean(f_b, axis=0))[..., None] * (b[k] - p)
    return total / (num - 1) * p * (1 - p) / (p - both)


def mixture_law(logits: np.ndarray, num_samples: int, beta) -> tuple[np.ndarray, np.ndarray]:
    """As `copula_law` with probability β and independent otherwise, per coordinate."""
    bits = np.moveaxis(outcomes(num_samples * len(logits)).reshape(-1, num_samples, len(logits)), 1, 0)
    each = []
    for i, (p, beta_i) in enumerate(zip(expit(logits), np.broadcast_to(beta, np.shape(logits)), strict=True)):
        independent = np.prod(np.where(bits[..., i] == 1, p, 1 - p), axis=0)
        coupled = copula_table(p, num_samples)[tuple(bits[..., i].astype(int))]
        each.append(beta_i * coupled + (1 - beta_i) * independent)
    return bits, np.prod(each, axis=0)


def arms_interpolated(logits, b, f_b, beta):
    """c from the enumerated law of two of the samples."""
    weight = np.zeros(len(logits))
    for i, (p, beta_i) in enumerate(zip(expit(logits), np.broadcast_to(beta, np.shape(logits)), strict=True)):
        pair = copula_table(p, len(b)).sum(axis=tuple(range(2, len(b))))
        weight[i] = p * (1 - p) / (beta_i * pair[1, 0] + (1 - beta_i) * p * (1 - p))
    return reinforce_loo(logits, b, f_b) * weight


def multisample_arms(logits, b, log_w):
    """b is `[n, K, ..., D]`."""
    num, total = b.shape[1], 0.0
    for k in range(num):
        values = []
        for i in range(len(b)):
            bounds = [bound(np.array([*np.delete(w, k, axis=0), log_w[i, k]])) for w in log_w]
            values.append(np.mean(bounds, axis=0))
        total = total + arms(logits, b[:, k], np.array(values))
    return total


def double_cv(logits, b, f_b, slope, scale):
    num, p = len(b), expit(logits)
    t = []
    for k in range(num):
        others = np.mean([slope[j] for j in range(num) if j != k], axis=0)
        t.append(f_b[k] + scale * np.sum(others * (b[k] - p), axis=-1))
    total = 0.0
    for k in range(num):
        baseline = np.mean([t[j] for j in range(num) if j != k], axis=0)
        total = total + (t[k] - baseline)[..., None] * (b[k] - p)
    return total / num - scale * np.mean(slope, axis=0) * p * (1 - p)


def stein(logits, h, x):
    """(Ah)(x) for a function h of `[..., D]`, scalar or vector valued, by flipping every bit."""
    total = 0.0
    for i in range(len(logits)):
        flipped = flip(x, i)
        rate = np.where(flipped[..., i] == 1, expit(logits[i]), expit(-logits[i]))
        difference = h(flipped) - h(x)
        total = total + rate.reshape(rate.shape + (1,) * (difference.ndim - rate.ndim)) * difference
    return total / len(logits)


def rodeo(logits, b, f_b, slope, network, baseline_scale, control_scale):
    """`network` is H, two arrays `[...]` to `[..., 2]`."""
    num, p = len(b), expit(logits)

    def h(k, output):
        def average(y):
            each = [network(np.sum(slope[j] * (y - b[j]), axis=-1), f_b[j])[..., output] for j in range(num) if j != k]
            return np.mean(each, axis=0)

        return average

    total = 0.0
    for k in range(num):
        baseline = [f_b[j] + baseline_scale * stein(logits, h(j, 0), b[j]) for j in range(num) if j != k]
        total = total + (f_b[k] - np.mean(baseline, axis=0))[..., None] * (b[k] - p)
        total = total + control_scale * stein(logits, lambda y, k=k: h(k, 1)(y)[..., None] * (y - p), b[k])
    return total / num


def leg(logits, b, f):
    result = np.zeros(np.shape(b))
    for i in range(len(logits)):
        high, low = b.copy(), b.copy()
        high[..., i], low[..., i] = 1, 0
        result[..., i] = expit(logits[i]) * expit(-logits[i]) * (f(high) - f(low))
    return result


def bitflip(logits, b, i, f):
    """i is the bit drawn, one for all."""
    result = np.zeros(np.shape(b))
    result[..., i] = len(logits) * leg(logits, b, f)[..., i]
    return result


def ugc(logits, b, b_tilde, i, f):
    rare = np.minimum(expit(logits), expit(-logits)) < 1 / (2 * len(logits))
    return np.where(rare, bitflip(logits, b, i, f), disarm(logits, b, b_tilde, f(b), f(b_tilde)))


def straight_through(logits, slope):
    return expit(logits) * (1 - expit(logits)) * slope


def reinmax(logits, b, slope):
    return 0.5 * (1 - np.where(b == 1, expit(logits), 1 - expit(logits))) * slope


def expansion(logits, b, f_p, slope, hessian, scale):
    """h(b) = f(p) + λ₁ ∇f(p)ᵀ(b − p) + ½ λ₂ (b − p)ᵀH(b − p), for b `[..., D]`."""
    result = np.full(b.shape[:-1], f_p)
    p = expit(logits)
    for i in range(len(p)):
        result += scale[0] * slope[i] * (b[..., i] - p[i])
        for j in range(len(p)):
            result += 0.5 * scale[1] * hessian[i, j] * (b[..., i] - p[i]) * (b[..., j] - p[j])
    return result


def multilinear_expansion(logits, f):
    """f(p), ∇f(p) and the Hessian of the multilinear f through its values at bits: differences, no sample in them."""
    dim, p = len(logits), expit(logits)

    def at(**fixed):
        b = outcomes(dim)
        for name, bit in fixed.items():
            b[:, int(name[1:])] = bit
        return probability(logits, outcomes(dim)) @ f(b)

    slope, hessian = gradient(logits, f) / (p * (1 - p)), np.zeros((dim, dim))
    for i in range(dim):
        for j in range(dim):
            if i != j:
                a, b = f"b{i}", f"b{j}"
                signs = [(x, y, (2 * x - 1) * (2 * y - 1)) for x in (0, 1) for y in (0, 1)]
                hessian[i, j] = sum(sign * at(**{a: x, b: y}) for x, y, sign in signs)
    return expectation(logits, f), slope, hessian


def bound(log_w):
    return logsumexp(log_w, axis=0) - np.log(len(log_w))


def vimco(logits, b, log_w, baseline):
    num = len(b)
    total = 0.0
    for k in range(num):
        others = np.delete(log_w, k, axis=0)
        if baseline == "arithmetic":
            left_out = bound(others)
        else:
            left_out = bound(np.concatenate([others, np.mean(others, axis=0, keepdims=True)]))
        total = total + (bound(log_w) - left_out)[..., None] * (b[k] - expit(logits))
    return total


def companions(configurations, k, num):
    """For sample k, the choices of b (0) or b̃ (1) of every pair; the entry of k itself is not used."""
    if configurations == "paper":
        return [(0,) * num, (1,) * num]
    if configurations == "all":
        return list(itertools.product((0, 1), repeat=num))  # each twice
    windows = []
    for size in range(max(num - 1, 1)):
        window = {(k + 1 + i) % num for i in range(size)}
        windows.append(tuple(int(j in window) for j in range(num)))
        windows.append(tuple(int(j not in window) for j in range(num)))
    return windows


def configured_multisample_disarm(logits, b, b_tilde, log_w, log_w_tilde, configurations):
    total = 0.0
    for k in range(len(b)):
        signals = []
        for choice in companions(configurations, k, len(b)):
            weights = [(log_w, log_w_tilde)[choice[j]][j] for j in range(len(b)) if j != k]
            signals.append(0.5 * (bound(np.array([*weights, log_w[k]])) - bound(np.array([*weights, log_w_tilde[k]]))))
        sign = (b[k] != b_tilde[k]) * (-1) ** b_tilde[k]
        total = total + np.mean(signals, axis=0)[..., None] * sign * expit(np.abs(logits))
    return total


def multisample_disarm(logits, b, b_tilde, log_w, log_w_tilde):
    def swap(weights, k, weight):
        weights = weights.copy()
        weights[k] = weight
        return bound(weights)

    total = 0.0
    for k in range(len(b)):
        signal = 0.25 * (
            swap(log_w, k, log_w[k])
            - swap(log_w, k, log_w_tilde[k])
            + swap(log_w_tilde, k, log_w[k])
            - swap(log_w_tilde, k, log_w_tilde[k])
        )
        sign = (b[k] != b_tilde[k]) * (-1) ** b_tilde[k]
        total = total + signal[..., None] * sign * expit(np.abs(logits))
    return total


def naive_multisample_disarm(logits, b, b_tilde, log_w, log_w_tilde):
    signal = 0.5 * (bound(log_w) - bound(log_w_tilde))
    sign = np.sum((b != b_tilde) * (-1) ** b_tilde, axis=0)
    return signal[..., None] * sign * expit(np.abs(logits))


def arm_moments(logits: np.ndarray, f) -> tuple[np.ndarray, np.ndarray]:
    """Exact mean and variance of ARM: on each cell of u between p and 1 − p the pair is constant, 2u − 1 is linear."""
    dim = len(logits)
    cells = []  # per coordinate: (b, b̃, probability, E[2u − 1 | cell], E[(2u − 1)² | cell])
    for p in expit(logits):
        edges = sorted((0.0, p, 1 - p, 1.0))
        coordinate = []
        for low, high in itertools.pairwise(edges):
            if high > low:
                middle = 0.5 * (low + high)
                x, y = 2 * low - 1, 2 * high - 1
                coordinate.append(
                    (float(1 - middle < p), float(middle < p), high - low, (x + y) / 2, (x * x + x * y + y * y) / 3)
                )
        cells.append(coordinate)
    mean, second = np.zeros(dim), np.zeros(dim)
    for combination in itertools.product(*cells):
        b, b_tilde, probabilities, first_moment, second_moment = np.array(combination).T
        weight, half = np.prod(probabilities), 0.5 * (f(b) - f(b_tilde))
        mean += weight * half * first_moment
        second += weight * half**2 * second_moment
    return mean, second - mean**2


# Chains of layers.


def chain_law(layers, dims, beta: float, num_samples: int = 2):
    """All outcomes of Algorithm 1: columns `[M, R, D_t]` (trunk, then branches) and their probabilities `[M]`.

    Pairs have the coupling β and R = T + 1 rows; groups of n > 2 samples the Dirichlet copula and T (n − 1) + 1.
    """
    depth, branches = len(dims), num_samples - 1
    # trunk, a redraw for every earlier branch, partners
    total = [dim * (1 + (t + 1) * branches) for t, dim in enumerate(dims)]
    bits = outcomes(sum(total))
    probabilities = np.ones(len(bits))
    columns, offset, previous = [], 0, None
    for t, dim in enumerate(dims):
        rows = bits[:, offset : offset + total[t]].reshape(len(bits), -1, dim)  # trunk, earlier branches, partners
        offset += total[t]
        logits = np.broadcast_to(layers[t](previous), (len(bits), 1 + t * branches, dim))
        for i in range(dim):
            different, which = np.unique(logits[:, 0, i], return_inverse=True)
            tables = [
                pair_tables(a[None], beta)[0] if num_samples == 2 else copula_table(expit(a), num_samples)
                for a in different
            ]
            group = np.moveaxis(rows[:, [0, *range(1 + t * branches, rows.shape[1])], i], 1, 0).astype(int)
            probabilities *= np.array(tables)[which, *group]
        probabilities *= np.prod(probability(logits[:, 1:], rows[:, 1 : 1 + t * branches]), axis=1)
        previous = rows
        staying = np.repeat(rows[:, :1], (depth - t - 1) * branches, axis=1)
        columns.append(np.concatenate([rows, staying], axis=1))
    return columns, probabilities
