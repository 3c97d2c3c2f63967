"""Trees of binary choices that lead to one of C classes: a bit at each node says which of two branches to take.

A `Tree` is either stick-breaking, which splits off one class at a time, or a balanced tree. Time and memory are linear
in C, except that `ascending_sticks` sorts the classes in time C log C.
"""

import abc

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from disarm_jax import bernoulli

FEW_CLASSES = 32  # up to this number, comparing all pairs of classes takes less time on a CPU than sorting them


class Tree(abc.ABC):
    """A tree of binary choices at M nodes that leads to one of C classes; both are on the last axis of arrays."""

    @abc.abstractmethod
    def branch_masses(self, mass: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Sums the classes' masses `[..., C]` in the 1-branch and in the 0-branch of each node, `[..., M]` each.

        Nothing is subtracted, so that small sums of positive masses are accurate.
        """

    @abc.abstractmethod
    def follow(self, b: jax.Array) -> jax.Array:
        """Returns the class that bits `[..., M]` lead to as a one-hot `[..., C]` of their dtype."""


class SharedTree(Tree):
    """A tree that is the same for all variables.

    The 0-branch of a node has the classes start ≤ c < middle, and its 1-branch the classes middle ≤ c < stop.

    Attributes:
      start, middle, stop: int `[M]`, with M = C − 1.
    """

    start: np.ndarray
    middle: np.ndarray
    stop: np.ndarray

    def choices(self, z: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns the choices of one-hot classes `[..., C]` and whether they reach each node, as bits `[..., M]`."""
        drawn = at_class(z, _iota(z))
        start, middle, stop = (
            bernoulli.lift(jnp.asarray(edge), z.ndim) for edge in (self.start, self.middle, self.stop)
        )
        one, zero = (middle <= drawn) & (drawn < stop), (start <= drawn) & (drawn < middle)
        return one.astype(z.dtype), (one | zero).astype(z.dtype)

    @abc.abstractmethod
    def sums_above(self, one: jax.Array, zero: jax.Array) -> jax.Array:
        """Sums `one` or `zero` `[..., M]` over the nodes above each class `[..., C]`, depending on its branch there.

        This is the transpose of `branch_masses`.
        """


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
    """A balanced tree with nodes in preorder: a node, then all nodes below its 0-branch, then those below its 1-branch.

    Computations go level by level through a complete tree, whose 2^depth leaves are the classes in their order, with
    empty leaves in between. A node above an empty leaf, on the last level, has no choice to make and no number.
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
        self.level_order = order[(start < middle)[order]]  # the positions by levels of the nodes in preorder
        self.start, self.middle, self.stop = (edge[self.level_order] for edge in (start, middle, stop))
        self.preorder = np.full_like(start, num_classes - 1)  # and the inverse
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
            # A single class that was reached above the last level stays.
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
    """Sticks with a node for each class; `rank`, int `[*batch, D, C]`, is its position in the order of its variable."""

    def __init__(self, logits: jax.Array):
        logits = jnp.where(jnp.isnan(logits), jnp.inf, logits)  # with NaN last, samples stay one-hot
        self.few = logits.shape[-1] <= FEW_CLASSES
        index = _iota(logits)
        if self.few:
            one, other = logits[..., None, :], logits[..., :, None]
            # A literal: what is computed the compiler may move out of a loop, and ranks made twice are not merged then.
            is_earlier = np.triu(np.ones((*(1,) * (one.ndim - 2), *logits.shape[-1:] * 2), bool), 1)
            before = (other < one) | ((other == one) & is_earlier)
            self.rank = jnp.sum(before, axis=-2, dtype=np.int32)
        else:
            self.order = jnp.argsort(logits, axis=-1).astype(np.int32)
            # This inverts the permutation; a second sort would take fifty times as long.
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
    """Returns the tree of stick-breaking.

    Its choice c, if it is reached, is between class c (0) and all later classes (1).

    Args:
      num_classes: C, the number of classes.

    >>> print(dj.categorical.sticks(3).follow(jnp.array([1.0, 0.0])))  # not class 0, and then class 1
    [0. 1. 0.]
    """
    return _Sticks(num_classes)


def balanced_tree(num_classes: int) -> SharedTree:
    """Returns the tree whose choices are between the first half (0) and the second half (1) of the remaining classes.

    If their number is odd, the first half is the smaller one.

    Args:
      num_classes: C, the number of classes.

    >>> print(dj.categorical.balanced_tree(4).follow(jnp.array([1.0, 0.0, 1.0])))  # twice the second half
    [0. 0. 0. 1.]
    """
    return _BalancedTree(num_classes)


def ascending_sticks(logits: jax.Array) -> _AscendingSticks:
    """Returns sticks in ascending order of the logits of each variable; equal logits keep the order of the classes.

    There are C nodes. The choice at node c is between class c (0) and all classes after it in that order (1). The last
    class has a node too, at which there is no other class to choose.

    Args:
      logits: `[*batch, D, C]`.
    """
    return _AscendingSticks(logits)


def node_logits(tree: Tree, logits: jax.Array) -> jax.Array:
    """Computes the logit of taking the 1-branch at each node, `[*batch, D, M]`, from logits `[*batch, D, C]`."""
    one, zero = tree.branch_masses(_masses(logits))
    # Both masses are 0 at a node that is never reached.
    return jnp.where(one == zero, jnp.zeros_like(one), jnp.log(one) - jnp.log(zero))


def to_logits(tree: SharedTree, logits: jax.Array, grad: jax.Array) -> jax.Array:
    """Converts a gradient with respect to the nodes' logits to one with respect to the classes' logits.

    By the chain rule, this multiplies by the derivative of `node_logits`. The derivative of a node's logit with respect
    to a class's logit is the share of the class in the mass of its branch, with a minus sign in the 0-branch.

    Args:
      tree: the tree of binary choices.
      logits: `[..., D, C]`, with the rank of the gradient.
      grad: `[..., D, M]`, zero at nodes that were not reached.

    Returns:
      `[..., D, C]`.
    """
    mass = _masses(logits)
    one, zero = (jnp.where(branch == 0, 0, grad / branch) for branch in tree.branch_masses(mass))
    return mass * tree.sums_above(one, -zero)


def at_class(z: jax.Array, x: jax.Array) -> jax.Array:
    """Returns the entries of x `[..., C]` at the classes of one-hot z `[..., C]`, as `[..., 1]`."""
    return jnp.sum(jnp.where(z == 1, x, 0), axis=-1, keepdims=True, dtype=x.dtype)


def _masses(logits: jax.Array) -> jax.Array:
    """Computes exp(logits), divided by the largest. A class whose mass underflows to zero is never drawn."""
    return jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True))


def _padded(x: jax.Array, before: int, after: int) -> jax.Array:
    """Adds zeros on either side of the last axis; unlike a new array of zeros, they have the sharding of x."""
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(before, after)])


def _gather(x: jax.Array, index: np.ndarray) -> jax.Array:
    """Returns entries of the last axis, and 0 for an index just past its end."""
    return jnp.take(x, index, axis=-1, mode="fill", fill_value=0)


def _iota(x: jax.Array) -> jax.Array:
    """Returns 0, 1, … along the last axis, with the rank of x."""
    return bernoulli.lift(jnp.arange(x.shape[-1], dtype=np.int32), x.ndim)
