"""Multi-sample bounds with DisARM and with VIMCO: Tables 1 and 4 of the paper, the curves of Figures 4 and 8.

    python -m main --config configs/multisample.py:disarm,1
    python -m main --config configs/multisample.py:disarm,10 --config.model.hidden="(200, 200)"
    python -m main --config configs/multisample.py:vimco,2
    python -m main --config configs/multisample.py:vimco,20 --config.estimator.options.baseline=arithmetic

Behind the colon are the estimator and its number of pairs or samples. K pairs of DisARM optimise the K-sample bound;
what is reported is the 2K-sample bound, to compare with 2K samples of VIMCO. The baseline of VIMCO is the geometric
mean of the released code; the paper's text has the arithmetic one, which is the same with two samples. The data set is
mnist, fashion_mnist or omniglot (the 28×28 version of Burda et al., their chardata.mat). The paper has, with the
standard error of the mean of 5 runs:

    2-sample bound            linear, train     linear, test   nonlin., train    nonlin., test
    disarm,1  mnist          -114.06 ± 0.13   -113.63 ± 0.13   -100.80 ± 0.11   -102.03 ± 0.10
    disarm,1  fashion_mnist  -254.15 ± 0.09   -256.14 ± 0.10   -236.91 ± 0.10   -239.53 ± 0.10
    disarm,1  omniglot       -119.89 ± 0.06   -120.23 ± 0.07   -114.45 ± 0.06   -118.96 ± 0.07
    vimco,2   mnist          -115.80 ± 0.08   -115.31 ± 0.07   -101.14 ± 0.10   -102.15 ± 0.11
    vimco,2   fashion_mnist  -255.41 ± 0.10   -257.35 ± 0.12   -236.41 ± 0.10   -238.99 ± 0.11
    vimco,2   omniglot       -121.66 ± 0.08   -121.99 ± 0.08   -114.18 ± 0.07   -118.36 ± 0.11
    20-sample bound           linear, train     linear, test   nonlin., train    nonlin., test
    disarm,10 mnist          -108.61 ± 0.08   -108.18 ± 0.08    -93.89 ± 0.06    -94.78 ± 0.07
    disarm,10 fashion_mnist  -247.77 ± 0.08   -249.71 ± 0.10   -231.34 ± 0.06   -233.82 ± 0.08
    disarm,10 omniglot       -116.70 ± 0.03   -117.29 ± 0.04   -108.29 ± 0.04   -112.43 ± 0.07
    vimco,20  mnist          -109.40 ± 0.07   -108.97 ± 0.08    -94.52 ± 0.05    -95.34 ± 0.06
    vimco,20  fashion_mnist  -249.60 ± 0.11   -251.52 ± 0.13   -232.01 ± 0.08   -234.47 ± 0.09
    vimco,20  omniglot       -117.68 ± 0.07   -118.29 ± 0.07   -108.37 ± 0.05   -112.42 ± 0.07

Time: about 30 minutes per seed on one core for the 2-sample bounds, 3.5 hours for the others; nonlinear twice as long.
"""

from configs import base


def get_config(argument="disarm,1"):
    """One of the two estimators, with any number of pairs or samples."""
    name, _, size = argument.partition(",")
    if name not in ("disarm", "vimco") or not size.isdecimal():
        raise ValueError(f"configs/multisample.py:{argument}: accepted: multisample.py:disarm,10 or :vimco,20")
    config = base.get_config()
    config.objective.name = "multisample"
    config.objective.num_samples = int(size)
    if name == "disarm":
        config.estimator.name = "multisample_disarm"
    else:
        config.estimator.name = "vimco"
        config.estimator.options.baseline = "geometric"
    return config
