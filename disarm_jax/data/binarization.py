"""From grey values to the bits the models are trained on: drawn anew at every step, drawn once, or by threshold."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from disarm_jax.data.types import SPLITS, Dataset, sha256_of_arrays

MODES = ("dynamic", "static", "threshold")

_CHUNK = 10_000  # images drawn at once by binarize_once: bounds its memory


def check_mode(mode: str) -> None:
    """Refuses a mode that is not one of `MODES`, naming it."""
    if mode not in MODES:
        raise ValueError(f"unknown binarization {mode!r}; known: {', '.join(MODES)}")


def binarize(key: jax.Array, images: jax.Array, mode: str = "dynamic", dtype: jnp.dtype = jnp.float32) -> jax.Array:
    """Images as bits; pure, so that a step folded into the key gives new bits at every step and the same on resume.

    Args:
      key: consumed by "dynamic"; the other modes do not look at it.
      images: `[*batch, D]` uint8.
      mode: "dynamic" draws each pixel from Bernoulli(pixel / 255), exactly 0 for pixel 0 and 1 for pixel 255;
        "threshold" is 1 from pixel 128 on; "static" is the same, for images that `binarize_once` has made 0 or 255.
      dtype: of the result.

    Returns:
      `[*batch, D]` in {0, 1}.

    >>> print(binarize(jax.random.key(0), jnp.array([[0, 127, 128, 255]], jnp.uint8), "threshold"))
    [[0. 0. 1. 1.]]
    """
    check_mode(mode)
    if images.dtype != jnp.uint8:
        raise TypeError(f"images must be uint8 with values from 0 to 255, got dtype {images.dtype}")
    bits = _bernoulli(key, images) if mode == "dynamic" else images >= 128
    return bits.astype(dtype)


def binarize_once(dataset: Dataset, seed: int = 0) -> Dataset:
    """The data set with every image drawn once from Bernoulli(pixel / 255), the same for the same seed.

    Pixels 0 and 255 stay what they are, so a data set that is binary already, such as `binarized_mnist`, is returned
    with the same arrays.

    Args:
      dataset: as loaded.
      seed: of the draw; its own, so that runs with different seeds train on the same bits.

    Returns:
      The same images with values 0 and 255 only, and their sha256 and the seed in the provenance.
    """
    splits = {}
    for number, name in enumerate(SPLITS):
        images = getattr(dataset, name)
        key = jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), number)  # whatever JAX's default is
        starts = range(0, len(images), _CHUNK)
        parts = [_draw(jax.random.fold_in(key, start), images[start : start + _CHUNK]) for start in starts]
        splits[name] = np.concatenate([np.asarray(part) for part in parts]) if parts else images
    provenance = dataset.provenance._replace(
        sha256=sha256_of_arrays(splits), binarization=f"static, drawn once with seed {seed}"
    )
    return dataset._replace(provenance=provenance, **splits)


@jax.jit
def _draw(key: jax.Array, images: jax.Array) -> jax.Array:
    return _bernoulli(key, images).astype(jnp.uint8) * 255


def threshold_of_pixel(pixels: jax.Array) -> jax.Array:
    """pixel / 255 in units of 2⁻¹⁶, rounded: 65536/255 = 257 + 1/255, so it is 257 pixel, and one more from 128 on.

    Args:
      pixels: uint8, any shape.

    Returns:
      uint32 of the same shape, from 0 (pixel 0) to 65536 (pixel 255); at most 2⁻¹⁷ = 7.6e-6 from the probability.
    """
    return pixels.astype(jnp.uint32) * 257 + (pixels >= 128).astype(jnp.uint32)


def _bernoulli(key: jax.Array, images: jax.Array) -> jax.Array:
    """One Bernoulli(pixel / 255) bit per pixel from 16 random bits: true if they are below the pixel's threshold.

    Random bits are what binarisation costs on a CPU. A threefry block makes 64 of them, of which `jax.random.uniform`
    and `jax.random.bits` return 32 at most; the words of split keys are all 64, so one block serves four pixels. Keys
    of the rbg kind have two words more, which repeat the first two.
    """
    words = jax.random.key_data(jax.random.split(key, max(1, -(-images.size // 4))))[:, :2]
    noise = lax.bitcast_convert_type(words, jnp.uint16).reshape(-1)[: images.size].reshape(images.shape)
    return noise.astype(jnp.uint32) < threshold_of_pixel(images)
