import jax
import jax.numpy as jnp
import numpy as np
import pytest

from disarm_jax.data import Dataset, Provenance, binarize, binarize_once
from disarm_jax.data.binarization import threshold_of_pixel
from disarm_jax.data.types import sha256_of_arrays


def test_probability_of_every_pixel_value_exactly():
    """All 2¹⁶ values of the noise against all 256 pixels: how many are below the threshold is the probability."""
    noise = np.arange(2**16, dtype=np.uint32)
    thresholds = np.asarray(threshold_of_pixel(jnp.arange(256, dtype=jnp.uint8)))
    probability = np.array([np.mean(noise < t) for t in thresholds])
    assert probability[0] == 0
    assert probability[255] == 1
    assert np.abs(probability - np.arange(256) / 255).max() <= 2**-17


def test_frequencies_of_every_pixel_value():
    """4,000 draws of each of the 256 values through `binarize` itself, within 4.5 standard errors."""
    draws = 4000
    images = jnp.tile(jnp.arange(256, dtype=jnp.uint8), (draws, 1))
    frequency = np.asarray(binarize(jax.random.key(0), images)).mean(0)
    p = np.arange(256) / 255
    assert frequency[0] == 0
    assert frequency[255] == 1
    z = (frequency - p)[1:-1] / np.sqrt(p * (1 - p) / draws)[1:-1]
    assert np.abs(z).max() < 4.5
    assert abs(np.sum(z**2) - 254) < 4 * np.sqrt(2 * 254)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_pixels_are_drawn_independently(impl):
    """The pixels that share a block of random bits are uncorrelated: 40,000 draws, five standard errors."""
    images = jnp.full((40_000, 8), 100, jnp.uint8)
    bits = np.asarray(binarize(jax.random.key(1, impl=impl), images))
    correlation = np.corrcoef(bits.T) - np.eye(8)
    assert np.abs(correlation).max() < 5 / np.sqrt(40_000)


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (50, 784), (2, 7, 9), (0, 784)])
def test_shapes_and_values(shape):
    images = jnp.full(shape, 128, jnp.uint8)
    bits = binarize(jax.random.key(0), images)
    assert bits.shape == shape
    assert bits.dtype == jnp.float32
    assert set(np.unique(bits)) <= {0.0, 1.0}
    assert binarize(jax.random.key(0), images, dtype=jnp.bfloat16).dtype == jnp.bfloat16


def test_a_draw_is_a_function_of_the_key():
    images = jnp.full((20, 784), 128, jnp.uint8)
    draw = lambda step: binarize(jax.random.fold_in(jax.random.key(0), step), images)
    scanned = jax.lax.scan(lambda carry, step: (carry, draw(step)), 0, jnp.arange(3))[1]
    np.testing.assert_array_equal(scanned[2], draw(2))
    assert abs(float(jnp.mean(scanned[1] == scanned[2])) - 0.5) < 5 * 0.5 / np.sqrt(20 * 784)
    keys = jax.random.split(jax.random.key(0), 3)
    rows = jax.vmap(lambda key: binarize(key, images))(keys)
    np.testing.assert_array_equal(rows[1], binarize(keys[1], images))


def test_threshold_and_static_do_not_look_at_the_key():
    images = jnp.arange(256, dtype=jnp.uint8).reshape(1, 256)
    for mode in ("threshold", "static"):
        np.testing.assert_array_equal(binarize(None, images, mode)[0], np.arange(256) >= 128)


def test_unknown_modes_and_other_dtypes_are_refused():
    with pytest.raises(ValueError, match="unknown binarization 'fixed'; known: dynamic, static, threshold"):
        binarize(jax.random.key(0), jnp.zeros((1, 4), jnp.uint8), "fixed")
    with pytest.raises(TypeError, match=r"must be uint8 .* got dtype float32"):
        binarize(jax.random.key(0), jnp.zeros((1, 4)))


def make_dataset(train):
    splits = {"train": train, "validation": train[:3], "test": train[:2]}
    provenance = Provenance("npz", "files", "made here", "order of the file", sha256_of_arrays(splits))
    return Dataset(**splits, image_shape=(28, 28), provenance=provenance)


def test_static_draws_once_and_says_so():
    grey = make_dataset(np.random.default_rng(0).integers(0, 256, (500, 784), np.uint8))
    once, again, other = binarize_once(grey), binarize_once(grey), binarize_once(grey, seed=1)
    assert set(np.unique(once.train)) == {0, 255}
    np.testing.assert_array_equal(once.train, again.train)
    assert np.any(once.train != other.train)
    assert once.provenance.sha256 == sha256_of_arrays(once._asdict())
    assert "seed 0" in once.provenance.binarization
    error = once.train.mean() / 255 - grey.train.mean() / 255
    assert abs(error) < 5 * 0.5 / np.sqrt(grey.train.size)
    assert np.any(once.validation != once.train[:3])  # its own draw


def test_binary_images_stay_what_they_are():
    binary = make_dataset(255 * np.random.default_rng(0).integers(0, 2, (50, 784)).astype(np.uint8))
    once = binarize_once(binary)
    np.testing.assert_array_equal(once.train, binary.train)
    for mode in ("dynamic", "static", "threshold"):
        np.testing.assert_array_equal(binarize(jax.random.key(0), jnp.asarray(binary.train), mode), binary.train / 255)
