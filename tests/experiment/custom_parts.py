"""What a user would bring: an estimator, a data set and a model, named in configs by import path."""

import numpy as np

import disarm_jax as dj
from disarm_jax.models import BernoulliVAE


def straight_disarm(num_pairs=1):
    """An own estimator without `has_aux`, as the contract allows."""
    inner = dj.disarm(num_pairs=num_pairs)

    def apply(params, key, logits, f):
        return inner.apply(params, key, logits, f)

    return dj.Estimator(inner.init, apply)


def stripes():
    """An own data set."""
    rng = np.random.default_rng(1)
    return {
        split: rng.integers(0, 256, (n, 4, 4), np.uint8) for split, n in (("train", 30), ("validation", 7), ("test", 9))
    }


class QuietVAE(BernoulliVAE):
    """An own model with an option of its own."""

    loudness: float = 1.0

    def decode(self, b):
        return self.loudness * super().decode(b)


def wrong_shape():
    """An own estimator whose gradient would broadcast."""
    inner = dj.disarm()

    def apply(params, key, logits, f):
        out = inner.apply(params, key, logits, f)
        return dj.Estimate(out.value, out.grad[0])

    return dj.Estimator(inner.init, apply)


def not_an_estimator():
    return 3
