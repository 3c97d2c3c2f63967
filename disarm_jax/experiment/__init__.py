"""Experiments: from a config to trained parameters. To read in this order:

- `fields`: all fields of a config, with default, rule and meaning; `config` checks and completes one; `grid` is for
  several runs in one program
- `build`: the words of a config become a model, a data set, an objective, an estimator and optimisers
- `step`: one training step from top to bottom, and what is measured of it
- `loop`: the training loop; `evaluate`: bounds over whole splits; `devices`: how runs lie on the machine
- `load`: a config with its data and model, ready to train, and a trained run, ready to use; what cannot fit

What a run leaves on disk is in `disarm_jax.run_directory`.
"""
