"""Table 1 of the paper in a twentieth of its steps: our estimators, a higher learning rate, and a schedule.

    python -m main --config configs/fast.py:linear
    python -m main --config configs/fast.py:nonlinear --config.dataset.name=fashion_mnist
    python -m main --config configs/fast.py:3 --config.estimator.name=disarm
    python -m main --config configs/fast.py:linear,10 --config.seeds="(0,)"

Behind the colon is the model: linear, nonlinear, or a number of linear layers; then, for a multi-sample bound, the
number of pairs. The estimator is `disarm_midpoint`, or `multisample_disarm_midpoint` for a bound; any other stands in
its place with `estimator.name`. What differs from the paper's settings is the same for every row: 50,000 steps, Adam
for the prior too, and a learning rate that rises for 1,000 steps and falls along a cosine to zero, from 1e-2 for linear
models and from 1e-3 for nonlinear ones. Decoder and prior learn as in the paper. `configs/sweeps/fast.py` has all rows,
and `results/fast` what came of them.

Time: about 1 minute per seed on one core for the linear ELBO, 3 minutes for the nonlinear one and for several layers.
"""

from configs import base

MODELS = "linear, nonlinear, or a number of layers such as 2, then ,1 or ,10 pairs for a bound"


def get_config(argument="linear"):
    """A model of the paper with the settings that suit an estimator of little variance."""
    model, comma, pairs = argument.partition(",")
    depth = int(model) if model.isdecimal() else 1
    if not (model in ("linear", "nonlinear") or depth > 1) or (comma and not pairs.isdecimal()):
        raise ValueError(f"configs/fast.py:{argument}: accepted: {MODELS}")
    config = base.get_config()
    config.steps = 50_000
    config.model.latents = (200,) * depth
    config.model.hidden = (200, 200) if model == "nonlinear" else ()
    config.estimator.name = "disarm_midpoint"
    if pairs:
        config.objective.name = "multisample"
        config.objective.num_samples = int(pairs)
        config.estimator.name = "multisample_disarm_midpoint"
        config.eval.train_samples = config.eval.test_samples = 2 * int(pairs)  # as in the paper's tables
    config.optimizer.prior.name = "adam"
    config.optimizer.prior.reduction = "mean"
    for group in (config.optimizer.encoder, config.optimizer.decoder, config.optimizer.prior):
        group.learning_rate = 1e-3 if model == "nonlinear" else 1e-2
        group.schedule = "cosine"
        group.warmup_steps = 1_000
    config.eval.train_every = 10_000
    config.eval.test_every = 50_000
    return config
