"""The paper's experiments on MNIST and FashionMNIST with one seed each, in the order of what they cost, 64 trials.

    python -m scripts.sweep --config configs/sweeps/reproduction.py --out runs/reproduction
    nice -n 19 python -m scripts.sweep --config configs/sweeps/reproduction.py --out runs/reproduction --cluster local
    python -m scripts.report --runs runs/reproduction --out report

The second command takes what other work on this machine leaves. Each is the experiment of one of the paper's config
files, with seed 0:

1. linear models, ELBO: DisARM, REINFORCE LOO, ARM, then RELAX
2. nonlinear models, the same
3. multi-sample bounds with one pair of DisARM or two samples of VIMCO
4. two layers: DisARM, REINFORCE LOO, ARM
5. three layers, the same
6. multi-sample bounds of linear models with ten pairs or twenty samples
7. a second seed of 1 and 2; four layers; two layers with RELAX

`configs/sweeps/elbo.py`, `layers.py` and `multisample.py` have all data sets and five seeds.

Time: about 75 hours of one core in all: 15 to 30 minutes for each linear model, up to three hours for each of the
sixth part.
"""

from configs import base


def get_config():
    """The paper's settings with one seed."""
    config = base.get_config()
    config.seeds = (0,)
    return config


def get_hyper(hyper):
    """What takes the least time first."""
    datasets = hyper.sweep("dataset.name", ["mnist", "fashion_mnist"])
    linear, nonlinear = hyper.fixed("model.hidden", ()), hyper.fixed("model.hidden", (200, 200))
    without_relax = hyper.sweep("estimator.name", ["disarm", "reinforce_loo", "arm"])
    relax = hyper.fixed("estimator.name", "relax")
    every_estimator = hyper.chainit([without_relax, relax])

    def layers(depth, estimators):
        return hyper.product([hyper.fixed("model.latents", (200,) * depth), estimators, datasets])

    def bound(pairs, models):
        multisample = hyper.fixed("objective.name", "multisample")
        disarm = [
            hyper.fixed("estimator.name", "multisample_disarm"),
            hyper.fixed("objective.num_samples", pairs),
        ]
        vimco = [
            hyper.fixed("estimator.name", "vimco"),
            hyper.fixed("objective.num_samples", 2 * pairs),
            hyper.fixed("estimator.options.baseline", "geometric"),
        ]
        estimators = hyper.chainit([hyper.product(disarm), hyper.product(vimco)])
        return hyper.product([multisample, models, estimators, datasets])

    return hyper.chainit(
        [
            hyper.product([linear, every_estimator, datasets]),
            hyper.product([nonlinear, every_estimator, datasets]),
            bound(1, hyper.chainit([linear, nonlinear])),
            layers(2, without_relax),
            layers(3, without_relax),
            bound(10, linear),
            hyper.product([hyper.fixed("seeds", (1,)), linear, every_estimator, datasets]),
            hyper.product([hyper.fixed("seeds", (1,)), nonlinear, every_estimator, datasets]),
            layers(4, without_relax),
            layers(2, relax),
        ]
    )
