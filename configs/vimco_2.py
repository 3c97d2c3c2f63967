"""The former name of `configs/multisample.py:vimco,2`, for one release.

python -m main --config configs/multisample.py:vimco,2
"""

import warnings

from configs import multisample


def get_config():
    """What `multisample.py` returns for vimco,2."""
    warnings.warn("configs/vimco_2.py is now configs/multisample.py:vimco,2", FutureWarning, stacklevel=2)
    return multisample.get_config("vimco,2")
