import io
import pathlib

import numpy as np
import pytest
from small_data import assert_splits

from disarm_jax.data import DataError, datasets, load, network, omniglot, recorded

scipy_io = pytest.importorskip("scipy.io")

COUNTS = (7, 2, 4)


def mat_bytes(**changes):
    """A file built like chardata.mat, with multiples of 1/255, and the splits it must give."""
    rng = np.random.default_rng(0)
    train, test = (rng.integers(0, 256, (count, 28, 28), np.uint8) for count in (COUNTS[0] + COUNTS[1], COUNTS[2]))
    columns = lambda images: images.transpose(2, 1, 0).reshape(784, -1) / 255  # column by column, one image per column
    stream = io.BytesIO()
    contents = {"data": columns(train), "testdata": columns(test), "target": np.zeros((50, 9))} | changes
    scipy_io.savemat(stream, contents)
    train, test = train.reshape(-1, 784), test.reshape(-1, 784)
    return stream.getvalue(), {"train": train[:7], "validation": train[7:], "test": test}


@pytest.fixture
def small_omniglot(monkeypatch):
    data, splits = mat_bytes()
    monkeypatch.setattr(recorded, "CHARDATA_GIT_BLOB", omniglot.git_blob_hash(data))
    monkeypatch.setitem(datasets._ENTRIES, "omniglot", datasets._ENTRIES["omniglot"]._replace(counts=COUNTS))
    return data, splits


def test_git_blob_hash():
    assert omniglot.git_blob_hash(b"hello\n") == "ce013625030ba8dba906f756967f9e9ca394464a"  # git hash-object


def test_the_splits_of_burda_et_al():
    assert datasets._ENTRIES["omniglot"].counts == (23_000, 1_345, 8_070)
    assert recorded.CHARDATA_GIT_BLOB == "016a3536ffe5e1d38e42563a18d7a78bfaf643ec"


def test_from_a_folder_then_from_the_cache(small_omniglot, tmp_path):
    data, splits = small_omniglot
    (tmp_path / "omniglot").mkdir()
    (tmp_path / "omniglot/chardata.mat").write_bytes(data)
    assert_splits(load("omniglot", data_dir=tmp_path), splits)
    (tmp_path / "omniglot/chardata.mat").unlink()
    assert_splits(load("omniglot", data_dir=tmp_path), splits)


def test_any_other_file_is_refused(small_omniglot, tmp_path, monkeypatch):
    data, _ = small_omniglot
    for other in (data[:-1], data + b"\0", b"", mat_bytes(data=np.zeros((784, 9)))[0]):
        (tmp_path / "chardata.mat").write_bytes(other)
        for source in ("auto", "files"):
            with pytest.raises(DataError, match="is refused: its git blob hash is") as raised:
                load("omniglot", source=source, data_dir=tmp_path / "data", path=tmp_path)
            assert str(tmp_path / "chardata.mat") in str(raised.value)
    monkeypatch.undo()
    (tmp_path / "chardata.mat").write_bytes(data)  # well formed, but not the genuine one
    with pytest.raises(DataError, match="theirs is 016a3536"):
        load("omniglot", data_dir=tmp_path / "data", path=tmp_path)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"data": np.zeros((784, 8))}, r"the shape \(784, 8\) under 'data'; expected the shape \(784, 9\)"),
        ({"testdata": np.full((784, 4), 2.0)}, "values from 2.0 to 2.0 under 'testdata'"),
        ({"testdata": np.full((784, 4), np.nan)}, "values from nan"),
    ],
)
def test_contents_are_checked(changes, reason, monkeypatch):
    data, _ = mat_bytes(**changes)
    monkeypatch.setattr(recorded, "CHARDATA_GIT_BLOB", omniglot.git_blob_hash(data))
    with pytest.raises(DataError, match=reason):
        omniglot.parse(data, COUNTS, "chardata.mat")


def test_download(small_omniglot, tmp_path, monkeypatch, serve):
    data, splits = small_omniglot
    monkeypatch.setattr(recorded, "CHARDATA_URL", serve({"/chardata.mat": data}) + "/chardata.mat")
    reports = []
    dataset = load("omniglot", data_dir=tmp_path, progress=lambda *report: reports.append(report))
    assert_splits(dataset, splits)
    assert dataset.provenance.source == "download"
    assert reports[-1] == ("downloading chardata.mat", len(data), len(data))


def test_a_download_of_other_bytes_is_refused(small_omniglot, tmp_path, monkeypatch, serve):
    monkeypatch.setattr(recorded, "CHARDATA_URL", serve({"/chardata.mat": b"<html>"}) + "/chardata.mat")
    with pytest.raises(DataError, match="is refused: its git blob hash is"):
        load("omniglot", data_dir=tmp_path / "data")
    monkeypatch.setattr(omniglot, "_SIZE_LIMIT", 3)
    with pytest.raises(DataError, match="longer than 3 bytes"):
        load("omniglot", data_dir=tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_download_that_breaks_off_is_refused(small_omniglot, tmp_path, monkeypatch, serve):
    data, _ = small_omniglot
    half = serve({"/chardata.mat": data[: len(data) // 2]}, promise=len(data))
    monkeypatch.setattr(recorded, "CHARDATA_URL", half + "/chardata.mat")
    with pytest.raises(DataError, match=f"broke off after {len(data) // 2:,} of {len(data):,} bytes"):
        load("omniglot", data_dir=tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_an_address_without_the_file_is_named(small_omniglot, tmp_path, monkeypatch, serve):
    monkeypatch.setattr(recorded, "CHARDATA_URL", serve({}) + "/chardata.mat")
    with pytest.raises(DataError, match=r"127\.0\.0\.1:\d+ cannot be reached \(Not Found\)"):
        load("omniglot", data_dir=tmp_path / "data")


def test_the_stand_in_is_not_omniglot(shared_data, tmp_path):
    stand_in = (shared_data / "omniglot/omniglot_28x28_box.npz").read_bytes()
    pathlib.Path(tmp_path / "chardata.mat").write_bytes(stand_in)
    with pytest.raises(DataError, match="of Burda et al"):
        load("omniglot", data_dir=tmp_path / "data", path=tmp_path)


def test_a_silent_server_is_given_up_soon(silent_server, monkeypatch):
    monkeypatch.setattr(network, "_PROBE_SECONDS", 0.3)
    with pytest.raises(DataError, match=r"no answer in 0\.3 seconds|timed out"):
        network.check_reachable(silent_server)


def test_the_probes_together_stay_under_twenty_seconds():
    from disarm_jax.data import packages

    assert network._PROBE_SECONDS <= 10
    assert packages._PROBE_SECONDS <= 10
