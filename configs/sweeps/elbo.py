"""The ELBO with one stochastic layer, 24 trials: Table 1 of the paper, its Table 2, the curves of Figures 2 and 6.

    python -m scripts.sweep --config configs/sweeps/elbo.py --out runs/elbo --cluster slurm --gpus 1
    python -m scripts.sweep --config configs/sweeps/elbo.py --out runs/elbo --cluster local --only dataset=mnist

3 data sets × linear and nonlinear × 4 estimators, 5 seeds in each run. The paper's numbers are in
`configs/elbo_linear.py` and `configs/elbo_nonlinear.py`. Prepare the data first: `python -m scripts.prepare_data`.

Time: about 110 hours of one core in all.
"""

from configs import base


def get_config():
    """The base config as it is."""
    return base.get_config()


def get_hyper(hyper):
    """Data sets × models × estimators."""
    return hyper.product(
        [
            hyper.sweep("dataset.name", ["mnist", "fashion_mnist", "omniglot"]),
            hyper.sweep("model.hidden", [(), (200, 200)]),
            hyper.sweep("estimator.name", ["reinforce_loo", "arm", "disarm", "relax"]),
        ]
    )
