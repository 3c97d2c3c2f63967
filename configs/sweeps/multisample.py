"""Multi-sample bounds, 24 trials: Tables 1 and 4 of the paper, the curves of Figures 4 and 8.

    python -m scripts.sweep --config configs/sweeps/multisample.py --out runs/multisample --cluster slurm --gpus 1
    python -m scripts.sweep --config configs/sweeps/multisample.py --out runs/multisample --only dataset=mnist

3 data sets × linear and nonlinear × {DisARM with 1 and 10 pairs, VIMCO with 2 and 20 samples}, 5 seeds in each run. K
pairs and 2K samples are the same work, and both report the 2K-sample bound. The paper's numbers are in
`configs/multisample.py`. Prepare the data first: `python -m scripts.prepare_data`.

Time: about 320 hours of one core in all.
"""

from configs import base


def get_config():
    """A multi-sample bound with DisARM; the sweep sets estimator and number of samples."""
    config = base.get_config()
    config.objective.name = "multisample"
    config.estimator.name = "multisample_disarm"
    return config


def get_hyper(hyper):
    """Data sets × models × estimators with two numbers of samples each."""

    def estimator(name, nums_samples, *fixed):
        sizes = hyper.sweep("objective.num_samples", nums_samples)
        return hyper.product([hyper.fixed("estimator.name", name), sizes, *fixed])

    geometric = hyper.fixed("estimator.options.baseline", "geometric")  # as in the released code
    return hyper.product(
        [
            hyper.sweep("dataset.name", ["mnist", "fashion_mnist", "omniglot"]),
            hyper.sweep("model.hidden", [(), (200, 200)]),
            hyper.chainit([estimator("multisample_disarm", [1, 10]), estimator("vimco", [2, 20], geometric)]),
        ]
    )
