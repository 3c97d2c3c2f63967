import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from disarm_jax.data import batch_indices
from disarm_jax.data.batches import shuffled

pytestmark = pytest.mark.usefixtures("quick_compile")


def stream(key, batch_size, num_examples, steps, start=0):
    """The images of consecutive batches in one row."""
    one = lambda step: batch_indices(key, step, batch_size, num_examples)
    return np.asarray(jax.jit(jax.vmap(one))(start + jnp.arange(steps))).reshape(-1)


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_keys_of_other_kinds(impl):
    images = stream(jax.random.key(3, impl=impl), 3, 7, 7)
    for epoch in np.split(images, 3):
        np.testing.assert_array_equal(np.sort(epoch), np.arange(7))


@pytest.mark.parametrize("step", [1.5, np.arange(3)])
def test_a_step_is_one_integer(step):
    with pytest.raises(TypeError, match="step must be one integer"):
        batch_indices(jax.random.key(0), step, 3, 7)


@pytest.mark.parametrize(
    ("num_examples", "batch_size"),
    [(1, 4), (2, 1), (3, 2), (3, 7), (50, 7), (4000, 50), (4000, 64), (50000, 50)],
)
def test_every_epoch_visits_every_image_exactly_once(num_examples, batch_size):
    epochs = 3 if num_examples < 50000 else 2
    steps = math.ceil(epochs * num_examples / batch_size)
    images = stream(jax.random.key(0), batch_size, num_examples, steps)
    assert images.dtype == np.int32
    for epoch in np.split(images[: epochs * num_examples], epochs):
        np.testing.assert_array_equal(np.sort(epoch), np.arange(num_examples))


def test_shuffles_differ_between_epochs_and_between_keys():
    first, second = np.split(stream(jax.random.key(0), 50, 1000, 40), 2)
    other = stream(jax.random.key(1), 50, 1000, 20)
    # A shuffle agrees with an unrelated one at one place on average, with standard deviation 1.
    for a, b in ((first, second), (first, other), (first, np.arange(1000))):
        assert np.sum(a == b) <= 6


def test_a_batch_depends_on_key_and_step_alone():
    key = jax.random.key(3)
    one = jax.jit(lambda step: batch_indices(key, step, 7, 100))
    run = lambda start: lax.scan(lambda step, _: (step + 1, batch_indices(key, step, 7, 100)), start, length=13)[1]
    resumed = run(jnp.int32(17))
    for step, batch in enumerate(resumed, start=17):
        np.testing.assert_array_equal(batch, one(step))
    np.testing.assert_array_equal(one(21), one(np.uint32(21)))


def test_seeds_are_an_axis():
    keys = jax.random.split(jax.random.key(0), 3)
    one = jax.jit(lambda key: batch_indices(key, 5, 8, 40))
    for key, row in zip(keys, jax.vmap(one)(keys), strict=True):
        np.testing.assert_array_equal(row, one(key))


@pytest.mark.parametrize("num_examples", [2, 3, 4])
def test_all_orders_of_few_images_are_equally_likely(num_examples):
    """χ² over the N! orders of 20,000 epochs; its mean is N! − 1 and its standard deviation √(2 (N! − 1))."""
    epochs = 20_000
    orders = stream(jax.random.key(0), num_examples, num_examples, epochs).reshape(epochs, num_examples)
    codes = np.unique(orders @ num_examples ** np.arange(num_examples), return_counts=True)[1]
    free = math.factorial(num_examples) - 1
    assert len(codes) == free + 1
    expected = epochs / len(codes)
    assert np.sum((codes - expected) ** 2) / expected < free + 4 * math.sqrt(2 * free)


def test_places_and_neighbours_are_uniform():
    """χ² of (place → image) and of the difference of neighbouring images, over 4,000 epochs of 60 images."""
    epochs, num_examples = 4000, 60
    orders = stream(jax.random.key(1), num_examples, num_examples, epochs).reshape(epochs, num_examples)
    places = np.zeros((num_examples, num_examples))
    np.add.at(places, (np.arange(num_examples)[None], orders), 1)
    steps = np.bincount(((orders[:, 1:] - orders[:, :-1]) % num_examples).reshape(-1), minlength=num_examples)[1:]
    for counts, free in ((places, (num_examples - 1) ** 2), (steps, num_examples - 2)):
        chi2 = np.sum((counts - counts.mean()) ** 2) / counts.mean()
        assert abs(chi2 - free) < 4 * math.sqrt(2 * free)


def test_pairs_of_places_are_uniform_in_a_large_set():
    """Where images 0 and 1 stand, in halves of 50,000 places: four cells of probability 1/4 over 4,000 epochs."""
    epochs = jnp.arange(4000, dtype=jnp.uint32)
    find = jax.jit(lambda place: shuffled(jax.random.key(2), epochs, jnp.full(4000, place, jnp.uint32), 50_000))
    cells = 2 * (np.asarray(find(0)) < 25_000) + (np.asarray(find(1)) < 25_000)
    counts = np.bincount(cells, minlength=4)
    assert np.abs(counts - 1000).max() < 4 * math.sqrt(4000 * 1 / 4 * 3 / 4)  # four standard errors


@pytest.mark.parametrize(("batch_size", "num_examples"), [(50, 50_000), (4096, 50_000), (77, 1000)])
def test_long_runs_do_not_overflow(batch_size, num_examples):
    """Epoch and place agree with Python's integers of any size, up to the largest step there is."""
    expected = jax.jit(lambda epoch, place: shuffled(jax.random.key(0), epoch, place, num_examples))
    found = jax.jit(lambda step: batch_indices(jax.random.key(0), step, batch_size, num_examples))
    for step in (0, 999, 10**7, 2**31 - 1):
        stream = [step * batch_size + i for i in range(batch_size)]
        epoch = jnp.asarray([s // num_examples for s in stream], jnp.uint32)
        place = jnp.asarray([s % num_examples for s in stream], jnp.uint32)
        np.testing.assert_array_equal(found(jnp.int32(step)), expected(epoch, place))


def test_bad_sizes_are_refused_by_name():
    key = jax.random.key(0)
    with pytest.raises(ValueError, match="batch_size must be an integer of at least 1, got 0"):
        batch_indices(key, 0, 0, 10)
    with pytest.raises(ValueError, match="num_examples must be an integer of at least 1, got -1"):
        batch_indices(key, 0, 5, -1)
    with pytest.raises(ValueError, match="below 2\\^32"):
        batch_indices(key, 0, 99_991, 60_000)
