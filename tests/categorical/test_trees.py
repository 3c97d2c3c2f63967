"""Trees of binary choices, against node by node computations in numpy, and with many classes."""

import exact_classes
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import disarm_jax as dj
from disarm_jax.categorical import trees

pytestmark = pytest.mark.usefixtures("quick_compile")

CLASSES = [1, 2, 3, 7, 17, 64, 100]
every_tree = pytest.mark.parametrize("name", ["sticks", "balanced_tree"])
every_size = pytest.mark.parametrize("classes", CLASSES)


def make(name, classes):
    """A tree, and the edges (start, middle, stop) of the tests' own one, `[M, 3]`, with its nodes in preorder."""
    nodes = sorted(getattr(exact_classes, name)(classes), key=lambda node: (node[0], -node[2]))
    return getattr(dj.categorical, name)(classes), np.array(nodes, int).reshape(-1, 3)


def branches(nodes, classes):
    """Which classes lie in the branches of a 1 and of a 0 at each node, `[M, C]`."""
    start, middle, stop = nodes.T[..., None]
    c = np.arange(classes)[None]
    return (middle <= c) & (c < stop), (start <= c) & (c < middle)


def leaf(nodes, bits):
    """The class that bits lead to, from the top."""
    start, stop = 0, len(nodes) + 1
    chosen = {(first, last): (middle, bit) for (first, middle, last), bit in zip(nodes, bits, strict=True)}
    while stop - start > 1:
        middle, bit = chosen[start, stop]
        start, stop = (middle, stop) if bit else (start, middle)
    return start


@every_size
@every_tree
def test_every_class_is_reached_by_its_own_choices(name, classes):
    """The nodes are in preorder, which is the order of their noise; the balanced tree has no long path."""
    tree, nodes = make(name, classes)
    np.testing.assert_array_equal(np.stack([tree.start, tree.middle, tree.stop], axis=-1), nodes)
    one, zero = branches(nodes, classes)
    z = jnp.eye(classes)
    b, reached = jax.jit(tree.choices)(z)
    np.testing.assert_array_equal(b, one.T)
    np.testing.assert_array_equal(reached, (one | zero).T)
    follow = jax.jit(tree.follow)
    for unreached in (0, 1):
        np.testing.assert_array_equal(follow(jnp.asarray(np.where(reached == 1, b, np.float32(unreached)))), z)
    if name == "balanced_tree":
        assert reached.sum(axis=-1).max() == np.ceil(np.log2(classes))


@every_size
@every_tree
def test_random_choices_are_followed(name, classes):
    tree, nodes = make(name, classes)
    rng = np.random.default_rng(classes)
    chance = (1 - 1 / classes) if name == "sticks" else 0.5
    bits = (rng.random((50, 2, classes - 1)) < chance).astype(np.float32)
    expected = [leaf(nodes, row) for row in bits.reshape(100, -1)]
    np.testing.assert_array_equal(tree.follow(jnp.asarray(bits)), np.eye(classes)[expected].reshape(50, 2, -1))


@every_size
@every_tree
def test_masses_and_chain_rule(name, classes):
    """In float32, with masses down to 1e-30: each sum of positive numbers keeps all its digits."""
    tree, nodes = make(name, classes)
    rng = np.random.default_rng(classes)
    logits = rng.uniform(-68, 0, size=(2, 3, classes)).astype(np.float32)
    logits -= logits.max(axis=-1, keepdims=True)
    mass = np.exp(logits.astype(np.float64))
    masks = branches(nodes, classes)
    one, zero = (mass @ mask.T for mask in masks)
    grad = rng.normal(size=one.shape) * np.minimum(one, zero) / np.maximum(one, zero)
    expected = mass * ((grad / one) @ masks[0] - (grad / zero) @ masks[1])

    @jax.jit
    def all_three(logits, grad):
        return tree.branch_masses(jnp.exp(logits)), trees.node_logits(tree, logits), trees.to_logits(tree, logits, grad)

    masses, node_logits, found = all_three(logits, grad.astype(np.float32))
    for mass, expected_mass in zip(masses, (one, zero), strict=True):
        np.testing.assert_allclose(mass, expected_mass, rtol=3e-5)
    np.testing.assert_allclose(node_logits, np.log(one / zero), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)


@every_size
def test_ascending_sticks(classes):
    """Equal logits in the order of the classes, masked ones first, and each variable has its own order."""
    rng = np.random.default_rng(classes)
    logits = rng.normal(size=(2, 3, classes)).round(1).astype(np.float32)  # many are equal
    logits[0, :, : classes // 3] = -np.inf
    tree = dj.categorical.ascending_sticks(jnp.asarray(logits))
    order = np.argsort(logits, axis=-1, kind="stable")
    rank = np.argsort(order, axis=-1)
    np.testing.assert_array_equal(tree.rank, rank)
    mass = np.exp(logits.astype(np.float64))
    later = np.where(rank[..., None, :] > rank[..., :, None], mass[..., None, :], 0).sum(axis=-1)
    one, zero = tree.branch_masses(jnp.asarray(mass, jnp.float32))
    np.testing.assert_allclose(one, later, rtol=1e-5)
    np.testing.assert_allclose(zero, mass, rtol=1e-6)
    bits = (rng.random((20, 2, 3, classes)) < 1 - 1 / classes).astype(np.float32)
    stop = np.where(bits == 0, rank, classes - 1).min(axis=-1)
    np.testing.assert_array_equal(tree.follow(jnp.asarray(bits)), rank == stop[..., None])


@pytest.mark.parametrize("classes", [7, 100])
@pytest.mark.parametrize("name", ["disarm_sb", "disarm_tree", "disarm_iw"])
def test_one_variable_at_a_time(name, classes):
    """Under jit, vmap and scan, with NaN, masked and huge logits; variables do not touch each other."""
    logits = 3 * jax.random.normal(jax.random.key(0), (6, 1, classes), jnp.float32)
    logits = logits.at[0, 0, 1].set(jnp.nan).at[1, 0, 2:].set(-jnp.inf).at[2, 0, :3].set(1e4).at[3, 0, 3:].set(-1e4)
    est = dj.categorical.make_estimator(name)
    f = lambda z: (z[..., 0, :] @ jnp.arange(classes, dtype=jnp.float32), z)
    one = lambda key, x: est.apply((), key, x, f, has_aux=True)
    keys = jax.random.split(jax.random.key(1), 6)
    scan = lambda *xs: jax.lax.scan(lambda carry, xs: (carry, one(*xs)), None, xs)[1]
    (out, z), (again, _) = jax.jit(lambda *xs: (jax.vmap(one)(*xs), scan(*xs)))(keys, logits)
    np.testing.assert_allclose(out.grad, again.grad, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(z.sum(axis=-1), 1)
    np.testing.assert_array_equal(np.isnan(out.grad).any(axis=(-2, -1)), np.arange(6) == 0)
    assert not np.any(np.asarray(z)[1, ..., 2:])
    assert not np.any(np.asarray(out.grad)[1, ..., 2:])
    assert np.all(np.asarray(z)[2, ..., :3].any(axis=-1))
