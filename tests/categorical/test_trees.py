"""Trees of binary choices, against node by node computations in numpy, and with many classes."""

import exact
import exact_classes
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax

import disarm_jax as dj
from disarm_jax.categorical import trees

CLASSES = [1, 2, 3, 5, 7, 10, 17, 64, 100]
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
    b, reached = tree.choices(z)
    np.testing.assert_array_equal(b, one.T)
    np.testing.assert_array_equal(reached, (one | zero).T)
    for unreached in (0, 1):
        np.testing.assert_array_equal(tree.follow(jnp.where(reached == 1, b, unreached)), z)
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
    for found, expected in zip(tree.branch_masses(jnp.exp(jnp.asarray(logits))), (one, zero), strict=True):
        np.testing.assert_allclose(found, expected, rtol=3e-5)
    np.testing.assert_allclose(trees.node_logits(tree, jnp.asarray(logits)), np.log(one / zero), rtol=1e-5, atol=1e-5)
    grad = rng.normal(size=one.shape) * np.minimum(one, zero) / np.maximum(one, zero)
    expected = mass * ((grad / one) @ masks[0] - (grad / zero) @ masks[1])
    found = trees.to_logits(tree, jnp.asarray(logits), jnp.asarray(grad, jnp.float32))
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
    out, z = jax.jit(jax.vmap(one))(keys, logits)
    again, _ = jax.jit(lambda: jax.lax.scan(lambda carry, xs: (carry, one(*xs)), None, (keys, logits)))()[1]
    np.testing.assert_allclose(out.grad, again.grad, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(z.sum(axis=-1), 1)
    np.testing.assert_array_equal(np.isnan(out.grad).any(axis=(-2, -1)), np.arange(6) == 0)
    assert not np.any(np.asarray(z)[1, ..., 2:])
    assert not np.any(np.asarray(out.grad)[1, ..., 2:])
    assert np.all(np.asarray(z)[2, ..., :3].any(axis=-1))


@pytest.mark.parametrize("name", ["sample", "disarm_sb", "disarm_tree", "disarm_iw", "reinforce_loo"])
def test_memory_is_linear_in_the_classes(name):
    def temporaries(classes):
        logits = jnp.zeros((2, 3, classes), jnp.float32)
        if name == "sample":
            function = lambda key: dj.categorical.sample(key, logits, 2)
        else:
            est = dj.categorical.make_estimator(name)
            function = lambda key: est.apply((), key, logits, lambda z: z[..., 0].sum(-1))[:2]
        return jax.jit(function).lower(jax.random.key(0)).compile().memory_analysis().temp_size_in_bytes

    assert temporaries(4000) < 6 * temporaries(1000)


@pytest.mark.parametrize("name", ["sample", "sticks", "balanced_tree", "ascending_sticks"])
def test_frequencies_of_many_classes(name):
    """Both samples of a pair have the distribution; 200,000 draws of 1,000 classes."""
    logits = jax.random.normal(jax.random.key(2), (1, 1000), jnp.float32)
    if name == "sample":
        draw = lambda key: [dj.categorical.sample(key, logits, 100)]
    else:
        tree = getattr(dj.categorical, name)(logits if name == "ascending_sticks" else 1000)
        draw = lambda key: dj.categorical.antithetic_pairs(key, logits, tree, 100)
    classes = jax.jit(lambda keys: jax.lax.map(lambda key: [jnp.argmax(z, axis=-1) for z in draw(key)], keys))
    chances = softmax(np.asarray(logits[0], np.float64))
    for drawn in classes(jax.random.split(jax.random.key(3), 2000)):
        assert exact.chi_square_of_outcomes(np.asarray(drawn).ravel(), chances) > 1e-4
