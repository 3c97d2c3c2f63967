"""A multi-sample bound with DisARM, 1 pair: Tables 1 and 4 of the paper, the curves of Figures 4 and 8.

    python -m main --config configs/multisample_disarm_1.py
    python -m main --config configs/multisample_disarm_1.py --config.model.hidden="(200, 200)"

K pairs optimise the K-sample bound; what is reported is the 2K-sample bound, to compare with `vimco_2.py`. The
data set is mnist, fashion_mnist or omniglot (the 28×28 version of Burda et al., their chardata.mat). The paper has,
with the standard error of the mean of 5 runs:

    2-sample bound            linear, train     linear, test   nonlin., train    nonlin., test
    mnist                    -114.06 ± 0.13   -113.63 ± 0.13   -100.80 ± 0.11   -102.03 ± 0.10
    fashion_mnist            -254.15 ± 0.09   -256.14 ± 0.10   -236.91 ± 0.10   -239.53 ± 0.10
    omniglot                 -119.89 ± 0.06   -120.23 ± 0.07   -114.45 ± 0.06   -118.96 ± 0.07

Time: about 30 minutes per seed on one core, nonlinear about 1 hour.
"""

from configs import base


def get_config():
    """The local form of DisARM for a multi-sample bound, 1 pair."""
    config = base.get_config()
    config.objective.name = "multisample"
    config.objective.num_samples = 1
    config.estimator.name = "multisample_disarm"
    return config
