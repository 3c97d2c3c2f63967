"""The gradient variance of DisARM and VIMCO for the same bound: the variance curves of Figures 4 and 8.

    python -m main --config configs/multisample_variance.py --config.dataset.name=fashion_mnist
    python -m main --config configs/multisample_variance.py --config.model.hidden="(200, 200)"

To be comparable, both must estimate the same gradient with the same work: 10 pairs of DisARM, and the mean of two
VIMCO estimates of 10 samples each, 20 evaluations either way, along one trajectory, that of VIMCO with 10 samples. The
paper has curves, no numbers, and says that DisARM improves on VIMCO throughout.

Time: about 9 hours per seed on one core, nonlinear about 15 hours.
"""

from configs import base


def get_config():
    """VIMCO trains with 10 samples, the two to compare are measured."""
    config = base.get_config()
    config.objective.name = "multisample"
    config.objective.num_samples = 10
    config.estimator.name = "vimco"
    config.estimator.options.baseline = "geometric"  # as in the released code
    config.variance.estimators = (
        "multisample_disarm(num_pairs=10)",
        "vimco(num_samples=10, repeats=2, baseline='geometric')",
    )
    return config
