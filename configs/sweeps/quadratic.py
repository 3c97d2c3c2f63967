"""DisARM with our two control variates beside other estimators, at several learning rates and of several models.

    python -m scripts.sweep --config configs/sweeps/quadratic.py --out runs/quadratic
    python -m scripts.sweep --config configs/sweeps/quadratic.py --out runs/rates --only steps=50000   # a part of it

43 trials in three parts:

Decoder and prior learn from one fresh sample and at the same rates under every estimator, so that the results differ by
the encoder's gradient alone.

- `steps=200000`: linear MNIST with DisARM, without a control variate and with either, two seeds.
- `steps=50000`: the same at the paper's learning rate and three, ten and thirty times it, one seed; these runs are in
  `results/rates`.
- `steps=30000`: five estimators on linear and nonlinear MNIST and FashionMNIST and on two linear layers, one seed.

Time: about 130 minutes of one core in all.
"""

from configs import base


def get_config():
    """Evaluated often enough for curves; one seed for a trial, so that all times are of one seed."""
    config = base.get_config()
    config.seeds = (0,)
    config.optimizer.prior.reduction = "mean"  # RELAX's own would be a sum, a rate that is 50 times as high
    config.eval.train_every = 2_000
    config.eval.test_every = 10_000
    return config


def get_hyper(hyper):
    """Long runs first, so that no core waits for them at the end; then higher rates, then everything else."""
    ours = hyper.sweep("estimator.name", ["disarm", "disarm_quadratic", "disarm_midpoint"])
    long = [hyper.fixed("steps", 200_000), hyper.fixed("eval.test_every", 50_000), hyper.sweep("seeds", [(0,), (1,)])]
    groups = ("encoder", "decoder")
    rates = hyper.zipit([hyper.sweep(f"optimizer.{group}.learning_rate", [1e-4, 3e-4, 1e-3, 3e-3]) for group in groups])
    short = hyper.fixed("steps", 30_000)
    one_layer = [hyper.sweep("dataset.name", ["mnist", "fashion_mnist"]), hyper.sweep("model.hidden", [(), (200, 200)])]
    two_layers = [hyper.fixed("model.latents", (200, 200))]
    arms = hyper.zipit([hyper.fixed("estimator.name", "arms"), hyper.fixed("estimator.options.num_samples", 4)])
    estimators = hyper.chainit([ours, hyper.fixed("estimator.name", "relax"), arms])
    return hyper.chainit(
        [
            hyper.product([*long, ours]),
            hyper.product([hyper.fixed("steps", 50_000), rates, ours]),
            *(hyper.product([short, *models, estimators]) for models in (one_layer, two_layers)),
        ]
    )
