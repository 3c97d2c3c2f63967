"""A VAE with categorical latent variables under the best estimators and their midpoint forms; two of six are biased.

    python -m scripts.sweep --config configs/sweeps/categorical.py --out runs/categorical

20 variables of 10 classes, nonlinear, MNIST and FashionMNIST, 50,000 steps, one seed, each estimator at three learning
rates of encoder and decoder, 36 trials. Decoder and prior learn from one fresh sample under every estimator.

Time: about 2.5 hours of one core in all.
"""

from configs import categorical


def get_config():
    """20 variables of 10 classes."""
    config = categorical.get_config()
    config.steps = 50_000
    config.objective.generative_samples = "independent"
    config.optimizer.prior.reduction = "mean"
    config.eval.train_every = 10_000
    config.eval.test_every = 10_000
    return config


def get_hyper(hyper):
    """MNIST first, each estimator at all rates."""
    biased, unbiased = ["reinmax", "gumbel_softmax"], ["disarm_iw", "reinforce_loo"]
    names = ["disarm_iw_midpoint", "reinforce_loo_midpoint", *unbiased, *biased]
    rates = [3e-4, 1e-3, 3e-3]
    return hyper.product(
        [
            hyper.sweep("dataset.name", ["mnist", "fashion_mnist"]),
            hyper.sweep("estimator.name", names),
            hyper.zipit([hyper.sweep(f"optimizer.{group}.learning_rate", rates) for group in ("encoder", "decoder")]),
        ]
    )
