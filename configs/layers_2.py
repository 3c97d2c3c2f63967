"""The ELBO of linear models with two stochastic layers: Tables 1 and 3 of the paper, the curves of Figures 3 and 7.

    python -m main --config configs/layers_2.py
    python -m main --config configs/layers_2.py --config.dataset.name=omniglot --config.estimator.name=relax

The data set is mnist, fashion_mnist or omniglot (the 28×28 version of Burda et al., their chardata.mat), the estimator
reinforce_loo, arm, disarm or relax. The paper has, with the standard error of the mean of 5 runs:

    train ELBO                reinforce_loo              arm           disarm            relax
    mnist                    -106.34 ± 0.10   -107.90 ± 0.10   -105.88 ± 0.04   -105.48 ± 0.04
    fashion_mnist            -244.67 ± 0.16   -245.76 ± 0.11   -244.04 ± 0.06   -243.42 ± 0.11
    omniglot                 -116.81 ± 0.08   -117.74 ± 0.14   -116.38 ± 0.10   -115.45 ± 0.08
    test 100-sample bound     reinforce_loo              arm           disarm            relax
    mnist                     -99.45 ± 0.07   -100.31 ± 0.07    -99.12 ± 0.05    -98.65 ± 0.03
    fashion_mnist            -241.98 ± 0.14   -242.58 ± 0.11   -241.42 ± 0.05   -240.84 ± 0.08
    omniglot                 -112.92 ± 0.04   -113.39 ± 0.10   -112.64 ± 0.06   -111.87 ± 0.09

The paper's RELAX is probably that of the released code, whose gradient is biased for several layers:
`--config.estimator.options.later_layers=hard`. Ours is not.

Time: about 1 hour per seed on one core, relax about 3 hours.
"""

from configs import base


def get_config():
    """Two layers of 200 bits."""
    config = base.get_config()
    config.model.latents = (200,) * 2
    return config
