"""tensorflow-datasets: a prepared copy is read without TensorFlow; only downloading and preparing needs it.

A prepared copy holds its records sorted by the md5 of the split's name and the number of the image in the original
file. That order is part of the data set's version, so it can be undone here: the splits come out in the order of the
original files, the same images as from every other source.
"""

import hashlib
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from disarm_jax.data.cache import user_path
from disarm_jax.data.idx import PIXELS
from disarm_jax.data.network import check_reachable
from disarm_jax.data.recorded import RecordedFile
from disarm_jax.data.types import DataError, NotFoundError, Progress
from disarm_jax.untrusted import MAX_JSON, open_regular, parse_json

_CHUNK = 500  # records decoded between two reports of progress

# Run in a process of its own: TensorFlow stays out of this one and off the accelerators, and the threads that
# tensorflow-datasets leaves running after an error cannot write to the temporary folder once it is removed.
_MARK = "disarm_jax: failed with "
_PREPARE = f"""
import sys
import tensorflow_datasets as tfds
name, folder, manual_dir = sys.argv[1:]
try:
    builder = tfds.builder(name, data_dir=folder, file_format="array_record")
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(manual_dir=manual_dir or None))
except Exception as error:
    sys.exit(print("{_MARK}" + type(error).__name__ + ": " + str(error)) or 1)
"""


def prepared_folders(data_dir: pathlib.Path) -> list[pathlib.Path]:
    """Where prepared copies are looked for: `data_dir`, `TFDS_DATA_DIR` and the default of tensorflow-datasets."""
    folders = [data_dir, os.environ.get("TFDS_DATA_DIR") or None, "~/tensorflow_datasets"]
    return list(dict.fromkeys(user_path(folder) for folder in folders if folder is not None))


def find_prepared(name: str, folders: Sequence[pathlib.Path]) -> pathlib.Path:
    """The version folder of the first prepared copy that can be read without TensorFlow.

    Raises:
      NotFoundError: saying where it was looked for, and which copies are in a format that only TensorFlow reads.
    """
    reasons = []
    for folder in folders:
        infos = sorted((folder / name).glob("*/dataset_info.json"))
        for info in reversed(infos):  # the newest version first
            try:
                with open_regular(info, MAX_JSON, links=True) as stream:
                    file_format = parse_json(stream.read()).get("fileFormat", "tfrecord")
            except (OSError, ValueError, AttributeError) as error:
                raise DataError(f"{info} is damaged: {error}") from error
            if file_format == "array_record":
                return info.parent
            reasons.append(f"{info.parent} is in the format {file_format}, only array_record is read")
        if not infos:
            reasons.append(f"{folder / name}: no prepared copy")
    raise NotFoundError("; ".join(reasons))


def read_prepared(folder: pathlib.Path, counts: Mapping[str, int], progress: Progress) -> dict[str, np.ndarray]:
    """The images of a prepared copy, in the order of the original files.

    Args:
      folder: of the copy's version, where its `dataset_info.json` is.
      counts: images per split of tensorflow-datasets.
      progress: told of the images read.

    Returns:
      `[count, 784]` uint8 per split, with the pixel values of the copy.

    Raises:
      DataError: if the copy is incomplete or cannot be read.
    """
    tfds = _import_tfds()
    images = {}
    try:
        builder = tfds.builder_from_directory(folder)
        for split, count in counts.items():
            records = builder.as_data_source(split)
            if len(records) != count:
                raise DataError(f"{folder} has {len(records):,} {split} images; expected {count:,}")
            found = np.empty((count, PIXELS), np.uint8)
            order = original_order(split, count)
            for start in range(0, count, _CHUNK):
                places = range(start, min(start + _CHUNK, count))
                found[order[start : places.stop]] = [r["image"].reshape(PIXELS) for r in records.__getitems__(places)]
                progress(f"reading {split} of the prepared copy", places.stop, count)
            images[split] = found
    except DataError:
        raise
    except Exception as error:  # whatever the readers of a damaged file raise
        raise DataError(
            f"the prepared copy in {folder} cannot be read: {str(error) or type(error).__name__}"
        ) from error
    return images


def original_order(split: str, count: int) -> np.ndarray:
    """`order[i]` is the number in the original file of record i of a prepared copy."""
    salt = hashlib.md5(split.encode(), usedforsecurity=False)

    def place(number: int) -> bytes:
        digest = salt.copy()
        digest.update(str(number).encode())
        return digest.digest()

    return np.array(sorted(range(count), key=place))


def download_and_prepare(
    name: str,
    files: Sequence[RecordedFile],
    counts: Mapping[str, int],
    manual_dir: pathlib.Path | None,
    progress: Progress,
) -> tuple[dict[str, np.ndarray], str]:
    """Has tensorflow-datasets download and prepare the data set in a temporary folder, and reads that.

    Args:
      name: of the data set.
      files: its recorded files, whose address must answer.
      counts: images per split of tensorflow-datasets.
      manual_dir: a folder that already holds all the files to download, or None.
      progress: told of the images read; tensorflow-datasets shows the bars of its own work itself.

    Returns:
      The images per split, in the order of the original files, and where they came from.

    Raises:
      NotFoundError: if TensorFlow is not installed or the network does not answer.
      DataError: if the preparation fails.
    """
    if importlib.util.find_spec("tensorflow") is None:
        raise NotFoundError("TensorFlow, which only this source needs, is not installed")
    tfds = _import_tfds()
    # With one file missing tensorflow-datasets would try for minutes to download it.
    needed = {file.name for file in files}
    needed |= {name.replace("images-idx3", "labels-idx1") for name in needed}  # which only tensorflow-datasets wants
    if manual_dir is None or not all((manual_dir / name).is_file() for name in needed):
        check_reachable(files[0].url + files[0].name)
    with tempfile.TemporaryDirectory(prefix="disarm_jax-tfds-") as temporary:
        command = [sys.executable, "-c", _PREPARE, name, temporary, str(manual_dir or "")]
        done = subprocess.run(command, env=os.environ | {"CUDA_VISIBLE_DEVICES": "-1"}, stdout=subprocess.PIPE)
        if done.returncode != 0:
            reason = done.stdout.decode(errors="replace").rpartition(_MARK)[2].strip()
            raise DataError(f"tensorflow-datasets could not prepare {name}: {reason or done.returncode}")
        version = find_prepared(name, [pathlib.Path(temporary)])
        images = read_prepared(version, counts, progress)
    origin = f"tensorflow-datasets {tfds.__version__}, {name} {version.name}"
    return images, origin + (f" from {manual_dir}" if manual_dir else " downloaded")


def _import_tfds() -> Any:
    try:
        import PIL  # noqa: F401  (tensorflow-datasets decodes the images with it, and would fail late)
        import tensorflow_datasets
    except ImportError as error:
        raise NotFoundError(f"reading a tensorflow-datasets copy needs {error.name}, which is not installed") from error
    return tensorflow_datasets
