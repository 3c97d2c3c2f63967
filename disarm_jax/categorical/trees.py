"""Trees of binary choices that lead to one of C classes: at each node, a bit says into which of two branches to go.

A `Tree` is made of sticks, from which one class is broken off at a time, or a balanced tree.
Time and memory are linear in C, but for sorting the classes of `ascending_sticks`.
"""

import abc

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from disarm_jax import bernoulli

FEW_CLASSES = 32  # up to here it takes less time on a CPU to compare all pairs of classes than to sort them


class Tree(abc.ABC):
    """Binary choices that lead to one of C classes, on the last axis of all arrays, at M nodes."""

    @abc.abstractmethod
    def branch_masses(self, mass: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Sums of the classes' masses `[..., C]` in the branches of a 1 and of a 0 at each node, `[..., M]` each.

        They are sums of positive numbers, so that small ones keep their digits.
        """

    @abc.abstractmethod
    def follow(self, b: jax.Array) -> jax.Array:
        """The class that choices lead to, a one-hot `[..., C]` of their dtype, from bits `[..., M]`."""


class SharedTree(Tree):
    """The same tree for all variables, with nodes between the classes start ≤ c < middle and middle ≤ c < stop.

    Attributes:
      start, middle, stop: int `[M]`, with M = C − 1.
    """

    start: np.ndarray
    middle: np.ndarray
    stop: np.ndarray

    def choices(self, z: jax.Array) -> tuple[jax.Array, jax.Array]:
        """What one-hot classes `[..., C]` chose at each node, and whether they have reached it: bits `[..., M]`."""
        drawn = at_class(z, _iota(z))
        start, middle, stop = (
            bernoulli.lift(jnp.asarray(edge), z.ndim) for edge in (self.start, self.middle, self.stop)
        )
        one, zero = (middle <= drawn) & (drawn < stop), (start <= drawn) & (drawn < middle)
        return one.astype(z.dtype), (one | zero).astype(z.dtype)

    @abc.abstractmethod
    def sums_above(self, one: jax.Array, zero: jax.Array) -> jax.Array:
        """Sums `[..., C]` over the nodes above a class, of `one` or `zero`, `[..., M]`, whichever branch it is in."""


class _Sticks(SharedTree):
    def __init__(self, num_classes: int):
        self.start = np.arange(num_classes - 1, dtype=np.int32)
        self.middle, self.stop = self.start + 1, np.full_like(self.start, num_classes)

    def branch_masses(self, mass):
        return lax.cumsum(mass, axis=mass.ndim - 1, reverse=True)[..., 1:], mass[..., :-1]

    def follow(self, b):
        first_zero = jnp.min(jnp.where(b == 0, _iota(b), b.shape[-1]), axis=-1, initial=b.shape[-1])
        return jax.nn.one_hot(first_zero, b.shape[-1] + 1, dtype=b.dtype)

    def sums_above(self, one, zero):
        return _padded(lax.cumsum(one, axis=one.ndim - 1), 1, 0) + _padded(zero, 0, 1)


class _BalancedTree(SharedTree):
    """Nodes are numbered in preorder: first a node, then all below it in the branch of a 0, then those of a 1.

    Computations go by the levels of a full tree, whose 2^depth leaves are the classes in their order, with empty ones
    between. A node above an empty leaf, on the last level, leaves no choice and has no number.
    """

    def __init__(self, num_classes: int):
        edges, levels = np.array([0, num_classes], np.int32), [np.zeros((3, 0), np.int32)]
        while len(edges) <= num_classes:
            middle = (edges[:-1] + edges[1:]) // 2
            levels.append(np.stack([edges[:-1], middle, edges[1:]]))
            edges = np.insert(edges, np.arange(1, len(edges)), middle)
        self.depth = len(levels) - 1
        full = np.diff(edges) == 1
        self.class_at_leaf, self.leaf_of_class = np.where(full, edges[:-1], num_classes), np.flatnonzero(full)
        start, middle, stop = np.concatenate(levels, axis=1)
        order = np.lexsort((-stop, start))
        self.level_order = order[(start < middle)[order]]  # of the nodes in preorder
        self.start, self.middle, self.stop = (edge[self.level_order] for edge in (start, middle, stop))
        self.preorder = np.full_like(start, num_classes - 1)  # of the nodes by levels
        self.preorder[self.level_order] = np.arange(num_classes - 1)

    def branch_masses(self, mass):
        sums = _gather(mass, self.class_at_leaf)
        zeros, ones = [mass[..., :0]], [mass[..., :0]]
        for _ in range(self.depth):
            zeros, ones = [sums[..., ::2], *zeros], [sums[..., 1::2], *ones]
            sums = zeros[0] + ones[0]
        return tuple(_gather(jnp.concatenate(levels, axis=-1), self.level_order) for levels in (ones, zeros))

    def follow(self, b):
        num_classes = b.shape[-1] + 1
        start = node = _padded(b[..., :0], 0, 1).astype(np.int32)
        stop = start + num_classes
        for _ in range(self.depth):
            middle = (start + stop) // 2
            # A single class that was found above the last level stays.
            one = (jnp.take_along_axis(b, node, axis=-1, mode="clip") == 1) | (start == middle)
            node = jnp.where(one, node + middle - start, node + 1)
            start, stop = jnp.where(one, middle, start), jnp.where(one, stop, middle)
        return jax.nn.one_hot(start[..., 0], num_classes, dtype=b.dtype)

    def sums_above(self, one, zero):
        one, zero = _gather(one, self.preorder), _gather(zero, self.preorder)
        sums = _padded(one[..., :0], 0, 1)
        for depth in range(self.depth):
            level = slice(2**depth - 1, 2 ** (depth + 1) - 1)
            sums = jnp.stack([sums + zero[..., level], sums + one[..., level]], axis=-1)
            sums = sums.reshape(*one.shape[:-1], -1)
        return _gather(sums, self.leaf_of_class)


class _AscendingSticks(Tree):
    """Sticks with a node for each class, whose place in the order of its variable is `rank`, int `[*batch, D, C]`."""

    def __init__(self, logits: jax.Array):
        logits = jnp.where(jnp.isnan(logits), jnp.inf, logits)  # NaN comes last, so that samples stay one-hot
        self.few = logits.shape[-1] <= FEW_CLASSES
        index = _iota(logits)
        if self.few:
            one, other = logits[..., None, :], logits[..., :, None]
            before = (other < one) | ((other == one) & (index[..., :, None] < index[..., None, :]))
            self.rank = jnp.sum(before, axis=-2, dtype=np.int32)
        else:
            self.order = jnp.argsort(logits, axis=-1).astype(np.int32)
            # The inverse of the order; sorting once more would take fifty times as long.
            self.rank = jnp.put_along_axis(self.order, self.order, index, axis=-1, inplace=False)

    def branch_masses(self, mass):
        if self.few:
            later = self.rank[..., :, None] > self.rank[..., None, :]
            return jnp.sum(jnp.where(later, mass[..., :, None], 0), axis=-2), mass
        one, _ = sticks(mass.shape[-1]).branch_masses(jnp.take_along_axis(mass, self.order, axis=-1))
        one = jnp.concatenate([one, jnp.zeros_like(one[..., :1])], axis=-1)
        return jnp.take_along_axis(one, self.rank, axis=-1), mass

    def follow(self, b):
        rank = bernoulli.lift(self.rank, b.ndim)
        return (rank == jnp.min(jnp.where(b == 0, rank, b.shape[-1] - 1), axis=-1, keepdims=True)).astype(b.dtype)


def sticks(num_classes: int) -> SharedTree:
    """Choice c, if it is reached, is between class c and all later ones."""
    return _Sticks(num_classes)


def balanced_tree(num_classes: int) -> SharedTree:
    """Every choice is between two halves of the classes that are left, the first one the smaller if they differ."""
    return _BalancedTree(num_classes)


def ascending_sticks(logits: jax.Array) -> _AscendingSticks:
    """Sticks for each variable in the ascending order of its own logits; equal ones in the order of the classes.

    Node c, of all C, belongs to class c: a choice between it and all classes that come later in that order. The one of
    the last class is between it and nothing.
    """
    return _AscendingSticks(logits)


def node_logits(tree: Tree, logits: jax.Array) -> jax.Array:
    """The logit of going into the branch of a 1, at each node: `[*batch, D, M]` from `[*batch, D, C]`."""
    one, zero = tree.branch_masses(_masses(logits))
    # Both are 0 below a node that is never reached.
    return jnp.where(one == zero, jnp.zeros_like(one), jnp.log(one) - jnp.log(zero))


def to_logits(tree: SharedTree, logits: jax.Array, grad: jax.Array) -> jax.Array:
    """The chain rule: a gradient with respect to the nodes' logits as one with respect to the classes' logits.

    The derivative of a node's logit is a class's share of its branch, negative in the branch of a 0.

    Args:
      tree: of the choices.
      logits: `[..., D, C]`, of the rank of the gradient.
      grad: `[..., D, M]`, zero at nodes that were not reached.

    Returns:
      `[..., D, C]`.
    """
    mass = _masses(logits)
    one, zero = (jnp.where(branch == 0, 0, grad / branch) for branch in tree.branch_masses(mass))
    return mass * tree.sums_above(one, -zero)


def at_class(z: jax.Array, x: jax.Array) -> jax.Array:
    """The entries of x `[..., C]` at the classes of one-hot z `[..., C]`, as `[..., 1]`."""
    return jnp.sum(jnp.where(z == 1, x, 0), axis=-1, keepdims=True, dtype=x.dtype)


def _masses(logits: jax.Array) -> jax.Array:
    """Probabilities up to a factor: e^logits over the largest of them. What underflows is never reached."""
    return jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True))


def _padded(x: jax.Array, before: int, after: int) -> jax.Array:
    """Zeros on either side of the last axis; unlike new arrays of zeros they are sharded like x."""
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(before, after)])


def _gather(x: jax.Array, index: np.ndarray) -> jax.Array:
    """Entries of the last axis, 0 for an index just past its end."""
    return jnp.take(x, index, axis=-1, mode="fill", fill_value=0)


def _iota(x: jax.Array) -> jax.Array:
    """0, 1, … along the last axis, with the rank of x."""
    return bernoulli.lift(jnp.arange(x.shape[-1], dtype=np.int32), x.ndim)
