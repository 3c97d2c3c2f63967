"""The former name of `configs/multisample.py:disarm,10`, for one release.

python -m main --config configs/multisample.py:disarm,10
"""

import warnings

from configs import multisample


def get_config():
    """What `multisample.py` returns for disarm,10."""
    warnings.warn(
        "configs/multisample_disarm_10.py is now configs/multisample.py:disarm,10", FutureWarning, stacklevel=2
    )
    return multisample.get_config("disarm,10")
