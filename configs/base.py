"""All fields of a config, with the settings of the paper; the other files change a few of them.

    python -m main --config configs/base.py --help

lists every field with its default and what it means, from the one table in `disarm_jax/experiment/fields.py`.
"""

from ml_collections import ConfigDict

from disarm_jax.experiment.fields import defaults


def get_config() -> ConfigDict:
    """A linear model of dynamically binarised MNIST, trained with DisARM."""
    return defaults()
