"""The former name of `configs/layers.py:2`, for one release.

python -m main --config configs/layers.py:2
"""

import warnings

from configs import layers


def get_config():
    """What `layers.py` returns for 2."""
    warnings.warn("configs/layers_2.py is now configs/layers.py:2", FutureWarning, stacklevel=2)
    return layers.get_config("2")
