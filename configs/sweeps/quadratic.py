"""DisARM with a quadratic control variate beside the others: where `docs/quadratic.md` has its numbers from.

    python -m scripts.sweep --config configs/sweeps/later.py --out runs/later           # one layer, 50,000 steps
    python -m scripts.sweep --config configs/sweeps/quadratic.py --out runs/quadratic

Linear MNIST with DisARM, with the control variate and without it: 200,000 steps and two seeds, and 50,000 steps at
three and ten times the paper's learning rate. Two layers for 30,000 steps with four estimators.

Time: about 55 minutes of one core in all.
"""

from configs import base


def get_config():
    """Evaluated often enough for curves."""
    config = base.get_config()
    config.eval.train_every = 10_000
    config.eval.test_every = 100_000
    return config


def get_hyper(hyper):
    """Long runs, higher rates, two layers."""
    pair = hyper.sweep("estimator.name", ["disarm", "disarm_quadratic"])
    long = [hyper.fixed("steps", 200_000), hyper.fixed("seeds", (0, 1))]
    short = [hyper.fixed("steps", 50_000), hyper.fixed("seeds", (0,))]
    groups = ("encoder", "decoder")
    rates = hyper.zipit([hyper.sweep(f"optimizer.{group}.learning_rate", [3e-4, 1e-3]) for group in groups])
    layers = [hyper.fixed("model.latents", (200, 200)), hyper.fixed("steps", 30_000), hyper.fixed("seeds", (0,))]
    arms = [hyper.fixed("estimator.name", "arms"), hyper.fixed("estimator.options.num_samples", 4)]
    return hyper.chainit(
        [
            hyper.product([*layers, hyper.sweep("estimator.name", ["disarm", "disarm_quadratic", "relax"])]),
            hyper.product([*layers, *arms]),
            hyper.product([*short, rates, pair]),
            hyper.product([*long, pair]),
        ]
    )
