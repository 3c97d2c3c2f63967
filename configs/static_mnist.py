"""Overfitting on statically binarised MNIST, as Larochelle has drawn it once: why the paper binarises dynamically.

    python -m main --config configs/static_mnist.py
    python -m main --config configs/static_mnist.py --config.model.hidden="(200, 200)" --config.estimator.name=arm

The paper has no numbers for it. It says (section 5.2) that this data set is well known for overfitting, as seen in the
results of Yin & Zhou for ARM, and that a method that is worse at optimisation may then generalise better. So look at
the difference between train and test bound, and at the validation bound in time.

Time: about 30 minutes per seed on one core, nonlinear about 1 hour.
"""

from configs import base


def get_config():
    """Images that are bits already; nothing is drawn."""
    config = base.get_config()
    config.dataset.name = "binarized_mnist"
    config.dataset.binarization = "threshold"
    return config
