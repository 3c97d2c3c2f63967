"""The gradient variance of estimators of the ELBO along one DisARM trajectory: the right columns of Figures 2 and 6.

    python -m main --config configs/elbo_variance.py --config.dataset.name=fashion_mnist
    python -m main --config configs/elbo_variance.py --config.dataset.name=omniglot --config.model.hidden="(200, 200)"

The paper has curves, no numbers: DisARM is below REINFORCE LOO and ARM on all models and data sets; RELAX is below
DisARM for linear models, and for nonlinear ones only at first. The paper does not say along which trajectory; on one
and the same, the differences are those of the estimators alone. `gradient_variance` in metrics.jsonl is that of DisARM.

Time: about 3 hours per seed on one core, nonlinear about 4.5 hours.
"""

from configs import base


def get_config():
    """DisARM trains, the others are measured."""
    config = base.get_config()
    config.variance.estimators = ("reinforce_loo", "arm", "relax")
    return config
