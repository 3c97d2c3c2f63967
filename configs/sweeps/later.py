"""Estimators since the paper beside the paper's, 22 trials of 50,000 steps and one seed.

    python -m scripts.sweep --config configs/sweeps/later.py --out runs/later

DisARM, RELAX, DisARM with the quadratic control variate and ARMS with 4 samples on linear and nonlinear MNIST and
FashionMNIST; on MNIST also the first-order expansion, DoubleCV and RODEO. Decoder and prior learn from one fresh sample
and at the same rates under every estimator. Checkpoints are kept at 10,000, 20,000, … steps for `scripts.compare`.

Time: about 95 minutes of one core in all.
"""

from configs import base


def get_config():
    """Short runs of one seed, evaluated often enough for curves."""
    config = base.get_config()
    config.steps = 50_000
    config.seeds = (0,)
    config.optimizer.prior.reduction = "mean"  # RELAX's own would be a sum, a rate that is 50 times as high
    config.eval.train_every = 10_000
    config.eval.test_every = 30_000
    config.checkpoint.every, config.checkpoint.keep = 10_000, 5
    return config


def get_hyper(hyper):
    """Two models of two data sets × four estimators, and three more on one of them."""
    models = hyper.sweep("model.hidden", [(), (200, 200)])
    arms = hyper.zipit([hyper.fixed("estimator.name", "arms"), hyper.fixed("estimator.options.num_samples", 4)])
    return hyper.chainit(
        [
            hyper.product([hyper.sweep("dataset.name", ["mnist", "fashion_mnist"]), models, estimators])
            for estimators in (hyper.sweep("estimator.name", ["disarm", "relax", "disarm_quadratic"]), arms)
        ]
        + [
            hyper.product(
                [
                    hyper.fixed("dataset.name", "mnist"),
                    models,
                    hyper.sweep("estimator.name", ["disarm_taylor", "double_cv", "rodeo"]),
                ]
            )
        ]
    )
