"""The ELBO with several stochastic layers, 36 trials: Tables 1 and 3 of the paper, the curves of Figures 3 and 7.

    python -m scripts.sweep --config configs/sweeps/layers.py --out runs/layers --cluster slurm --gpus 1
    python -m scripts.sweep --config configs/sweeps/layers.py --out runs/layers --cluster local --only dataset=mnist

3 data sets × 2, 3 and 4 layers × 4 estimators, 5 seeds in each run. The estimators take their hierarchical form, one
branch per layer, because the model has several. The paper's numbers are in `configs/layers.py`, and a word on its
RELAX. Prepare the data first: `python -m scripts.prepare_data`.

Time: about 490 hours of one core in all.
"""

from configs import base


def get_config():
    """Two layers of 200 bits; the sweep sets how many."""
    config = base.get_config()
    config.model.latents = (200,) * 2
    return config


def get_hyper(hyper):
    """Data sets × numbers of layers × estimators."""
    return hyper.product(
        [
            hyper.sweep("dataset.name", ["mnist", "fashion_mnist", "omniglot"]),
            hyper.sweep("model.latents", [(200,) * layers for layers in (2, 3, 4)]),
            hyper.sweep("estimator.name", ["reinforce_loo", "arm", "disarm", "relax"]),
        ]
    )
