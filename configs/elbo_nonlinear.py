"""The ELBO of nonlinear models: Table 1 of the paper, its Table 2 with the test bounds, the curves of Figures 2 and 6.

    python -m main --config configs/elbo_nonlinear.py
    python -m main --config configs/elbo_nonlinear.py --config.dataset.name=fashion_mnist --config.estimator.name=arm

The data set is mnist, fashion_mnist or omniglot (the 28×28 version of Burda et al., their chardata.mat), the estimator
reinforce_loo, arm, disarm or relax. The paper has, with the standard error of the mean of 5 runs:

    train ELBO                reinforce_loo              arm           disarm            relax
    mnist                    -102.45 ± 0.12   -107.32 ± 0.28   -102.56 ± 0.19   -102.53 ± 0.15
    fashion_mnist            -237.66 ± 0.11   -241.30 ± 0.10   -237.77 ± 0.08   -238.23 ± 0.17
    omniglot                 -115.26 ± 0.15   -118.76 ± 0.05   -115.08 ± 0.11   -116.56 ± 0.15
    test 100-sample bound     reinforce_loo              arm           disarm            relax
    mnist                     -97.41 ± 0.09   -101.15 ± 0.39    -97.52 ± 0.11    -97.76 ± 0.11
    fashion_mnist            -236.94 ± 0.09   -239.37 ± 0.15   -237.02 ± 0.07   -237.95 ± 0.16
    omniglot                 -114.39 ± 0.21   -116.56 ± 0.07   -114.26 ± 0.14   -116.28 ± 0.26

Time: about 1 hour per seed on one core, relax about 2 hours.
"""

from configs import base


def get_config():
    """Two hidden layers of 200 units in the encoder and in the decoder."""
    config = base.get_config()
    config.model.hidden = (200, 200)
    return config
