"""The Bernoulli VAE of the paper, with one or several stochastic layers, and a VAE with categorical latent variables.

The inference model is q(b_1 | x) q(b_2 | b_1) … q(b_T | b_{T−1}); the generative model is p(b_T) p(b_{T−1} | b_T) … p(x
| b_1). Every conditional is a factorial Bernoulli whose logits are a linear map or a small network of the layer before.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from disarm_jax import bernoulli
from disarm_jax.categorical import distribution
from disarm_jax.structure import MLP, leaky_relu_moments

KERNEL_INITS = ("glorot_normal", "glorot_uniform", "he_normal", "he_uniform", "lecun_normal", "lecun_uniform")


class Network(nn.Module):
    """Dense layers with LeakyReLU between them; a linear map if there are no hidden layers.

    Attributes:
      features: the width of the output.
      hidden: the widths of the hidden layers.
      negative_slope: the slope of the LeakyReLU for negative inputs.
      kernel_init: the initialisation of all weights, one of `KERNEL_INITS`.
      bias_init: the initialisation of the output's bias; all other biases start at zero.
    """

    features: int
    hidden: tuple[int, ...] = ()
    negative_slope: float = 0.3
    kernel_init: str = "glorot_uniform"
    bias_init: Callable = nn.initializers.zeros_init()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[..., D]` to `[..., features]`."""
        weights = getattr(nn.initializers, self.kernel_init)()
        leading = x.shape[:-1]
        x = x.reshape(-1, x.shape[-1])  # XLA copies less in the products of the backward pass than with more axes
        for width in self.hidden:
            x = nn.leaky_relu(nn.Dense(width, kernel_init=weights)(x), self.negative_slope)
        x = nn.Dense(self.features, kernel_init=weights, bias_init=self.bias_init)(x)
        return x.reshape(*leading, self.features)


def decoder_structure(model: "BernoulliVAE", params: Mapping[str, Any], t: int) -> MLP:
    """Returns decoder t of a model as a function of the bits or classes that knows its moments.

    Variances are averaged over the batch: they then cost a product with one row and serve as well (docs/midpoint.md).
    So the slopes that control variates use are not independent between images, though the gradient stays unbiased.

    Args:
      model: the VAE.
      params: its parameters.
      t: the number of the decoder, 0 for that of the image.
    """
    network = params["decoder"][f"networks_{t}"]
    dense = [network[f"Dense_{n}"] for n in range(len(network))]
    slope = model.negative_slope
    signs = {"scale": 2, "shift": -1} if t == 0 and model.signed_input else {}
    *_, num_classes = (None, *model.layer_shapes()[t][1:])  # C of a layer of shape (D, C)
    return MLP(
        [(layer["kernel"], layer["bias"]) for layer in dense],
        functools.partial(nn.leaky_relu, negative_slope=slope),
        activation_moments=functools.partial(leaky_relu_moments, negative_slope=slope),
        num_classes=num_classes,
        pool_variance=True,
        **signs,
    )


class BernoulliVAE(nn.Module):
    """A VAE of binary images with binary latent variables.

    Its parameters are `{"encoder": …, "decoder": …, "prior": …}`, three groups that are optimised separately.

    Attributes:
      latents: D_1, …, D_T, the numbers of bits, from the layer next to the image to the one with the learnt prior.
      pixels: the number of pixels of an image.
      hidden: the widths of the hidden layers of every conditional; empty for the linear models of the paper.
      negative_slope: the slope of their LeakyReLU for negative inputs.
      kernel_init: the initialisation of all weights, one of `KERNEL_INITS`.
      input_mean: `[pixels]`, subtracted from the image before the first encoder; None subtracts nothing.
      output_mean: `[pixels]`; the output bias of the decoder starts at its logit, clipped to [0.001, 0.999]. With None
        it starts at zero.
      signed_input: whether the last decoder sees 2 b_1 − 1 instead of b_1. Inner layers always see 0 and 1.
      law: the distribution of the latent variables, a module with `log_prob` and `sample` of their logits.

    Example:
      >>> from disarm_jax.models import BernoulliVAE
      >>> model, x = BernoulliVAE(latents=(4,), pixels=6), jnp.ones((5, 6))
      >>> variables = model.init(jax.random.key(0), x)
      >>> model.apply(variables, 0, x, method="encode").shape
      (5, 4)
    """

    latents: tuple[Any, ...]  # numbers of bits here, pairs in `CategoricalVAE`
    pixels: int
    hidden: tuple[int, ...] = ()
    negative_slope: float = 0.3
    kernel_init: str = "glorot_uniform"
    input_mean: np.ndarray | None = None
    output_mean: np.ndarray | None = None
    signed_input: bool = True

    law = bernoulli

    def __init_subclass__(cls, **options: Any) -> None:
        """Removes the structure of a subclass with another p(x, b), unless it defines `decoders`."""
        super().__init_subclass__(**options)
        if {"setup", "decode", "log_joint"} & vars(cls).keys() and "decoders" not in vars(cls):
            cls.decoders = lambda self, params: None

    def decoders(self, params: Mapping[str, Any]) -> list[MLP] | None:
        """Returns every decoder, from that of the image on, as a function of the samples above that knows its moments.

        The result is None if nothing is known of them, as in a subclass that defines `setup`, `decode` or `log_joint`
        but not this method. Estimators work all the same; those that expand f at the mean take longer.
        """
        return [decoder_structure(self, params, t) for t in range(len(self.latents))]

    def layer_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Returns the shape of a sample of each layer."""
        return tuple((width,) for width in self.latents)

    def setup(self) -> None:
        """Declares the three groups of parameters."""
        options = {"hidden": self.hidden, "negative_slope": self.negative_slope, "kernel_init": self.kernel_init}
        shapes = self.layer_shapes()
        widths = [math.prod(shape) for shape in shapes]
        self.encoder = Chain(tuple(Network(width, **options) for width in widths))
        below = tuple(Network(width, **options) for width in widths[:-1])
        image = Network(self.pixels, **options, bias_init=self._output_bias)
        self.decoder = Chain((image, *below))
        self.prior = self.param("prior", nn.initializers.zeros_init(), shapes[-1], jnp.float32)

    def _output_bias(self, key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype = jnp.float32) -> jax.Array:
        if self.output_mean is None:
            return jnp.zeros(shape, dtype)
        mean = np.clip(self.output_mean, 0.001, 0.999)
        return jnp.asarray(np.log(mean) - np.log1p(-mean), dtype)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Uses every parameter, for `init`: returns log p(x, b) at b = 0, `[*batch]` for x `[*batch, pixels]`."""
        b = tuple(jnp.zeros((*x.shape[:-1], *shape), x.dtype) for shape in self.layer_shapes())
        for t in range(len(self.latents)):
            self.encode(t, b[t - 1] if t else x)
        return self.log_joint(x, b)

    def encode(self, t: int, inputs: jax.Array) -> jax.Array:
        """Returns the logits of q(b_{t+1} | b_t), counting layers from 0; for t = 0 the inputs are the image."""
        if t == 0 and self.input_mean is not None:
            mean = jnp.asarray(self.input_mean, inputs.dtype)
            inputs = inputs - bernoulli.lift(mean, inputs.ndim)
        return self.encoder(t, inputs)

    def decode(self, b: jax.Array) -> jax.Array:
        """Returns the logits of the pixels, p(x | b_1)."""
        return self.decoder(0, 2 * b - 1 if self.signed_input else b)

    def log_joint(self, x: jax.Array, b: tuple[jax.Array, ...]) -> jax.Array:
        """Computes log p(x, b_1, …, b_T).

        Args:
          x: `[*batch, pixels]`, binary.
          b: one `[..., *batch, D_t]` per layer, bits or relaxed bits.

        Returns:
          `[..., *batch]`.
        """
        total = log_likelihood(x, self.decode(b[0]))
        for t in range(1, len(b)):
            total = total + bernoulli.log_prob(self.decoder(t, b[t]), b[t - 1])
        return total + self.law.log_prob(self.prior, b[-1])

    def sample(self, key: jax.Array, num_samples: int) -> jax.Array:
        """Draws latent variables from the prior; returns the probabilities of the pixels `[num_samples, pixels]`."""
        keys = jax.random.split(key, len(self.latents))
        b = self.law.sample(keys[-1], self.prior, num_samples)
        for t in range(len(self.latents) - 1, 0, -1):
            b = bernoulli.sample(keys[t - 1], self.decoder(t, b), 1)[0]
        return jax.nn.sigmoid(self.decode(b))


class CategoricalVAE(BernoulliVAE):
    """A VAE of binary images with one layer of categorical latent variables, which the decoder sees as one-hots.

    It has the attributes and methods of `BernoulliVAE`, with samples `[..., *batch, D, C]`, and softmax logits `[D, C]`
    as the prior.

    Attributes:
      latents: `((D, C),)`, for D variables of C classes each.

    Example:
      >>> from disarm_jax.models import CategoricalVAE
      >>> model, x = CategoricalVAE(latents=((4, 3),), pixels=6), jnp.ones((5, 6))
      >>> variables = model.init(jax.random.key(0), x)
      >>> model.apply(variables, 0, x, method="encode").shape
      (5, 4, 3)
    """

    law = distribution
    decoders = BernoulliVAE.decoders

    def layer_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Returns the shape of a sample, in a tuple."""
        return tuple(map(tuple, self.latents))

    def encode(self, t: int, inputs: jax.Array) -> jax.Array:
        """Returns the logits of q(z | x), `[*batch, D, C]`."""
        return super().encode(t, inputs).reshape(*inputs.shape[:-1], *self.layer_shapes()[t])

    def decode(self, b: jax.Array) -> jax.Array:
        """Returns the logits of the pixels, p(x | z)."""
        return super().decode(b.reshape(*b.shape[:-2], -1))


def log_likelihood(x: jax.Array, pixel_logits: jax.Array) -> jax.Array:
    """Computes log p(x | b_1) from the logits of the pixels.

    Args:
      x: `[*batch, pixels]`, binary.
      pixel_logits: `[..., *batch, pixels]`.

    Returns:
      `[..., *batch]`.

    >>> from disarm_jax.models import log_likelihood
    >>> print(log_likelihood(jnp.ones((2, 3)), jnp.zeros((5, 2, 3))).shape)
    (5, 2)
    """
    x = bernoulli.lift(x, pixel_logits.ndim)
    return jnp.sum(x * pixel_logits - bernoulli.softplus(pixel_logits), axis=-1)


class Chain(nn.Module):
    """Several networks selected by number, so that a group of them is one entry of the parameters."""

    networks: tuple[Network, ...]

    def __call__(self, t: int, inputs: jax.Array) -> jax.Array:
        """Returns the output of network t."""
        return self.networks[t](inputs)
