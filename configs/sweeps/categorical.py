"""A VAE with categorical latent variables, trained with each estimator for them; three of the seven are biased.

    python -m scripts.sweep --config configs/sweeps/categorical.py --out runs/categorical

Time: about 12 minutes of one core in all.
"""

from configs import categorical


def get_config():
    """20 variables of 10 classes."""
    return categorical.get_config()


def get_hyper(hyper):
    """All estimators."""
    names = ["disarm_iw", "disarm_sb", "disarm_tree", "reinforce_loo", "gumbel_softmax", "reinmax", "straight_through"]
    return hyper.sweep("estimator.name", names)
