"""The former name of `configs/multisample.py:disarm,1`, for one release.

python -m main --config configs/multisample.py:disarm,1
"""

import warnings

from configs import multisample


def get_config():
    """What `multisample.py` returns for disarm,1."""
    warnings.warn("configs/multisample_disarm_1.py is now configs/multisample.py:disarm,1", FutureWarning, stacklevel=2)
    return multisample.get_config("disarm,1")
