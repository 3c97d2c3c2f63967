"""The ELBO of linear models with several stochastic layers: Tables 1 and 3 of the paper, curves of Figures 3 and 7.

    python -m main --config configs/layers.py:2
    python -m main --config configs/layers.py:3 --config.dataset.name=omniglot --config.estimator.name=relax
    python -m main --config configs/layers.py:4

The number of layers is behind the colon. The data set is mnist, fashion_mnist or omniglot (the 28×28 version of Burda
et al., their chardata.mat), the estimator reinforce_loo, arm, disarm or relax. The paper has, with the standard error
of the mean of 5 runs:

    2 layers, train ELBO      reinforce_loo              arm           disarm            relax
    mnist                    -106.34 ± 0.10   -107.90 ± 0.10   -105.88 ± 0.04   -105.48 ± 0.04
    fashion_mnist            -244.67 ± 0.16   -245.76 ± 0.11   -244.04 ± 0.06   -243.42 ± 0.11
    omniglot                 -116.81 ± 0.08   -117.74 ± 0.14   -116.38 ± 0.10   -115.45 ± 0.08
    test 100-sample bound     reinforce_loo              arm           disarm            relax
    mnist                     -99.45 ± 0.07   -100.31 ± 0.07    -99.12 ± 0.05    -98.65 ± 0.03
    fashion_mnist            -241.98 ± 0.14   -242.58 ± 0.11   -241.42 ± 0.05   -240.84 ± 0.08
    omniglot                 -112.92 ± 0.04   -113.39 ± 0.10   -112.64 ± 0.06   -111.87 ± 0.09

    3 layers, train ELBO      reinforce_loo              arm           disarm            relax
    mnist                    -102.13 ± 0.09   -103.76 ± 0.11   -101.63 ± 0.09   -101.22 ± 0.09
    fashion_mnist            -239.88 ± 0.03   -241.21 ± 0.12   -239.64 ± 0.06   -239.41 ± 0.07
    omniglot                 -115.20 ± 0.08   -116.18 ± 0.13   -114.81 ± 0.09   -113.83 ± 0.06
    test 100-sample bound     reinforce_loo              arm           disarm            relax
    mnist                     -95.40 ± 0.05    -96.47 ± 0.07    -95.08 ± 0.04    -94.53 ± 0.06
    fashion_mnist            -237.80 ± 0.06   -238.59 ± 0.13   -237.59 ± 0.09   -237.32 ± 0.08
    omniglot                 -111.52 ± 0.07   -112.01 ± 0.09   -111.25 ± 0.08   -110.22 ± 0.06

    4 layers, train ELBO      reinforce_loo              arm           disarm            relax
    mnist                    -101.22 ± 0.09   -102.82 ± 0.08   -100.96 ± 0.07    -99.86 ± 0.07
    fashion_mnist            -238.86 ± 0.09   -239.99 ± 0.04   -238.49 ± 0.08   -238.23 ± 0.08
    omniglot                 -114.83 ± 0.13   -116.01 ± 0.14   -114.09 ± 0.09   -113.64 ± 0.14
    test 100-sample bound     reinforce_loo              arm           disarm            relax
    mnist                     -94.72 ± 0.06    -95.84 ± 0.09    -94.60 ± 0.04    -93.34 ± 0.04
    fashion_mnist            -237.09 ± 0.07   -237.72 ± 0.05   -236.78 ± 0.09   -236.43 ± 0.10
    omniglot                 -111.16 ± 0.11   -111.87 ± 0.11   -110.58 ± 0.08   -109.95 ± 0.12

The paper's RELAX is probably that of the released code, whose gradient is biased for several layers:
`--config.estimator.options.later_layers=hard`. Ours is not.

Time: about 1 hour per seed on one core with two layers, 2 with three, 2.5 with four; relax about 3, 6 and 9 hours.
"""

from configs import base


def get_config(depth="2"):
    """Layers of 200 bits, as many as the argument says."""
    if depth not in ("2", "3", "4"):
        raise ValueError(f"configs/layers.py:{depth}: accepted: layers.py:2, layers.py:3, layers.py:4")
    config = base.get_config()
    config.model.latents = (200,) * int(depth)
    return config
