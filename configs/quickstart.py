"""DisARM on 5,000 digits that need no download: a first look.

The model has fewer bits and a higher learning rate than the paper's, so that a minute is enough for samples that look
like digits. The paper has no number for it; the train ELBO ends near -110, the test 100-sample bound near -114.

    python -m main --config configs/quickstart.py

Time: about a minute on one core.
"""

from configs import base


def get_config():
    """A nonlinear model of `mnist5k`, one seed, few steps."""
    config = base.get_config()
    config.dataset.name = "mnist5k"
    config.model.latents = (50,)
    config.model.hidden = (200, 200)
    config.objective.generative_samples = "shared"  # cheaper than the paper's fresh sample
    config.optimizer.encoder.learning_rate = config.optimizer.decoder.learning_rate = 1e-3
    config.steps = 12_000
    config.seeds = (0,)
    config.log_every = 250
    config.eval.train_every = 1_500
    config.eval.test_every = 6_000
    config.checkpoint.every = 1_500
    return config
