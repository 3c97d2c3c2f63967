"""The ELBO of linear models with three stochastic layers: Tables 1 and 3 of the paper, the curves of Figures 3 and 7.

    python -m main --config configs/layers_3.py
    python -m main --config configs/layers_3.py --config.dataset.name=omniglot --config.estimator.name=relax

The data set is mnist, fashion_mnist or omniglot (the 28×28 version of Burda et al., their chardata.mat), the estimator
reinforce_loo, arm, disarm or relax. The paper has, with the standard error of the mean of 5 runs:

    train ELBO                reinforce_loo              arm           disarm            relax
    mnist                    -102.13 ± 0.09   -103.76 ± 0.11   -101.63 ± 0.09   -101.22 ± 0.09
    fashion_mnist            -239.88 ± 0.03   -241.21 ± 0.12   -239.64 ± 0.06   -239.41 ± 0.07
    omniglot                 -115.20 ± 0.08   -116.18 ± 0.13   -114.81 ± 0.09   -113.83 ± 0.06
    test 100-sample bound     reinforce_loo              arm           disarm            relax
    mnist                     -95.40 ± 0.05    -96.47 ± 0.07    -95.08 ± 0.04    -94.53 ± 0.06
    fashion_mnist            -237.80 ± 0.06   -238.59 ± 0.13   -237.59 ± 0.09   -237.32 ± 0.08
    omniglot                 -111.52 ± 0.07   -112.01 ± 0.09   -111.25 ± 0.08   -110.22 ± 0.06

On RELAX see `layers_2.py`.

Time: about 2 hours per seed on one core, relax about 6 hours.
"""

from configs import base


def get_config():
    """Three layers of 200 bits."""
    config = base.get_config()
    config.model.latents = (200,) * 3
    return config
