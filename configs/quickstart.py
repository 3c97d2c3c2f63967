"""DisARM on 5,000 digits that need no download: a first look, in about a minute on two cores.

    python -m main --config configs/quickstart.py
"""

from configs import base


def get_config():
    """A linear model, a larger learning rate than the paper's, and few steps."""
    config = base.get_config()
    config.dataset.name = "mnist5k"
    config.optimizer.encoder.learning_rate = config.optimizer.decoder.learning_rate = 1e-3
    config.steps = 15_000
    config.seeds = (0,)
    config.log_every = 250
    config.eval.train_every = config.eval.test_every = 5_000
    config.checkpoint.every = 2_500
    return config
