"""A multi-sample bound with VIMCO, 20 samples: Tables 1 and 4 of the paper, the curves of Figures 4 and 8.

    python -m main --config configs/vimco_20.py
    python -m main --config configs/vimco_20.py --config.model.hidden="(200, 200)"
    python -m main --config configs/vimco_20.py --config.estimator.options.baseline=arithmetic

The baseline is the geometric mean of the released code; the paper's text has the arithmetic one. The data set is
mnist, fashion_mnist or omniglot (the 28×28 version of Burda et al., their chardata.mat). The paper has, with the
standard error of the mean of 5 runs:

    20-sample bound           linear, train     linear, test   nonlin., train    nonlin., test
    mnist                    -109.40 ± 0.07   -108.97 ± 0.08    -94.52 ± 0.05    -95.34 ± 0.06
    fashion_mnist            -249.60 ± 0.11   -251.52 ± 0.13   -232.01 ± 0.08   -234.47 ± 0.09
    omniglot                 -117.68 ± 0.07   -118.29 ± 0.07   -108.37 ± 0.05   -112.42 ± 0.07

Time: about 3.5 hours per seed on one core, nonlinear about 6 hours.
"""

from configs import base


def get_config():
    """VIMCO, 20 samples."""
    config = base.get_config()
    config.objective.name = "multisample"
    config.objective.num_samples = 20
    config.estimator.name = "vimco"
    config.estimator.options.baseline = "geometric"
    return config
