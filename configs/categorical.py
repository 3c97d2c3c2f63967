"""A VAE with categorical latent variables: 20 of 10 classes each, nonlinear, on dynamically binarised MNIST.

    python -m main --config configs/categorical.py
    python -m main --config configs/categorical.py --config.estimator.name=disarm_iw --config.model.latents="((9, 64),)"

The estimator is one of `disarm_jax.categorical.estimator_names()`; `configs/sweeps/categorical.py` trains with all of
them. The paper has no number for it; our train ELBO ends near -130, the test 100-sample bound near -120.

Time: about 1.5 minutes on one core.
"""

from configs import base


def get_config():
    """A short run of one seed."""
    config = base.get_config()
    config.model.latents = ((20, 10),)
    config.model.hidden = (200, 200)
    config.estimator.name = "disarm_tree"
    config.steps = 20_000
    config.seeds = (0,)
    config.eval.train_every = 5_000
    config.eval.test_every = 20_000
    return config
