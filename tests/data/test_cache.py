"""One verified file: whole or not there, whatever happens while it is written."""

import json
import os
import pathlib
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from small_data import assert_splits, random_splits

from disarm_jax import files
from disarm_jax.data import DataError, Dataset, Provenance, cache, load, prepare
from disarm_jax.data.types import sha256_of_arrays

ROOT = pathlib.Path(__file__).resolve().parents[2]


def make_dataset(seed=0, name="mnist"):
    splits = random_splits(seed=seed)
    return Dataset(
        **splits, image_shape=(28, 28), provenance=Provenance(name, "files", "", "", sha256_of_arrays(splits))
    )


@pytest.fixture
def prepared(small_mnist, tmp_path):
    """The cached file of a small MNIST whose originals are gone."""
    prepare("mnist", data_dir=tmp_path / "data", path=small_mnist.folder)
    for file in small_mnist.files:
        (small_mnist.folder / file.name).unlink()
    return tmp_path / "data" / "mnist.npz"


def test_later_loads_need_no_source(prepared, small_mnist):
    for source in ("auto", "files", "tfds", "packages"):
        assert_splits(load("mnist", source=source, data_dir=prepared.parent), small_mnist.splits)
    assert os.listdir(prepared.parent) == ["mnist.npz"]


def test_where_the_file_is(small_mnist, own_folders, tmp_path, monkeypatch):
    prepare("mnist", path=small_mnist.folder)
    assert (own_folders / ".cache/disarm_jax/mnist.npz").is_file()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    prepare("mnist", path=small_mnist.folder)
    assert (tmp_path / "xdg/disarm_jax/mnist.npz").is_file()
    monkeypatch.setenv("DISARM_DATA_DIR", "~/mine")
    prepare("mnist", path=small_mnist.folder)
    assert (own_folders / "mine/mnist.npz").is_file()


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.9, 0.999])
def test_a_file_cut_short_is_named_with_the_command_that_mends_it(prepared, share):
    data = prepared.read_bytes()
    prepared.write_bytes(data[: int(share * len(data))])
    with pytest.raises(DataError, match="cut short or damaged") as raised:
        load("mnist", data_dir=prepared.parent)
    assert str(prepared) in str(raised.value)
    command = f"python -m scripts.prepare_data --dataset mnist --data_dir {prepared.parent} --source packages"
    assert command in str(raised.value)


def test_a_changed_pixel_is_noticed(prepared, small_mnist):
    data = bytearray(prepared.read_bytes())
    data[data.find(small_mnist.splits["test"].tobytes())] ^= 1
    prepared.write_bytes(data)
    with pytest.raises(DataError, match="cut short or damaged"):  # by the sum in the zip archive
        load("mnist", data_dir=prepared.parent)


def rewrite(file, **changes):
    with np.load(file) as contents:
        arrays = dict(contents)
    np.savez(file, **(arrays | changes))


def test_other_images_are_refused(prepared, small_mnist):
    other = small_mnist.splits["train"].copy()
    other[0, 0] ^= 1
    rewrite(prepared, train=other)
    with pytest.raises(DataError, match="its images do not have the sha256 written beside them"):
        load("mnist", data_dir=prepared.parent)
    cache.write(prepared, make_dataset(seed=5))  # whole and consistent, but not MNIST
    with pytest.raises(DataError, match="does not hold the images of mnist: train has the sha256"):
        load("mnist", data_dir=prepared.parent)
    cache.write(prepared, make_dataset(name="fashion_mnist"))
    with pytest.raises(DataError, match="holds fashion_mnist"):
        load("mnist", data_dir=prepared.parent)


def test_another_record_or_a_pickle_is_refused(prepared, tmp_path):
    class Trap:
        def __reduce__(self):
            return (pathlib.Path.touch, (tmp_path / "executed",))

    rewrite(prepared, provenance=np.frombuffer(json.dumps({"made": "elsewhere"}).encode(), np.uint8))
    with pytest.raises(DataError, match="another provenance record"):
        load("mnist", data_dir=prepared.parent)
    rewrite(prepared, provenance=np.array([Trap()], dtype=object))
    with pytest.raises(DataError, match="allow_pickle=False"):
        load("mnist", data_dir=prepared.parent)
    assert not (tmp_path / "executed").exists()


def test_preparing_again_mends_a_damaged_file(small_mnist, tmp_path):
    file = tmp_path / "mnist.npz"
    file.write_bytes(b"cut")
    prepare("mnist", data_dir=tmp_path, path=small_mnist.folder)
    assert_splits(load("mnist", data_dir=tmp_path), small_mnist.splits)


@pytest.mark.parametrize("folder", ["a_file/data", "/proc/disarm_jax"])
def test_an_unwritable_folder_is_refused_by_name(small_mnist, tmp_path, folder):
    (tmp_path / "a_file").write_text("not a folder")
    data_dir = tmp_path / folder
    with pytest.raises(DataError, match="cannot write to the data folder") as raised:
        load("mnist", data_dir=data_dir, path=small_mnist.folder)
    assert str(data_dir) in str(raised.value)
    assert "DISARM_DATA_DIR" in str(raised.value)
    assert sorted(os.listdir(tmp_path)) == ["a_file", "originals"]


def test_a_read_only_folder_is_refused_before_any_work(small_mnist, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *args: False)  # root may write everywhere
    with pytest.raises(DataError, match=f"{tmp_path} is not writable"):
        load("mnist", data_dir=tmp_path / "data", path=tmp_path / "nothing there")


def run(code, *args):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests/data'}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path):
    file = tmp_path / "data/mnist.npz"
    cache.write(file, make_dataset())
    before = file.read_bytes()
    new = tmp_path / "new/mnist.npz"
    full = """
        import pathlib, resource, signal, sys
        from disarm_jax.data import DataError, cache
        from test_cache import make_dataset
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))  # as good as a disk with 8 kB left
        for file in sys.argv[1:]:
            try:
                cache.write(pathlib.Path(file), make_dataset(seed=1))
            except DataError as error:
                print(error)
    """
    out, err = (process := run(full, file, new)).communicate(timeout=60)
    assert process.returncode == 0, err
    for folder in (file.parent, new.parent):
        assert f"cannot write to the data folder {folder}: File too large" in out
    assert os.listdir(tmp_path) == ["data"]
    assert os.listdir(file.parent) == ["mnist.npz"]
    assert file.read_bytes() == before


def test_two_processes_may_write_at_once(tmp_path):
    """Two writers and this reader, all at the same file: it is whole and one of the two at every moment."""
    file = tmp_path / "data/mnist.npz"
    writer = """
        import pathlib, sys
        from disarm_jax.data import cache
        from test_cache import make_dataset
        dataset = make_dataset(seed=int(sys.argv[2]))
        for _ in range(30):
            cache.write(pathlib.Path(sys.argv[1]), dataset)
    """
    writers = [run(writer, file, seed) for seed in (0, 1)]
    sums = [make_dataset(seed).provenance.sha256 for seed in (0, 1)]
    reads = 0
    while any(process.poll() is None for process in writers):
        dataset = cache.read(file)
        if dataset is not None:
            assert dataset.provenance.sha256 in sums
            reads += 1
    for process in writers:
        err = process.communicate()[1]
        assert process.returncode == 0, err
    assert reads > 0
    assert os.listdir(file.parent) == ["mnist.npz"]
    assert file.stat().st_mode & 0o077 == 0o666 & ~files._umask() & 0o077
