"""Exact answers for classes by enumerating all outcomes, in float64 numpy: nothing here uses the code under test.

Logits are `[D, C]`, samples one-hot `[..., D, C]`. Binary choices are written out as paths: the path of a class is what
it chose at each node that it has reached, `{(start, middle, stop): bit}`.
"""

import itertools

import numpy as np
from scipy.special import expit, logsumexp, softmax


def outcomes(dim: int, classes: int) -> np.ndarray:
    """All C^D one-hot samples, `[C^D, D, C]`."""
    return np.eye(classes)[np.array(list(itertools.product(range(classes), repeat=dim)))]


def table_function(dim: int, classes: int, seed: int = 0):
    """An f without any structure: a random number for each outcome. Takes `[..., D, C]`."""
    table = np.random.default_rng(seed).normal(size=(classes,) * dim) + 0.7

    def f(z):
        return table[tuple(np.moveaxis(np.argmax(z, axis=-1), -1, 0))]

    f.table = table
    return f


def probability(logits: np.ndarray, z: np.ndarray) -> np.ndarray:
    """q(z), for z `[..., D, C]`."""
    return np.prod(np.sum(softmax(logits, axis=-1) * z, axis=-1), axis=-1)


def gradient(logits: np.ndarray, f) -> np.ndarray:
    """∂ E f(z) / ∂ logits: each variable's p_c (E[f | z_d = c] − E f)."""
    z = outcomes(*logits.shape)
    q, p, result = probability(logits, z), softmax(logits, axis=-1), np.zeros(logits.shape)
    for d, c in np.ndindex(*logits.shape):
        fixed = z.copy()
        fixed[:, d] = np.eye(logits.shape[1])[c]
        result[d, c] = p[d, c] * (q @ (f(fixed) - f(z)))
    return result


# Binary build. A tree is a list of nodes (start, middle, stop): below the middle is a 0, from there on a 1.


def sticks(classes: int) -> list:
    return [(c, c + 1, classes) for c in range(classes - 1)]


def balanced_tree(classes: int) -> list:
    waiting, nodes = [(0, classes)], []
    while waiting:
        start, stop = waiting.pop()
        if stop - start > 1:
            nodes.append((start, (start + stop) // 2, stop))
            waiting += [(start, (start + stop) // 2), ((start + stop) // 2, stop)]
    return nodes


def node_logit(logits: np.ndarray, node) -> float:
    start, middle, stop = node
    if np.all(logits[start:stop] == -np.inf):  # never reached
        return 0.0
    return logsumexp(logits[middle:stop]) - logsumexp(logits[start:middle])


def antithetic_table(logit: float) -> np.ndarray:
    """P(b, b̃) of one choice; as `exact.antithetic_table`, with all its digits if the choice is nearly certain."""
    differ, same = expit(-np.abs(logit)), np.tanh(np.abs(logit) / 2)
    return np.array([[0.0, differ], [differ, same]]) if logit >= 0 else np.array([[same, differ], [differ, 0.0]])


def leaf(nodes, bits) -> int:
    """Where the choices lead."""
    chosen, start, stop = dict(zip(nodes, bits, strict=True)), 0, max(stop for *_, stop in nodes)
    while stop - start > 1:
        node = next(node for node in nodes if (node[0], node[2]) == (start, stop))
        start, stop = (node[1], stop) if chosen[node] else (start, node[1])
    return start


def all_choices(logits: np.ndarray, nodes):
    """All bits of a pair of one variable at all nodes: (b, b̃, class, class, probability)."""
    tables = [antithetic_table(node_logit(logits, node)) for node in nodes]
    for bits in itertools.product((0, 1), repeat=2 * len(nodes)):
        b, b_tilde = bits[: len(nodes)], bits[len(nodes) :]
        chance = np.prod([table[i, j] for table, i, j in zip(tables, b, b_tilde, strict=True)])
        if chance > 0:
            yield np.array(b), np.array(b_tilde), leaf(nodes, b), leaf(nodes, b_tilde), chance


def pair_table(logits: np.ndarray, nodes) -> np.ndarray:
    """P(z, z̃) of one variable, `[C, C]`."""
    table = np.zeros((len(logits),) * 2)
    for _, _, z, z_tilde, chance in all_choices(logits, nodes):
        table[z, z_tilde] += chance
    return table


def sorted_table(logits: np.ndarray) -> np.ndarray:
    """P(z, z̃) of one variable from sticks in ascending order."""
    order = np.argsort(logits, kind="stable")
    table = np.zeros((len(logits),) * 2)
    table[np.ix_(order, order)] = pair_table(logits[order], sticks(len(logits)))
    return table


def tables_of(name: str, logits: np.ndarray) -> list[np.ndarray]:
    """P(z_d, z̃_d) of each variable for the pairs of an estimator."""
    make = {
        "reinforce_loo": lambda row: np.outer(softmax(row), softmax(row)),
        "disarm_sb": lambda row: pair_table(row, sticks(len(row))),
        "disarm_tree": lambda row: pair_table(row, balanced_tree(len(row))),
        "disarm_iw": sorted_table,
    }
    return [make[name](row) for row in logits]


def pair_law(name: str, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All pairs of samples: z, z̃ `[M, D, C]`, and their probabilities `[M]` for an estimator."""
    z = outcomes(*logits.shape)
    first, second = np.divmod(np.arange(len(z) ** 2), len(z))
    index = np.argmax(z, axis=-1)
    each = [table[index[first, d], index[second, d]] for d, table in enumerate(tables_of(name, logits))]
    return z[first], z[second], np.prod(each, axis=0)


# The estimators as the paper defines them: of pairs [M, D, C] and values [M].


def chain_rule(logits: np.ndarray, nodes) -> np.ndarray:
    """∂ node logits / ∂ logits of one variable, `[M, C]`."""
    rule = np.zeros((len(nodes), len(logits)))
    for row, (start, middle, stop) in zip(rule, nodes, strict=True):
        for sign, branch in ((1, slice(middle, stop)), (-1, slice(start, middle))):
            if np.any(logits[branch] > -np.inf):
                row[branch] = sign * softmax(logits[branch])
    return rule


def disarm_of_choices(nodes_of, logits, z, z_tilde, f_z, f_z_tilde):
    """DisARM for all choices, its expectation given the classes taken by enumerating the bits that led there."""
    classes = logits.shape[1]
    nodes, result = nodes_of(classes), np.zeros(z.shape)
    for d, row in enumerate(logits):
        weight = expit(np.abs([node_logit(row, node) for node in nodes]))
        total, chances = np.zeros((classes, classes, len(nodes))), np.zeros((classes, classes, 1))
        for b, b_tilde, i, j, chance in all_choices(row, nodes):
            total[i, j] += chance * 0.5 * (b - b_tilde) * weight
            chances[i, j] += chance
        expected = total / np.where(chances > 0, chances, 1)
        i, j = np.argmax(z[:, d], axis=-1), np.argmax(z_tilde[:, d], axis=-1)
        result[:, d] = (f_z - f_z_tilde)[:, None] * expected[i, j] @ chain_rule(row, nodes)
    return result


def disarm_iw(logits, z, z_tilde, f_z, f_z_tilde):
    """REINFORCE-LOO of the pair, with the ratio of independent to coupled probability taken from the tables."""
    result = np.zeros(z.shape)
    for d, row in enumerate(logits):
        joint, p = sorted_table(row), softmax(row)
        ratio = np.outer(p, p) / np.where(joint > 0, joint, np.inf)
        i, j = np.argmax(z[:, d], axis=-1), np.argmax(z_tilde[:, d], axis=-1)
        result[:, d] = (0.5 * (f_z - f_z_tilde) * ratio[i, j])[:, None] * (z - z_tilde)[:, d]
    return result


def reinforce_loo(logits, z, z_tilde, f_z, f_z_tilde):
    return 0.5 * (f_z - f_z_tilde)[:, None, None] * (z - z_tilde)


PAIRS = {
    "reinforce_loo": reinforce_loo,
    "disarm_sb": lambda *args: disarm_of_choices(sticks, *args),
    "disarm_tree": lambda *args: disarm_of_choices(balanced_tree, *args),
    "disarm_iw": disarm_iw,
}
