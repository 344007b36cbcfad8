"""The official files: names, SHA-256, addresses, licences, and how each is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from equipoise.data import formats
from equipoise.data.dataset import SEEDED_SPLIT, SourceFile, SplitArrays


@dataclass(frozen=True)
class Source:
    """One public data set: its official files, and the reader that turns them into arrays."""

    name: str
    page: str
    files: tuple[SourceFile, ...]
    licence: str
    shape: tuple[int, ...]  # of one image
    classes: tuple[str, ...]
    read: Callable[[formats.Paths], SplitArrays]
    split: str = "official"


def _files(base: str, hashes: dict[str, str]) -> tuple[SourceFile, ...]:
    return tuple(SourceFile(name, sha256, base + name) for name, sha256 in hashes.items())


def _idx_files(base: str, *hashes: str) -> tuple[SourceFile, ...]:
    names = (
        f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
    )
    return _files(base, dict(zip(names, hashes, strict=True)))


DIGITS = tuple("0123456789")
DIGITS_SHA256 = "65e5b4619795efb40c1082f4c350c049e4ad552200d369b6ae99e21eef5e72c5"

_FASHION = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"

_CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck"

_CIFAR100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup
dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower
leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid
otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray
road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""

_SOURCES = (
    Source(
        name="mnist",
        page="http://yann.lecun.com/exdb/mnist/",
        files=_idx_files(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
        licence="Y. LeCun and C. Cortes; commonly stated as CC BY-SA 3.0",
        shape=(28, 28),
        classes=DIGITS,
        read=formats.read_idx_quartet,
    ),
    Source(
        name="fashion_mnist",
        page="https://github.com/zalandoresearch/fashion-mnist",
        files=_idx_files(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
        licence="MIT, Zalando SE 2017",
        shape=(28, 28),
        classes=tuple(_FASHION.split(",")),
        read=formats.read_idx_quartet,
    ),
    Source(
        name="kmnist",
        page="http://codh.rois.ac.jp/kmnist/",
        files=_idx_files(
            "http://codh.rois.ac.jp/kmnist/dataset/kmnist/",
            "51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4",
            "e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17",
            "edd7a857845ad6bb1d0ba43fe7e794d164fe2dce499a1694695a792adfac43c5",
            "20bb9a0ef54c7db3efc55a92eef5582c109615df22683c380526788f98e42a1c",
        ),
        licence="CC BY-SA 4.0; KMNIST Dataset (created by CODH), adapted from Kuzushiji Dataset (NIJL …)",
        shape=(28, 28),
        classes=("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
        read=formats.read_idx_quartet,
    ),
    Source(
        name="cifar10",
        page="https://www.cs.toronto.edu/~kriz/cifar.html",
        files=_files(
            "https://www.cs.toronto.edu/~kriz/",
            {"cifar-10-python.tar.gz": "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"},
        ),
        licence="no licence stated; cite A. Krizhevsky, Learning multiple layers of features, 2009",
        shape=(32, 32, 3),
        classes=tuple(_CIFAR10.split()),
        read=formats.read_cifar10,
    ),
    Source(
        name="cifar100",
        page="https://www.cs.toronto.edu/~kriz/cifar.html",
        files=_files(
            "https://www.cs.toronto.edu/~kriz/",
            {"cifar-100-python.tar.gz": "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7"},
        ),
        licence="no licence stated; cite A. Krizhevsky, Learning multiple layers of features, 2009",
        shape=(32, 32, 3),
        classes=tuple(_CIFAR100.split()),
        read=formats.read_cifar100,
    ),
    Source(
        name="svhn",
        page="http://ufldl.stanford.edu/housenumbers/",
        files=_files(
            "http://ufldl.stanford.edu/housenumbers/",
            {
                "train_32x32.mat": "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
                "test_32x32.mat": "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
            },
        ),
        licence="non-commercial use only; cite Y. Netzer et al., 2011",
        shape=(32, 32, 3),
        classes=DIGITS,
        read=formats.read_svhn,
    ),
    Source(
        name="semeion",
        page="https://archive.ics.uci.edu/dataset/178/semeion+handwritten+digit",
        files=_files(
            "http://archive.ics.uci.edu/ml/machine-learning-databases/semeion/",
            {"semeion.data": "f43228ae3da5ea6a3c95069d53450b86166770e3b719dcc333182128fe08d4b1"},
        ),
        licence="CC BY 4.0 (UCI); Semeion Research Center of Sciences of Communication, Rome",
        shape=(16, 16),
        classes=DIGITS,
        read=formats.read_semeion,
        split=SEEDED_SPLIT,
    ),
)

SOURCES = {source.name: source for source in _SOURCES}
