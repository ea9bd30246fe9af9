"""`TrainConfig`: one experiment on images as a frozen value; its fields are also the options of `widemargin train`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from ..data.images import MAX_IMAGE_SIZE
from ..io import bounded
from ..io.errors import InputError, spell_option
from ..io.options import Config, document_options, option
from ..losses.grammar import parse_call, parse_keywords, parse_literal

OPTIMIZERS = ("adam", "adamw", "sgd", "muon")
SCHEDULES = ("onecycle", "cosine", "plateau", "constant")
ON_BAD_IMAGE = ("stop", "skip")
CLASS_WEIGHTS = ("none", "balanced", "effective")
PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "64-true")
HEAD_BACKENDS = ("auto", "dense", "stream", "sharded", "sampled")
SAMPLINGS = ("uniform", "balanced", "square_root")
SELECTION_METRICS = ("auto", "top1", "map", "recall1", "tar", "knn")


def parse_mapping(text: str, where: str) -> Any:
    """The mapping of `name=value, …` or of a literal in braces.

    >>> parse_mapping("scale=(0.8, 1), rand=m9", "augment_options"), parse_mapping("{'a b': None}", "model_options")
    ({'scale': (0.8, 1), 'rand': 'm9'}, {'a b': None})
    """
    return parse_literal(text, where) if text.lstrip().startswith("{") else parse_keywords(text, where)


@document_options
@dataclass(frozen=True, repr=False)
class TrainConfig(Config):
    """Data, model, loss and all settings of a training run.

    Defaults are those of the ArcGrad paper for CIFAR-10 (its Table III), except the learning rate.

    >>> TrainConfig("mnist", "fast", lr=0.05, neck=True)
    TrainConfig(data='mnist', model='fast', lr=0.05, neck=True)
    """

    kind: ClassVar[str] = "run"
    command: ClassVar[tuple[str, ...]] = ("widemargin", "train")
    extra_keys: ClassVar[tuple[str, ...]] = ("data_dir", "epochs_changed")

    data: str = option(
        "cifar10",
        "cifar10, cifar100, mnist, fashion_mnist, omniglot, orl_faces, a folder, an index file (CSV or Parquet: path, "
        "label, split), train.rec or its folder, tar shards, or a folder of datasets.save_to_disk",
        positional=True,
        metavar="DATA",
    )
    model: str = option(
        "resnet18",
        "resnet18, resnet34, fast, iresnet18 to iresnet100, mobilefacenet, or any timm model",
        positional=True,
        metavar="MODEL",
    )
    loss: str = option(
        "arcgrad(s=10)",
        'a loss such as "arcgrad(s=10)" or "softmax + 0.02*center"',
        positional=True,
        metavar="LOSS",
    )
    backend: str = option(
        "auto",
        "how the head computes the loss: dense holds all logits, stream processes blocks of classes, sharded splits "
        "the classes over the processes, sampled uses a random part of them (Partial FC), "
        "auto is dense or stream by size",
        choices=HEAD_BACKENDS,
    )
    sample_rate: float = option(
        1.0,
        "fraction of the classes that a step of a sampled or sharded head uses",
        low=0,
        open_low=True,
        high=1,
    )
    epochs: int = option(120, "passes over the training images", low=1)
    batch_size: int = option(256, "images per step, all processes together", low=1)
    seed: int = option(0, "random seed", low=0, high=2**63 - 1)
    opt: str = option("adam", "optimizer", choices=OPTIMIZERS)
    lr: float = option(0.001, "peak learning rate", low=0)
    head_lr_scale: float = option(1.0, "learning rate of the head as a multiple of lr", low=0, open_low=True)
    freeze: str | None = option(
        None,
        "parts of the backbone that are not trained, by the beginning of their names: conv1,layer1; all for all of it",
        kind=str,
        metavar="NAMES",
    )
    freeze_epochs: int = option(
        0,
        "epochs at the start in which only the head and the layers behind the backbone are trained (two stages)",
        low=0,
    )
    weight_decay: float = option(5e-4, "weight decay; not applied to biases, norms and normalised class weights", low=0)
    momentum: float = option(0.9, "momentum of sgd", low=0)
    schedule: str = option("onecycle", "learning rate schedule", choices=SCHEDULES)
    warmup_epochs: float = option(0.0, "epochs of linear learning rate warm-up", low=0)
    warmup_lr: float = option(1e-6, "learning rate at the start of the warm-up", low=0)
    min_lr: float = option(0.0, "learning rate at the end of the cosine schedule", low=0)
    label_smoothing: float = option(
        0.0, "probability mass spread over the other classes", low=0, high=1, open_high=True
    )
    class_weight: str = option(
        "none",
        "weight of each class in the loss: balanced is the inverse of its number of training images, effective the "
        "inverse of their effective number (Cui et al.); scaled to a mean of 1 over the images",
        choices=CLASS_WEIGHTS,
    )
    class_weight_start: float = option(
        0.0,
        "fraction of the training during which every class weight is 1; 0.8 is deferred re-weighting (DRW)",
        low=0,
        high=1,
        open_high=True,
    )
    augment: str = option(
        "paper", 'none, paper (crop and flip), fast, seed, or timm for folders; also "paper(pad=2, mixup=0.8)"'
    )
    augment_options: Mapping[str, Any] = option({}, "options of the augmentation", parse=parse_mapping)
    model_options: Mapping[str, Any] = option({}, "options of the model", parse=parse_mapping)
    neck: bool = option(False, "the embedding neck of the original scripts, 2048 – 512")
    embedding_dim: int = option(
        0, "dimension of the embeddings, by a linear layer after the backbone; 0 keeps the backbone's output", low=0
    )
    repeated_augmentation: int = option(1, "number of times each image is repeated in an epoch, in succession", low=1)
    input_size: int | None = option(None, "pixels along a side", kind=int, low=1, high=MAX_IMAGE_SIZE)
    per_class: int = option(
        0,
        "images of each class in a batch (P×K sampling), for pair and triplet losses; 0 samples images uniformly",
        low=0,
    )
    sampling: str = option(
        "uniform",
        "how often an image is drawn: uniform once an epoch, balanced so that every class is drawn equally often, "
        "square_root by the root of the size of its class",
        choices=SAMPLINGS,
    )
    unseen_classes: float = option(
        0.0,
        "fraction of the classes that is excluded from training and used for the final evaluation only",
        low=0,
        high=1,
        open_high=True,
    )
    label_separator: str | None = option(
        None,
        "separates the labels of an image where they are text, as in red;round; images may then have several labels",
        kind=str,
        metavar="SEP",
    )
    on_bad_image: str = option(
        "stop",
        "what to do with an image that cannot be read: stop, or skip it and count it in the log and the record",
        choices=ON_BAD_IMAGE,
    )
    train_fraction: float = option(1.0, "fraction of the training images that is used", low=0, open_low=True, high=1)
    imbalance: float = option(
        1.0,
        "ratio of the training images of the first class to those of the last: the numbers decrease exponentially, "
        "the images are drawn with the seed; 1 keeps all",
        low=1,
    )
    val_fraction: float = option(
        0.0,
        "fraction of the training images that is held out to select the checkpoint `best`",
        low=0,
        high=1,
        open_high=True,
    )
    val_classes: float = option(
        0.0,
        "fraction of the training classes that is held out whole to select `best`: identities that are neither trained "
        "on nor reported",
        low=0,
        high=1,
        open_high=True,
    )
    select_by: str = option(
        "auto",
        "metric that selects `best`: top1 or map (mean average precision) of held-out images, recall1 or tar (true "
        "accepts at a false accept rate of 0.001, or 0.01 where pairs are few) of their embeddings, knn of the probe; "
        "auto: top1, map or recall1",
        choices=SELECTION_METRICS,
    )
    knn_probe: int = option(
        0,
        "neighbours of a k-NN classification of held-out images by training images, after each epoch; 0: none",
        low=0,
    )
    accumulate: int = option(1, "batches whose gradients are accumulated per optimizer step", low=1)
    clip: float = option(0.0, "maximum gradient norm; 0 disables clipping", low=0)
    ema: float = option(
        0.0, "decay of the moving average of the weights, which is evaluated; 0: none", low=0, high=1, open_high=True
    )
    average_last: int = option(
        0, "epochs at the end whose weights are averaged into the checkpoint `average`, evaluated too; 0: none", low=0
    )
    grad_checkpointing: bool = option(
        False, "recompute activations in the backward pass: less memory, about a third more time"
    )
    precision: str = option("32-true", "numerical precision of a step", choices=PRECISIONS)
    compile: bool = option(False, "compile the step with torch.compile")
    channels_last: bool = option(True, "channels-last memory format, the fastest for convolutions")
    sync_bn: bool = option(
        True, "synchronise batch norm over the GPUs of a run; torch cannot do this for CPU processes"
    )
    ckpt_freq: int = option(0, "epochs between additional checkpoints; 0 keeps only the last one", low=0)
    device: str = option("auto", "auto, cpu, cuda, cuda:1 or mps", metavar="DEVICE")
    init_from: str | None = option(None, "initialise the backbone from another run", kind=str, metavar="RUN")
    name: str | None = option(None, "name of the run (also WANDB_NAME)", kind=str)

    def __post_init__(self) -> None:
        given: Any = self.loss
        if not isinstance(given, str):  # a value such as ArcFace(m=0.3), or a sum of some
            from ..losses.base import Loss
            from ..losses.grammar import Sum

            if isinstance(given, Loss | Sum):
                object.__setattr__(self, "loss", repr(given))
        if isinstance(self.augment, str) and "(" in self.augment:
            name, options = parse_call(self.augment, "augment")
            if both := options.keys() & dict(self.augment_options).keys():
                raise InputError(
                    f"augment and {spell_option('augment_options')} both set {min(both)}; omit one of them"
                )
            object.__setattr__(self, "augment", name)
            object.__setattr__(self, "augment_options", {**options, **self.augment_options})
        super().__post_init__()

    @property
    def data_name(self) -> str:
        """The set's name, or a folder's own without the path to it."""
        return Path(self.data).name

    def to_command(self) -> list[str]:
        """Command line of the same run; options with their default value are omitted.

        `data` must be an absolute path or the canonical name of a set, as the command writes it.

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


def check_combinations(config: TrainConfig) -> None:
    """Refuse settings of a new run that contradict each other; those of a finished run are read as they are."""
    if config.warmup_epochs > config.epochs:
        raise InputError(
            f"{spell_option('warmup_epochs', config.warmup_epochs)} is longer than the run of {config.epochs} epochs, "
            "which would end before its learning rate is reached; use fewer"
        )
    if config.warmup_epochs and config.schedule == "onecycle":
        raise InputError(
            f"{spell_option('warmup_epochs')} has no effect with onecycle, which has its own warm-up; use "
            f"{spell_option('schedule', 'cosine')}"
        )
    if config.val_classes and config.val_fraction:
        raise InputError(
            f"{spell_option('val_classes')} and {spell_option('val_fraction')} both hold images out; use one of them"
        )
    if config.val_classes and config.select_by in ("top1", "map"):
        raise InputError(
            f"{spell_option('select_by', config.select_by)} needs the training classes; with "
            f"{spell_option('val_classes')} use recall1 or tar"
        )
    if config.select_by == "knn" and not config.knn_probe:
        raise InputError(
            f"{spell_option('select_by', 'knn')} needs a number of neighbours: use {spell_option('knn_probe', 20)}"
        )
    if config.average_last > config.epochs:
        raise InputError(
            f"{spell_option('average_last', config.average_last)} is more than the {config.epochs} epochs of the run"
        )


def format_with_options(name: str, options: Mapping[str, Any]) -> str:
    """`name(key=value, …)`; options that are already part of the name come first.

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
