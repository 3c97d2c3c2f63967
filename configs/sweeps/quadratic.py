"""DisARM with a quadratic control variate beside the others: where `docs/quadratic.md` has its numbers from.

    python -m scripts.sweep --config configs/sweeps/later.py --out runs/later           # one layer, 50,000 steps
    python -m scripts.sweep --config configs/sweeps/quadratic.py --out runs/quadratic

Two layers for 30,000 steps with four estimators, and linear MNIST with DisARM for 200,000 steps and two seeds, with the
control variate and without it, at the paper's learning rate and at three times it.

Time: about 100 minutes of one core in all.
"""

from configs import base


def get_config():
    """Evaluated often enough for curves."""
    config = base.get_config()
    config.eval.train_every = 10_000
    config.eval.test_every = 100_000
    return config


def get_hyper(hyper):
    """Two layers, then long runs of one."""
    layers = [hyper.fixed("model.latents", (200, 200)), hyper.fixed("steps", 30_000), hyper.fixed("seeds", (0,))]
    long = [hyper.fixed("steps", 200_000), hyper.fixed("seeds", (0, 1))]
    arms = [hyper.fixed("estimator.name", "arms"), hyper.fixed("estimator.options.num_samples", 4)]
    pair = hyper.sweep("estimator.name", ["disarm", "disarm_quadratic"])
    rates = hyper.zipit(
        [hyper.sweep(f"optimizer.{group}.learning_rate", [1e-4, 3e-4]) for group in ("encoder", "decoder")]
    )
    return hyper.chainit(
        [
            hyper.product([*long, rates, pair]),
            hyper.product([*layers, pair]),
            hyper.product([*layers, hyper.fixed("estimator.name", "relax")]),
            hyper.product([*layers, *arms]),
        ]
    )
