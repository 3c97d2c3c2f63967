"""The ELBO of linear models: Table 1 of the paper, its Table 2 with the test bounds, the curves of Figures 2 and 6.

    python -m main --config configs/elbo_linear.py
    python -m main --config configs/elbo_linear.py --config.dataset.name=fashion_mnist --config.estimator.name=arm

The data set is mnist, fashion_mnist or omniglot (the 28×28 version of Burda et al., their chardata.mat), the estimator
reinforce_loo, arm, disarm or relax. The paper has, with the standard error of the mean of 5 runs:

    train ELBO                reinforce_loo              arm           disarm            relax
    mnist                    -116.57 ± 0.15   -117.66 ± 0.04   -116.30 ± 0.08   -115.93 ± 0.15
    fashion_mnist            -256.33 ± 0.14   -256.80 ± 0.16   -255.97 ± 0.07   -255.83 ± 0.03
    omniglot                 -121.66 ± 0.10   -122.45 ± 0.10   -121.15 ± 0.12   -120.79 ± 0.09
    test 100-sample bound     reinforce_loo              arm           disarm            relax
    mnist                    -109.25 ± 0.09   -109.70 ± 0.05   -109.13 ± 0.04   -108.76 ± 0.06
    fashion_mnist            -252.55 ± 0.12   -252.66 ± 0.07   -252.30 ± 0.05   -252.13 ± 0.06
    omniglot                 -117.70 ± 0.10   -118.01 ± 0.06   -117.39 ± 0.09   -117.10 ± 0.08

Time: about 30 minutes per seed on one core, relax about 1.5 hours.
"""

from configs import base


def get_config():
    """The base config as it is."""
    return base.get_config()
