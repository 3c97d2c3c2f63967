"""Every MNIST and FashionMNIST row of Table 1 in a twentieth of the paper's steps, by the preset of `configs/fast.py`.

    python -m scripts.sweep --config configs/sweeps/fast.py --out runs/fast
    python -m scripts.sweep --config configs/sweeps/fast.py --out runs/fast --only model.latents=200-200 --cluster local

Linear and nonlinear models, two to four linear layers, bounds of one and ten pairs; five seeds. With each row of ours
the same settings with plain DisARM and with RELAX, or with VIMCO for the bounds, so that one sees what the estimator
gives and what the rate gives; 54 trials.

Time: about 60 hours of one core in all, half of it for the bounds of ten pairs.
"""

from configs import fast


def get_config():
    """The preset for linear models."""
    return fast.get_config("linear,relax")  # which has no pairs: each estimator of pairs is given its own


def get_hyper(hyper):
    """Our estimator on all rows first."""
    datasets = hyper.sweep("dataset.name", ["mnist", "fashion_mnist"])
    rate = fast.get_config("nonlinear").optimizer.encoder.learning_rate
    rates = [hyper.fixed(f"optimizer.{group}.learning_rate", rate) for group in ("encoder", "decoder", "prior")]
    linear = hyper.fixed("model.hidden", ())
    nonlinear = hyper.product([hyper.fixed("model.hidden", (200, 200)), *rates])
    layers = hyper.sweep("model.latents", [(200,) * depth for depth in (2, 3, 4)])

    def elbo(estimator):
        num_pairs = fast.get_config(f"linear,{estimator}").estimator.options.num_pairs
        pairs = [] if num_pairs is None else [hyper.fixed("estimator.options.num_pairs", num_pairs)]
        models = hyper.chainit([linear, nonlinear, layers])
        return hyper.product([models, hyper.fixed("estimator.name", estimator), *pairs, datasets])

    def bound(estimator, samples_of_a_pair, pairs):
        fixed = [
            hyper.fixed("objective.name", "multisample"),
            hyper.fixed("estimator.name", estimator),
            hyper.fixed("objective.num_samples", samples_of_a_pair * pairs),
            hyper.fixed("eval.train_samples", 2 * pairs),
            hyper.fixed("eval.test_samples", 2 * pairs),
        ]
        return hyper.product([*fixed, hyper.chainit([linear, nonlinear]), datasets])

    return hyper.chainit(
        [
            elbo("disarm_midpoint"),
            bound("multisample_disarm_midpoint", 1, 1),
            elbo("disarm"),
            bound("multisample_disarm", 1, 1),
            bound("vimco", 2, 1),
            elbo("relax"),
            bound("multisample_disarm_midpoint", 1, 10),
            bound("multisample_disarm", 1, 10),
            bound("vimco", 2, 10),
        ]
    )
