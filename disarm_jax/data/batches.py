"""Which images are in the batch of a step: shuffled epochs without replacement, as a pure function of (key, step).

Nothing is kept between steps and nothing is sorted: a keyed bijection of 0, …, N − 1 says which image stands at a place
of an epoch, so a batch costs what its own images cost, and a resumed run continues with the batch it would have seen.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_ROUNDS = 32  # after r rounds an image is where it began with probability 2⁻ʳ more than a uniform shuffle has it


def batch_indices(key: jax.Array, step: jax.Array | int, batch_size: int, num_examples: int) -> jax.Array:
    """The images of the batch at `step`; batches follow each other through the epochs and may straddle two of them.

    Image i of the stream of step · batch_size + i is at place `stream mod N` of epoch `stream div N`, and every epoch
    has its own shuffle. No integer overflows for any int32 step as long as batch_size ≤ N (beyond, the epochs begin
    to repeat after 2³²).

    Args:
      key: of the run, the same at every step.
      step: integer scalar from 0 on, may be traced.
      batch_size: B.
      num_examples: N.

    Returns:
      `[B]` int32, in [0, N).

    >>> first_epoch = [batch_indices(jax.random.key(0), step, 2, 6) for step in range(3)]
    >>> print(jnp.sort(jnp.concatenate(first_epoch)))
    [0 1 2 3 4 5]
    """
    for name, value in (("batch_size", batch_size), ("num_examples", num_examples)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
    batch_size, num_examples, step = int(batch_size), int(num_examples), jnp.asarray(step)
    if step.ndim or not jnp.issubdtype(step.dtype, jnp.integer):
        raise TypeError(f"step must be one integer, got shape {step.shape} and dtype {step.dtype}")
    # step · B overflows int32 in long runs. Batches meet the boundaries of epochs again after lcm(B, N) images, so
    # whole cycles are counted apart and only the rest is multiplied by B.
    images_per_cycle = math.lcm(batch_size, num_examples)
    if images_per_cycle + batch_size >= 2**32:
        raise ValueError(
            f"batch_size {batch_size} and num_examples {num_examples} have the least common multiple "
            f"{images_per_cycle}, which must stay below 2^32; choose a smaller batch size, or one that shares a factor "
            "with it"
        )
    if num_examples == 1:  # nothing to shuffle, and jax 0.10.2 fails to compile a remainder by one on a CPU
        return jnp.zeros(batch_size, jnp.int32)
    step = step.astype(jnp.uint32)
    cycle, step_in_cycle = _divmod(step, images_per_cycle // batch_size)
    stream = step_in_cycle * batch_size + jnp.arange(batch_size, dtype=jnp.uint32)
    epoch, place = _divmod(stream, num_examples)
    return shuffled(key, cycle * (images_per_cycle // num_examples) + epoch, place, num_examples)


def shuffled(key: jax.Array, epoch: jax.Array, place: jax.Array, num_examples: int) -> jax.Array:
    """The image at a place of an epoch: a bijection of [0, N) for each (key, epoch), by the swap-or-not shuffle.

    A round pairs x with K − x mod N for a random K, and swaps the pair or not by one random bit, which a hash gives to
    both of its members alike (Hoang, Morris & Rogaway, An enciphering scheme based on a card shuffle, CRYPTO 2012).
    It works for every N, without padding to a power of two.

    Args:
      key: of the run.
      epoch: `[B]` uint32.
      place: `[B]` uint32, in [0, N).
      num_examples: N.

    Returns:
      `[B]` int32, in [0, N).
    """
    # Keys of other kinds may give different words for equal epochs under vmap, which would be no bijection.
    key = jax.random.wrap_key_data(jax.random.key_data(key)[:2], impl="threefry2x32")
    words = jax.vmap(lambda e: jax.random.key_data(jax.random.fold_in(key, e)))(epoch)
    pairing, choice = words[:, 0], words[:, 1]

    def swap_or_not(number: jax.Array, x: jax.Array) -> jax.Array:
        number = number.astype(jnp.uint32)
        _, offset = _divmod(_hash(pairing + number), num_examples)
        partner = jnp.where(x <= offset, offset - x, offset + (num_examples - x))
        swap = _hash(jnp.maximum(x, partner) * _ROUNDS + number + choice) >> 31
        return jnp.where(swap == 1, partner, x)

    # Unrolled, the rounds are one fused loop over the batch: a few microseconds on a CPU, one kernel on a GPU.
    return lax.fori_loop(0, _ROUNDS, swap_or_not, place, unroll=True).astype(jnp.int32)


def _divmod(x: jax.Array, divisor: int) -> tuple[jax.Array, jax.Array]:
    """Quotient and remainder of uint32, without the care for signs that `jnp.divmod` takes."""
    divisors = jnp.full_like(x, divisor)
    return lax.div(x, divisors), lax.rem(x, divisors)


def _hash(x: jax.Array) -> jax.Array:
    """A bijection of uint32 in which every input bit changes every output bit about half of the time (murmur3)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
