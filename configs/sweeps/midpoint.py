"""The control variate at the midpoint in multi-sample bounds, where `docs/midpoint.md` has its numbers; 36 trials.

    python -m scripts.sweep --config configs/sweeps/midpoint.py --out runs/midpoint

Linear and nonlinear models of MNIST, 30,000 steps, one seed: one pair, or two samples of VIMCO, then ten and twenty,
each estimator at three learning rates of encoder and decoder. Decoder and prior learn from fresh samples, as many as
the bound has. The sweep of classes is `categorical.py`.

Time: about 4 hours of one core in all.
"""

from configs import base

RATES = [3e-4, 1e-3, 3e-3]


def get_config():
    """Short runs of one seed."""
    config = base.get_config()
    config.seeds = (0,)
    config.objective.generative_samples = "independent"
    config.optimizer.prior.reduction = "mean"
    config.eval.train_every = 10_000
    config.eval.test_every = 10_000
    return config


def get_hyper(hyper):
    """One pair, then ten, of linear and nonlinear models."""
    rates = hyper.zipit([hyper.sweep(f"optimizer.{group}.learning_rate", RATES) for group in ("encoder", "decoder")])

    def bounds(pairs):
        def estimator(name, num_samples):
            return hyper.product(
                [hyper.fixed("estimator.name", name), hyper.fixed("objective.num_samples", num_samples)]
            )

        estimators = hyper.chainit(
            [
                estimator("multisample_disarm_midpoint", pairs),
                estimator("multisample_disarm", pairs),
                estimator("vimco", 2 * pairs),
            ]
        )
        models = hyper.sweep("model.hidden", [(), (200, 200)])
        fixed = [hyper.fixed("steps", 30_000), hyper.fixed("objective.name", "multisample")]
        return hyper.product([*fixed, models, estimators, rates])

    return hyper.chainit([bounds(1), bounds(10)])
