"""All fields of a config, with the settings of the paper; the other files change a few of them.

A field that is None has a default that depends on the others: the comment says which.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
    """A linear model of dynamically binarised MNIST, trained with DisARM."""
    config = ConfigDict()

    config.dataset = ConfigDict()
    config.dataset.name = "mnist"  # mnist, fashion_mnist, omniglot, binarized_mnist, mnist5k, npz or "module:function"
    config.dataset.source = "auto"  # where it is taken from, see the README
    config.dataset.data_dir = placeholder(str)  # of the cached files; None: DISARM_DATA_DIR or ~/.cache/disarm_jax
    config.dataset.path = placeholder(str)  # of the npz file, or of original files outside data_dir
    config.dataset.binarization = "dynamic"  # dynamic, static or threshold
    config.dataset.static_seed = 0  # of the one draw of static binarisation

    config.model = ConfigDict()
    config.model.name = placeholder(str)  # None: bernoulli_vae, or categorical_vae for classes; or "module:class"
    # Bits of each stochastic layer, the one next to the image first; or variables and classes of one, ((20, 10),).
    config.model.latents = (200,)
    config.model.hidden = ()  # hidden units of every conditional; () is linear, the paper's nonlinear is (200, 200)
    config.model.negative_slope = 0.3  # of the LeakyReLU
    config.model.kernel_init = "glorot_uniform"
    config.model.center_input = True  # the encoder sees the image less the mean of the training set
    config.model.signed_input = True  # the decoder sees 2b − 1
    config.model.output_bias_from_mean = True  # the decoder's bias starts at the logit of the training mean
    config.model.options = ConfigDict()  # further arguments of an own model

    config.objective = ConfigDict()
    config.objective.name = "elbo"  # elbo or multisample
    config.objective.num_samples = placeholder(int)  # K of the bound that is optimised; None: 1, or the estimator's
    config.objective.stop_q = placeholder(bool)  # log q inside f as a constant; None: for the ELBO, and only there
    # What decoder and prior learn from: "independent", one fresh sample as in the released code, or "shared", all hard
    # samples of the estimator, which is cheaper. None: independent for the ELBO, shared for a multi-sample bound.
    config.objective.generative_samples = placeholder(str)

    config.estimator = ConfigDict()
    config.estimator.name = "disarm"  # a name of disarm_jax.estimator_names(), or "module:function"
    # None is the estimator's own default; an option that the estimator does not have is refused. For a multi-sample
    # bound, num_pairs or num_samples is objective.num_samples.
    config.estimator.options = ConfigDict()
    config.estimator.options.num_pairs = placeholder(int)
    config.estimator.options.num_samples = placeholder(int)
    config.estimator.options.repeats = placeholder(int)
    config.estimator.options.baseline = placeholder(str)
    config.estimator.options.configurations = placeholder(str)
    config.estimator.options.init_beta = placeholder(float)
    config.estimator.options.per_dimension = placeholder(bool)
    config.estimator.options.init_temperature = placeholder(float)
    config.estimator.options.init_scale = placeholder(object)  # a number, or a pair for expansions at the mean
    config.estimator.options.probes = placeholder(int)
    config.estimator.options.hidden = placeholder(int)
    config.estimator.options.later_layers = placeholder(str)
    config.estimator.options.group_size = placeholder(int)
    config.estimator.options.temperature = placeholder(float)
    config.estimator.options.hard = placeholder(bool)
    # RELAX's control variate: "released" is η (f + r), r a network of the previous layer (or the image) and z, with one
    # temperature and η for all layers; "image" is η f + r, r of the image and z; "z" is η f + r, r of z alone.
    config.estimator.relax_form = "released"

    adam = {"name": "adam", "learning_rate": 1e-4, "b1": 0.9, "b2": 0.999, "eps": 1e-7}
    config.optimizer = ConfigDict()
    config.optimizer.encoder = ConfigDict(adam | {"reduction": "sum"})  # gradients are sums or means over the batch
    config.optimizer.decoder = ConfigDict(adam | {"reduction": "mean"})
    config.optimizer.prior = ConfigDict(adam | {"name": "sgd", "learning_rate": 1e-2})
    # None is the released code's: sum for RELAX and multi-sample bounds, mean otherwise. A comparison of estimators
    # wants one value for all of them, since a sum is a learning rate that is batch_size times as high.
    config.optimizer.prior.reduction = placeholder(str)
    config.optimizer.tunables = ConfigDict(adam | {"b1": 0.999})  # of the estimator

    config.steps = 1_000_000
    config.batch_size = 50
    # Of matrix products: float32, tensorfloat32, bfloat16, or default, JAX's choice: less than float32 on most GPUs.
    config.matmul_precision = "float32"
    config.seeds = (0, 1, 2, 3, 4)
    config.log_every = 1_000  # steps that run as one compiled program, and between lines of metrics.jsonl

    config.eval = ConfigDict()  # everything is evaluated at the end as well
    config.eval.train_every = 20_000  # bound on the training set
    config.eval.test_every = 100_000  # bounds on the validation and the test set: as long as 3,000 steps each
    config.eval.train_samples = placeholder(int)  # None: 1; for a multi-sample objective evaluations of a step, 2K
    config.eval.test_samples = placeholder(int)  # None: 100; for a multi-sample objective evaluations of a step, 2K
    config.eval.batch_size = 100

    config.checkpoint = ConfigDict()
    config.checkpoint.every = 10_000
    config.checkpoint.keep = 3

    config.variance = ConfigDict()  # of the inference network's gradient
    config.variance.decay = 0.999  # of the moving averages
    config.variance.estimators = ()  # measured beside the training one: "arm", "vimco(num_samples=10, repeats=2)", …
    return config
