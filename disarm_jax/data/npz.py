"""Arrays in npz files, a user's own images among them. Nothing in a file is executed: pickled objects are refused."""

import pathlib
import zipfile
from collections.abc import Mapping, Sequence

import numpy as np

from disarm_jax.data.types import SPLITS, DataError, NotFoundError
from disarm_jax.untrusted import open_regular

MAX_BYTES = 64 << 30  # of all arrays of a file together, unpacked


def read_own_images(path: pathlib.Path) -> tuple[dict[str, np.ndarray], tuple[int, ...]]:
    """A user's own images from an npz file with the arrays train, validation and test, uint8 `[N, H, W]` or `[N, D]`.

    Args:
      path: of the file; other arrays in it are not looked at.

    Returns:
      train, validation and test, `[N, D]` uint8, and the shape of one image, `(H, W)` or `(D,)`.

    Raises:
      NotFoundError: if there is no such file.
      DataError: naming the file and the array, if it is not such a file.
    """
    if not path.is_file():
        raise NotFoundError(f"{path} is a folder; expected an npz file" if path.is_dir() else f"{path}: no such file")
    return flatten(read_npz(path, SPLITS), str(path))


def flatten(splits: Mapping[str, np.ndarray], origin: str) -> tuple[dict[str, np.ndarray], tuple[int, ...]]:
    """The splits as `[N, D]`, and the shape of one image; refused unless they are images of one shape, uint8.

    Raises:
      DataError: naming the origin and the array.
    """
    image_shape = splits["train"].shape[1:]
    for name, images in splits.items():
        where = f"{name!r} in {origin}"
        if images.ndim not in (2, 3) or images.size == 0:
            raise DataError(f"{where} has the shape {images.shape}; expected [N, H, W] or [N, D], none of them 0")
        check_array(images, (len(images), *image_shape), where)
    return {name: images.reshape(len(images), -1) for name, images in splits.items()}, image_shape


def read_npz(path: pathlib.Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The named arrays of an npz file.

    Raises:
      FileNotFoundError, NotADirectoryError: if there is no such file.
      DataError: naming the file, if it is damaged, lacks an array or holds one that would have to be unpickled.
    """
    try:
        with open_regular(path, links=True) as stream:  # a pipe would never end
            if not zipfile.is_zipfile(stream):
                raise DataError(f"{path} is not a whole npz file")
            with zipfile.ZipFile(stream) as members:
                size = sum(member.file_size for member in members.infolist())
            if size > MAX_BYTES:  # a small file may unpack to anything
                raise DataError(f"{path} unpacks to {size:,} bytes; accepted: at most {MAX_BYTES:,}")
            stream.seek(0)
            contents = np.load(stream, allow_pickle=False)
            missing = [name for name in names if name not in contents.files]
            if missing:
                raise DataError(
                    f"{path} has no array {', '.join(missing)}; it has {', '.join(contents.files) or 'none'}"
                )
            arrays = {name: contents[name] for name in names}
    except (DataError, FileNotFoundError, NotADirectoryError):
        raise
    except Exception as error:  # damage in the right place makes zipfile and numpy raise almost anything
        raise DataError(f"{path} cannot be read as an npz file: {str(error) or type(error).__name__}") from error
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):  # numpy hands out the bytes of a member that is no array
            raise DataError(f"{path} has no array under {name!r}")
    return arrays


def check_array(array: np.ndarray, shape: tuple[int, ...], where: str) -> None:
    """Refuses an array that is not uint8 or has another shape.

    Raises:
      DataError: naming what was found and what was expected.
    """
    if array.dtype != np.uint8:
        raise DataError(f"{where} has the dtype {array.dtype}; expected uint8, 0 to 255")
    if array.shape != shape:
        raise DataError(f"{where} has the shape {array.shape}; expected {shape}")
