"""Table 1 of the paper in a twentieth of its steps: our estimators, a higher learning rate, and a schedule.

    python -m main --config configs/fast.py:linear
    python -m main --config configs/fast.py:nonlinear --config.dataset.name=fashion_mnist
    python -m main --config configs/fast.py:nonlinear,relax
    python -m main --config configs/fast.py:linear,10,vimco --config.seeds="(0,)"

Behind the colon is the model: linear, nonlinear, or a number of linear layers; then, for a multi-sample bound, the
number of pairs; then the estimator, by default `disarm_midpoint`, or `multisample_disarm_midpoint` for a bound.
What differs from the paper's settings is the same for every row: 50,000 steps, Adam
for the prior too, and a learning rate that rises for 1,000 steps and falls along a cosine to zero. It is 1e-2 for
linear models. Nonlinear ones, whose gradients keep more of their noise, have 3e-3, and four pairs instead of one in
each step of the ELBO. Decoder and prior learn as in the paper, from one fresh sample of the ELBO. The rows
are in `configs/sweeps/fast.py`, and what came of them in `results/fast`.

Time: about 1 minute per seed on one core for the linear ELBO, 3 minutes for several layers, and 7 for the nonlinear
ELBO.
"""

from configs import base

ACCEPTED = "linear, nonlinear, or a number of layers such as 2; then ,1 or ,10 pairs for a bound; then ,an estimator"
OF_PAIRS = ("disarm_midpoint", "disarm")  # the estimators of the rows whose number of pairs may be more than one


def get_config(argument="linear"):
    """A model of the paper with the settings that suit an estimator of little variance."""
    model, *others = argument.split(",")
    pairs = int(others.pop(0)) if others and others[0].isdecimal() else None
    name = others.pop(0) if others else "disarm_midpoint" if pairs is None else "multisample_disarm_midpoint"
    depth = int(model) if model.isdecimal() else 1
    if not (model in ("linear", "nonlinear") or depth > 1) or others or not name or pairs == 0:
        raise ValueError(f"configs/fast.py:{argument}: accepted: {ACCEPTED}")
    config = base.get_config()
    config.steps = 50_000
    config.model.latents = (200,) * depth
    config.model.hidden = (200, 200) if model == "nonlinear" else ()
    config.estimator.name = name
    if pairs is not None:
        config.objective.name = "multisample"
        config.objective.num_samples = 2 * pairs if name == "vimco" else pairs
        config.eval.train_samples = config.eval.test_samples = 2 * pairs  # as in the paper's tables
    elif model == "nonlinear" and name in OF_PAIRS:
        config.estimator.options.num_pairs = 4
    config.optimizer.prior.name = "adam"
    config.optimizer.prior.reduction = "mean"
    for group in (config.optimizer.encoder, config.optimizer.decoder, config.optimizer.prior):
        group.learning_rate = 3e-3 if model == "nonlinear" else 1e-2
        group.schedule = "cosine"
        group.warmup_steps = 1_000
    config.eval.train_every = 10_000
    config.eval.test_every = 50_000
    return config
