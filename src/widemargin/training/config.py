"""`TrainConfig`: one experiment on images as a frozen value; its fields are also the options of `widemargin train`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from ..data.images import MAX_IMAGE_SIZE
from ..io import bounded
from ..io.errors import InputError
from ..io.options import Config, document_options, option
from ..losses.grammar import parse_keywords, parse_literal

OPTIMIZERS = ("adam", "adamw", "sgd", "muon")
SCHEDULES = ("onecycle", "cosine", "plateau", "constant")
PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "64-true")


def parse_mapping(text: str, where: str) -> Any:
    """The mapping of `name=value, …` or of a literal in braces.

    >>> parse_mapping("scale=(0.8, 1), rand=m9", "augment_options"), parse_mapping("{'a b': None}", "model_options")
    ({'scale': (0.8, 1), 'rand': 'm9'}, {'a b': None})
    """
    return parse_literal(text, where) if text.lstrip().startswith("{") else parse_keywords(text, where)


@document_options
@dataclass(frozen=True, repr=False)
class TrainConfig(Config):
    """What is trained, on what, and how. Defaults are the paper's for CIFAR-10 (its Table III), except the rate.

    >>> TrainConfig("mnist", "fast", lr=0.05, neck=True)
    TrainConfig(data='mnist', model='fast', lr=0.05, neck=True)
    """

    kind: ClassVar[str] = "run"
    command: ClassVar[tuple[str, ...]] = ("widemargin", "train")
    extra_keys: ClassVar[tuple[str, ...]] = ("data_dir", "epochs_changed")

    data: str = option(
        "cifar10",
        "cifar10, cifar100, mnist, fashion_mnist, omniglot, orl_faces, or a folder",
        positional=True,
        metavar="DATA",
    )
    model: str = option("resnet18", "resnet18, resnet34, fast, or any timm model", positional=True, metavar="MODEL")
    loss: str = option(
        "arcgrad(s=10)",
        'a loss such as "arcgrad(s=10)" or "softmax + 0.02*center"',
        positional=True,
        metavar="LOSS",
    )
    epochs: int = option(120, "passes over the training images", low=1)
    batch_size: int = option(256, "images per step, all processes together", low=1)
    seed: int = option(0, "start of every random draw", low=0, high=2**63 - 1)
    opt: str = option("adam", "optimizer", choices=OPTIMIZERS)
    lr: float = option(0.001, "peak learning rate", low=0)
    weight_decay: float = option(5e-4, "weight decay, on matrices whose length matters", low=0)
    momentum: float = option(0.9, "momentum of sgd", low=0)
    schedule: str = option("onecycle", "learning rate over the steps", choices=SCHEDULES)
    warmup_epochs: float = option(0.0, "epochs that lead up to the rate", low=0)
    warmup_lr: float = option(1e-6, "rate that the warm-up begins with", low=0)
    min_lr: float = option(0.0, "rate that the cosine ends with", low=0)
    label_smoothing: float = option(
        0.0, "probability mass spread over the other classes", low=0, high=1, open_high=True
    )
    augment: str = option(
        "paper", 'none, paper (crop and flip), fast, seed, or timm for folders; also "paper(pad=2, mixup=0.8)"'
    )
    augment_options: Mapping[str, Any] = option({}, "options of the augmentation", parse=parse_mapping)
    model_options: Mapping[str, Any] = option({}, "options of the model", parse=parse_mapping)
    neck: bool = option(False, "the seeds' embedding neck, 2048 – 512")
    embedding_dim: int = option(
        0, "length of the embeddings, by a linear layer behind the backbone; 0 keeps the backbone's own", low=0
    )
    repeated_augmentation: int = option(1, "how often each image stands in an epoch, one after the other", low=1)
    input_size: int | None = option(None, "pixels along a side", kind=int, low=1, high=MAX_IMAGE_SIZE)
    per_class: int = option(
        0,
        "images of each class in a batch, for losses on pairs and triplets (P×K); 0 takes images as they come",
        low=0,
    )
    unseen_classes: float = option(
        0.0,
        "part of the classes that is kept back entirely, to be evaluated on; they choose nothing",
        low=0,
        high=1,
        open_high=True,
    )
    train_fraction: float = option(1.0, "part of the training images that is used", low=0, open_low=True, high=1)
    val_fraction: float = option(
        0.0,
        "part of the training images kept back to choose the checkpoint `best` by; nothing else does",
        low=0,
        high=1,
        open_high=True,
    )
    accumulate: int = option(1, "steps whose gradients are added before one is taken", low=1)
    clip: float = option(0.0, "largest gradient norm; 0 does not clip", low=0)
    ema: float = option(
        0.0, "decay of averaged weights, which are then evaluated; 0 keeps none", low=0, high=1, open_high=True
    )
    precision: str = option("32-true", "number format of a step", choices=PRECISIONS)
    compile: bool = option(False, "torch.compile the step")
    channels_last: bool = option(True, "memory format of images and weights, the fastest for convolutions")
    sync_bn: bool = option(
        True, "batch norm over all GPUs of a run; torch has none over CPU processes, so it is left out there"
    )
    ckpt_freq: int = option(0, "epochs between checkpoints that are kept, beside the last one; 0 keeps none", low=0)
    init_from: str | None = option(None, "start with the backbone of another run", kind=str, metavar="RUN")
    name: str | None = option(None, "what the run is called (also WANDB_NAME)", kind=str)

    def __post_init__(self) -> None:
        given: Any = self.loss
        if not isinstance(given, str):  # a value such as ArcFace(m=0.3), or a sum of some
            from ..losses.base import Loss
            from ..losses.grammar import Sum

            if isinstance(given, Loss | Sum):
                object.__setattr__(self, "loss", repr(given))
        super().__post_init__()

    @property
    def data_name(self) -> str:
        """The set's name, or a folder's own without the path to it."""
        return Path(self.data).name

    def to_command(self) -> list[str]:
        """Words that describe the same run when they are typed again; what is as by default is left out.

        A folder must be given by its whole path, and a set by its usual name, as the command itself writes them.

        >>> config = TrainConfig("mnist", "fast", "arcgrad(s=10)", lr=0.05, neck=True, repeated_augmentation=3)
        >>> print(*config.to_command())
        widemargin train mnist fast arcgrad(s=10) --lr 0.05 --neck --repeated-augmentation 3
        """
        return super().to_command()

    @classmethod
    def read(cls, folder: str | Path) -> Self:
        """The config of a run folder, from its `run.json`."""
        path = Path(folder) / "run.json"
        try:
            return cls.from_json(bounded.read_file(path, bounded.MAX_JSON_BYTES), str(path))
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror or error}); is {folder} a run?") from None


def format_with_options(name: str, options: Mapping[str, Any]) -> str:
    """A name with options as we write them everywhere; those that stand in the name already come first.

    >>> format_with_options("fast", {}), format_with_options("resnet18(stem_type=deep)", {"output_stride": 8})
    ('fast', 'resnet18(stem_type=deep, output_stride=8)')
    """
    if not options:
        return name
    inside = ", ".join(f"{key}={value!r}" for key, value in options.items())
    before = name.strip().removesuffix(")")
    if before == name.strip():
        return f"{before}({inside})"
    return f"{before}{inside})" if before.rstrip().endswith(("(", ",")) else f"{before}, {inside})"
