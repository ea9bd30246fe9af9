"""The image sets that are known by name: where they come from, what is in their files, and how to tell them apart.

Hashes are of the unpacked files where the authors' are known (CIFAR-10, MNIST), else of what is downloaded.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OriginalFile:
    """One original: its name, how many images (or labels) it holds, its SHA-256 when unpacked."""

    name: str
    num_items: int
    sha256: str | None = None


@dataclass(frozen=True)
class ImageSetEntry:
    """One set: its files in order, the folders they usually lie in, and the addresses to fetch them from."""

    name: str
    file_format: str  # "cifar": label bytes and pixels in one record; "idx": images and labels in files of their own
    shape: tuple[int, int, int]
    train: tuple[OriginalFile, ...]
    test: tuple[OriginalFile, ...]
    folders: tuple[str, ...]
    urls: tuple[str, ...]  # one archive of all files ("cifar"), or folders that hold each file as .gz ("idx")
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    citation: str
    download_sha256: tuple[tuple[str, str], ...] = ()  # SHA-256 of what is downloaded, by file name
    num_coarse_classes: int = 0  # classes of the label byte before the one that counts; 0: there is none
    class_names_file: str = ""  # lists the class names, one a line

    @property
    def files(self) -> tuple[OriginalFile, ...]:
        return self.train + self.test

    @property
    def record_bytes(self) -> int:
        """Bytes of one image with its labels in a CIFAR file."""
        channels, height, width = self.shape
        return 1 + (self.num_coarse_classes > 0) + channels * height * width


_CIFAR100_CLASS_NAMES = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
    flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
    motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
    poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
    squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
    wardrobe whale willow_tree wolf woman worm
"""

_CIFAR_CITATION = "A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"


def _idx_files(
    part: str, count: int, images: str | None = None, labels: str | None = None
) -> tuple[OriginalFile, OriginalFile]:
    return OriginalFile(f"{part}-images-idx3-ubyte", count, images), OriginalFile(
        f"{part}-labels-idx1-ubyte", count, labels
    )


_IMAGE_SET_ENTRIES = (
    ImageSetEntry(
        name="cifar10",
        file_format="cifar",
        shape=(3, 32, 32),
        train=(
            OriginalFile("data_batch_1.bin", 10000, "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
            OriginalFile("data_batch_2.bin", 10000, "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
            OriginalFile("data_batch_3.bin", 10000, "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
            OriginalFile("data_batch_4.bin", 10000, "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
            OriginalFile("data_batch_5.bin", 10000, "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
        ),
        test=(
            OriginalFile("test_batch.bin", 10000, "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
        ),
        folders=("cifar-10-batches-bin",),
        urls=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
        class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        citation=_CIFAR_CITATION,
        download_sha256=(
            ("cifar-10-binary.tar.gz", "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"),
        ),
    ),
    ImageSetEntry(
        name="cifar100",
        file_format="cifar",
        shape=(3, 32, 32),
        train=(OriginalFile("train.bin", 50000),),
        test=(OriginalFile("test.bin", 10000),),
        folders=("cifar-100-binary",),
        urls=("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
        class_names=tuple(_CIFAR100_CLASS_NAMES.split()),
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        citation=_CIFAR_CITATION,
        download_sha256=(
            ("cifar-100-binary.tar.gz", "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"),
        ),
        num_coarse_classes=20,
        class_names_file="fine_label_names.txt",
    ),
    ImageSetEntry(
        name="mnist",
        file_format="idx",
        shape=(1, 28, 28),
        train=_idx_files(
            "train",
            60000,
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        ),
        test=_idx_files(
            "t10k",
            10000,
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
        folders=("MNIST/raw", "mnist/raw", "MNIST", "mnist", "raw"),
        urls=("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
        class_names=tuple("0123456789"),
        mean=(0.1307,),
        std=(0.3081,),
        citation="Y. LeCun, C. Cortes, C. Burges, The MNIST database of handwritten digits, 1998",
    ),
    ImageSetEntry(
        name="fashion_mnist",
        file_format="idx",
        shape=(1, 28, 28),
        train=_idx_files("train", 60000),
        test=_idx_files("t10k", 10000),
        folders=("FashionMNIST/raw", "fashion_mnist/raw", "FashionMNIST", "fashion_mnist", "fashion-mnist", "raw"),
        urls=(
            "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
        class_names=(
            "T-shirt/top",
            "Trouser",
            "Pullover",
            "Dress",
            "Coat",
            "Sandal",
            "Shirt",
            "Sneaker",
            "Bag",
            "Ankle boot",
        ),
        mean=(0.2860,),
        std=(0.3530,),
        citation="H. Xiao, K. Rasul, R. Vollgraf, Fashion-MNIST, arXiv 1708.07747, 2017",
        download_sha256=(
            ("train-images-idx3-ubyte.gz", "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
            ("train-labels-idx1-ubyte.gz", "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
            ("t10k-images-idx3-ubyte.gz", "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
            ("t10k-labels-idx1-ubyte.gz", "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
        ),
    ),
)

IMAGE_SETS = {entry.name: entry for entry in _IMAGE_SET_ENTRIES}
