"""The former name of `configs/multisample.py:vimco,20`, for one release.

python -m main --config configs/multisample.py:vimco,20
"""

import warnings

from configs import multisample


def get_config():
    """What `multisample.py` returns for vimco,20."""
    warnings.warn("configs/vimco_20.py is now configs/multisample.py:vimco,20", FutureWarning, stacklevel=2)
    return multisample.get_config("vimco,20")
