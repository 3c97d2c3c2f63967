"""Prepared tensorflow-datasets copies, written here record by record and read without TensorFlow."""

import importlib.util
import io
import json
import pathlib
import sys

import numpy as np
import pytest
from small_data import assert_splits, make_idx_set

from disarm_jax.data import DataError, load, network, tfds

pytest.importorskip("tensorflow_datasets")
pytest.importorskip("array_record")
Image = pytest.importorskip("PIL.Image")

FEATURES = {
    "pythonClassName": "tensorflow_datasets.core.features.features_dict.FeaturesDict",
    "featuresDict": {
        "features": {
            "image": {
                "pythonClassName": "tensorflow_datasets.core.features.image_feature.Image",
                "image": {"dtype": "uint8", "shape": {"dimensions": ["28", "28", "1"]}},
            }
        }
    },
}


def write_copy(data_dir, images, file_format="array_record", version="3.0.1"):
    """Writes `{split: [N, 784]}` as tensorflow-datasets would: one shard per split, in the order of its hash."""
    from array_record.python.array_record_module import ArrayRecordWriter
    from tensorflow_datasets.core import hashing
    from tensorflow_datasets.proto import tf_example_pb2

    folder = pathlib.Path(data_dir) / "mnist" / version
    folder.mkdir(parents=True)
    for split, rows in images.items():
        writer = ArrayRecordWriter(str(folder / f"mnist-{split}.array_record-00000-of-00001"), "group_size:1")
        hasher = hashing.Hasher(split)
        for number in sorted(range(len(rows)), key=hasher.hash_key):
            png = io.BytesIO()
            Image.fromarray(rows[number].reshape(28, 28)).save(png, "PNG")
            example = tf_example_pb2.Example()
            example.features.feature["image"].bytes_list.value.append(png.getvalue())
            writer.write(example.SerializeToString())
        writer.close()
    template = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
    splits = [
        {"name": split, "shardLengths": [str(len(rows))], "numBytes": "1", "filepathTemplate": template}
        for split, rows in images.items()
    ]
    info = {"name": "mnist", "version": version, "fileFormat": file_format, "splits": splits}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    (folder / "features.json").write_text(json.dumps(FEATURES))
    return folder


def tfds_splits(splits):
    return {"train": np.concatenate([splits["train"], splits["validation"]]), "test": splits["test"]}


@pytest.mark.parametrize("place", ["path", "data_dir", "TFDS_DATA_DIR", "~/tensorflow_datasets"])
def test_a_prepared_copy_gives_the_images_of_the_files_in_their_order(
    small_mnist, own_folders, tmp_path, monkeypatch, place
):
    folders = {"data_dir": tmp_path / "data", "~/tensorflow_datasets": own_folders / "tensorflow_datasets"}
    copy = folders.get(place, tmp_path / "copy")
    version = write_copy(copy, tfds_splits(small_mnist.splits))
    if place == "TFDS_DATA_DIR":
        monkeypatch.setenv(place, str(copy))
    dataset = load("mnist", data_dir=tmp_path / "data", path=copy if place == "path" else None)
    assert_splits(dataset, small_mnist.splits)
    assert dataset.provenance.source == "tfds"
    assert dataset.provenance.origin == str(version)
    assert "tensorflow" not in sys.modules
    assert (tmp_path / "data/mnist.npz").is_file()


def test_the_order_is_that_of_tensorflow_datasets():
    from tensorflow_datasets.core import hashing

    hasher = hashing.Hasher("train")
    np.testing.assert_array_equal(tfds.original_order("train", 1000), sorted(range(1000), key=hasher.hash_key))


def test_a_damaged_copy_is_refused_by_name(small_mnist, tmp_path):
    version = write_copy(tmp_path / "copy", tfds_splits(small_mnist.splits))
    shard = version / "mnist-train.array_record-00000-of-00001"
    whole = shard.read_bytes()
    shard.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="cannot be read") as raised:
        load("mnist", source="tfds", data_dir=tmp_path / "data", path=tmp_path / "copy")
    assert str(version) in str(raised.value)
    shard.unlink()
    with pytest.raises(DataError, match="cannot be read"):
        load("mnist", source="tfds", data_dir=tmp_path / "data", path=tmp_path / "copy")
    (version / "dataset_info.json").write_text("{")
    with pytest.raises(DataError, match=r"dataset_info.json is damaged"):
        load("mnist", source="tfds", data_dir=tmp_path / "data", path=tmp_path / "copy")
    assert not (tmp_path / "data").exists()


def test_a_copy_with_other_images_is_refused(small_mnist, tmp_path, monkeypatch):
    other = make_idx_set(monkeypatch, tmp_path / "fashion", "fashion_mnist", seed=1)
    version = write_copy(tmp_path / "copy", tfds_splits(other.splits))
    with pytest.raises(DataError, match=f"{version} does not hold the images of mnist: train has the sha256"):
        load("mnist", source="tfds", data_dir=tmp_path / "data", path=tmp_path / "copy")
    few = {name: images[:-1] for name, images in tfds_splits(small_mnist.splits).items()}
    write_copy(tmp_path / "few", few)
    with pytest.raises(DataError, match="has 15 train images; expected 16"):
        load("mnist", source="tfds", data_dir=tmp_path / "data", path=tmp_path / "few")
    assert not (tmp_path / "data").exists()


def test_a_copy_that_only_tensorflow_reads_is_mentioned(small_mnist, tmp_path, monkeypatch):
    monkeypatch.setattr(network, "_PROBE_SECONDS", 0.5)
    version = write_copy(tmp_path / "copy", tfds_splits(small_mnist.splits), file_format="tfrecord")
    with pytest.raises(DataError, match=f"{version} is in the format tfrecord, only array_record is read"):
        load("mnist", source="tfds", data_dir=tmp_path / "data", path=tmp_path / "copy")


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is not None, reason="TensorFlow is installed")
def test_without_tensorflow_the_message_says_so(small_mnist, tmp_path):
    with pytest.raises(DataError, match="TensorFlow, which only this source needs, is not installed") as raised:
        load("mnist", source="tfds", data_dir=tmp_path / "data")
    assert "pip install tensorflow-cpu" in str(raised.value)


@pytest.mark.parametrize("outcome", ["prepared", "failed"])
def test_preparing_runs_apart_and_leaves_nothing(small_mnist, tmp_path, monkeypatch, outcome):
    """The other process is played by a script that copies a prepared copy, or fails, after writing to its folder."""
    write_copy(tmp_path / "copy", tfds_splits(small_mnist.splits))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tfds.tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(tfds.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(tfds, "check_reachable", lambda url: None)
    script = f"""
import shutil, sys
assert sys.argv[1] == "mnist" and sys.argv[3] == ""
shutil.copytree({str(tmp_path / "copy")!r}, sys.argv[2], dirs_exist_ok=True)
print("noise")
if {outcome!r} == "failed":
    print({tfds._MARK!r} + "OSError: the reason")
    sys.exit(1)
"""
    monkeypatch.setattr(tfds, "_PREPARE", script)
    if outcome == "prepared":
        dataset = load("mnist", source="tfds", data_dir=tmp_path / "data")
        assert_splits(dataset, small_mnist.splits)
        assert "mnist 3.0.1 downloaded" in dataset.provenance.origin
    else:
        with pytest.raises(DataError, match=r"could not prepare mnist: OSError: the reason\n"):
            load("mnist", source="tfds", data_dir=tmp_path / "data")
        assert not (tmp_path / "data").exists()
    assert not list((tmp_path / "temporary").iterdir())


def test_without_a_network_nothing_is_begun(small_mnist, tmp_path, monkeypatch):
    monkeypatch.setattr(tfds.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(tfds, "_PREPARE", "raise SystemExit('must not run')")
    with pytest.raises(DataError, match=r"127\.0\.0\.1:9 cannot be reached"):  # nothing listens there
        load("mnist", source="tfds", data_dir=tmp_path / "data")
    with pytest.raises(DataError, match=r"127\.0\.0\.1:9 cannot be reached"):  # the labels are not in the folder
        load("mnist", source="tfds", data_dir=tmp_path / "data", path=small_mnist.folder)
