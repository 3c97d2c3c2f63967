"""The former name of `configs/layers.py:4`, for one release.

python -m main --config configs/layers.py:4
"""

import warnings

from configs import layers


def get_config():
    """What `layers.py` returns for 4."""
    warnings.warn("configs/layers_4.py is now configs/layers.py:4", FutureWarning, stacklevel=2)
    return layers.get_config("4")
