"""The former name of `configs/layers.py:3`, for one release.

python -m main --config configs/layers.py:3
"""

import warnings

from configs import layers


def get_config():
    """What `layers.py` returns for 3."""
    warnings.warn("configs/layers_3.py is now configs/layers.py:3", FutureWarning, stacklevel=2)
    return layers.get_config("3")
