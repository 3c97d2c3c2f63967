"""MNIST as binarised once by Larochelle, from his three text files or from the same bits packed in one npz file."""

import pathlib
from collections.abc import Sequence

import numpy as np

from disarm_jax.data.idx import PIXELS, check_sum, read_bytes
from disarm_jax.data.npz import check_array, read_npz
from disarm_jax.data.recorded import RecordedFile
from disarm_jax.data.types import SPLITS, NotFoundError, Progress

PACKED_FILE = "binarized_mnist_packed.npz"
_PACKED_NAMES = ("train", "valid", "test")


def read_folder(
    folder: pathlib.Path, files: Sequence[RecordedFile], progress: Progress
) -> tuple[dict[str, np.ndarray], str]:
    """The splits from a folder with the `.amat` files, or else with the packed file.

    Both forms are verified by the recorded sha256 of the text: the packed bits are written out as it.

    Args:
      folder: where the files are.
      files: the recorded files of train, validation and test.
      progress: told of the files read.

    Returns:
      train, validation and test, `[N, 784]` uint8, 0 or 255, and the path that was read.

    Raises:
      NotFoundError: if the folder has neither form.
      DataError: naming the file, if it differs.
    """
    packed = folder / PACKED_FILE
    missing = [file.name for file in files if not (folder / file.name).is_file()]
    if not missing:
        texts = (read_bytes(folder / file.name) for file in files)
        places = [str(folder / file.name) for file in files]
    elif packed.is_file():
        texts = _packed_texts(packed, files)
        places = [f"{name!r} of {packed}, written out as text," for name in _PACKED_NAMES]
    else:
        raise NotFoundError(f"{folder}: no {', no '.join(missing)}, and no {PACKED_FILE}")
    splits = {}
    for number, (split, text, file, place) in enumerate(zip(SPLITS, texts, files, places, strict=True)):
        check_sum(text, file.size, file.sha256, place)
        digits = np.frombuffer(text, np.uint8).reshape(file.count, 2 * PIXELS)[:, ::2]
        splits[split] = np.where(digits == ord("1"), np.uint8(255), np.uint8(0))
        progress(f"reading {folder.name}", number + 1, len(files))
    return splits, str(packed if missing else folder)


def amat_text(bits: np.ndarray) -> bytes:
    """Bits `[N, 784]` as the text of an `.amat` file: a line of digits, separated by spaces, per image."""
    text = np.full((len(bits), 2 * PIXELS), ord(" "), np.uint8)
    text[:, ::2] = bits + ord("0")
    text[:, -1] = ord("\n")
    return text.tobytes()


def _packed_texts(packed: pathlib.Path, files: Sequence[RecordedFile]):
    contents = read_npz(packed, _PACKED_NAMES)
    for name, file in zip(_PACKED_NAMES, files, strict=True):
        check_array(contents[name], (file.count, PIXELS // 8), f"{name!r} of {packed}")
        yield amat_text(np.unpackbits(contents[name], axis=1))
