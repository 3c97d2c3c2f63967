"""The ELBO of linear models with four stochastic layers: Tables 1 and 3 of the paper, the curves of Figures 3 and 7.

    python -m main --config configs/layers_4.py
    python -m main --config configs/layers_4.py --config.dataset.name=omniglot --config.estimator.name=relax

The data set is mnist, fashion_mnist or omniglot (the 28×28 version of Burda et al., their chardata.mat), the estimator
reinforce_loo, arm, disarm or relax. The paper has, with the standard error of the mean of 5 runs:

    train ELBO                reinforce_loo              arm           disarm            relax
    mnist                    -101.22 ± 0.09   -102.82 ± 0.08   -100.96 ± 0.07    -99.86 ± 0.07
    fashion_mnist            -238.86 ± 0.09   -239.99 ± 0.04   -238.49 ± 0.08   -238.23 ± 0.08
    omniglot                 -114.83 ± 0.13   -116.01 ± 0.14   -114.09 ± 0.09   -113.64 ± 0.14
    test 100-sample bound     reinforce_loo              arm           disarm            relax
    mnist                     -94.72 ± 0.06    -95.84 ± 0.09    -94.60 ± 0.04    -93.34 ± 0.04
    fashion_mnist            -237.09 ± 0.07   -237.72 ± 0.05   -236.78 ± 0.09   -236.43 ± 0.10
    omniglot                 -111.16 ± 0.11   -111.87 ± 0.11   -110.58 ± 0.08   -109.95 ± 0.12

On RELAX see `layers_2.py`.

Time: about 2.5 hours per seed on one core, relax about 9 hours.
"""

from configs import base


def get_config():
    """Four layers of 200 bits."""
    config = base.get_config()
    config.model.latents = (200,) * 4
    return config
