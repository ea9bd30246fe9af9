"""`widemargin train`: images, in our own spelling and in the seeds'."""

from __future__ import annotations

import argparse
import os
import re
from typing import TYPE_CHECKING, Any

from ..printable import print_escaped
from .evaluate import ASSIGN_NEW_HELP

if TYPE_CHECKING:
    from ..run import TrainConfig

# What the seeds' script does when nothing is said (FORMULAS of the sources): only under --margin-loss.
_SEED_DEFAULTS: dict[str, Any] = {
    "epochs": 100,
    "warmup_epochs": 5.0,
    "warmup_lr": 1e-6,
    "min_lr": 1e-5,
    "schedule": "cosine",
    "augment": "seed",
    "neck": True,
    "weight_decay": 0.05,
    "opt": "adamw",
}
_NUMERIC_OPTIONS: tuple[tuple[str, Any, str], ...] = (
    ("epochs", int, "passes over the training images"),
    ("batch-size", int, "images per step, all processes together"),
    ("accumulate", int, "steps whose gradients are added before one is taken"),
    ("lr", float, "peak learning rate"),
    ("min-lr", float, "where the cosine ends"),
    ("warmup-epochs", float, "epochs that lead up to the rate"),
    ("warmup-lr", float, "where they begin"),
    ("weight-decay", float, "on matrices whose length matters"),
    ("momentum", float, "of sgd"),
    ("smoothing", float, "label smoothing"),
    ("clip", float, "largest gradient norm; 0 does not clip"),
    ("ema", float, "decay of averaged weights, which are then judged; 0 keeps none"),
    ("share", float, "part of the training images that is used"),
    ("dim", int, "length of the embeddings, by a linear layer; 0 keeps the backbone's own"),
    ("per-class", int, "images of each class in a batch, for losses on pairs and triplets (P×K)"),
    ("unseen", float, "part of the classes that is kept back entirely, to be judged on; they choose nothing"),
    ("hold-out", float, "part of the training images kept back to choose the checkpoint `best` by; nothing else does"),
    ("input-size", int, "pixels along a side, at most 4096"),
    ("ckpt-freq", int, "epochs between checkpoints that are kept"),
    ("seed", int, "start of every random draw"),
)
_BOOLEAN_OPTIONS: tuple[tuple[str, str], ...] = (
    ("neck", "the seeds' embedding neck, 2048 – 512"),
    ("compile", "torch.compile the step"),
    ("channels-last", "lay images out as kernels like them best (default)"),
    (
        "sync-bn",
        "batch norm over all GPUs of a run (default); torch has none over CPU processes, so it is left out there",
    ),
)

_CHOICE_OPTIONS: tuple[tuple[str, str], ...] = (
    ("opt", "adam, adamw, sgd or muon"),
    ("schedule", "onecycle, cosine, plateau or constant"),
    ("augment", 'none, paper (crop and flip), fast, seed, or timm for folders; also "paper(pad=2, mixup=0.8)"'),
    ("precision", "32-true, bf16-mixed, 16-mixed or 64-true"),
)


def _help_with_default(name: str, meaning: str) -> str:
    from ..run import TrainConfig

    value = getattr(TrainConfig(), name.replace("-", "_"))
    if value is None or ("; 0 " in meaning and not value):  # which is said already
        return meaning
    return f"{meaning} (default {f'{value:g}' if isinstance(value, float) else value})"


def add_parser(commands: Any) -> None:
    """The command and its options."""
    parser = commands.add_parser(
        "train",
        help='train on images: widemargin train cifar10 resnet18 "arcgrad(s=10)"',
        description="Train a backbone under a loss on images, resumable; the seeds' flags are understood too.",
    )
    parser.add_argument(
        "data", nargs="?", help="cifar10, cifar100, mnist, fashion_mnist, omniglot, orl_faces, or a folder"
    )
    parser.add_argument("network", nargs="?", metavar="MODEL", help="resnet18, resnet34, fast, or any timm model")
    parser.add_argument("loss", nargs="?", help='a loss such as "arcgrad(s=10)" or "softmax + 0.02*center"')
    for name, kind, meaning in _NUMERIC_OPTIONS:
        parser.add_argument(f"--{name}", type=kind, metavar="X", help=_help_with_default(name, meaning))
    for name, meaning in _CHOICE_OPTIONS:
        parser.add_argument(f"--{name}", help=_help_with_default(name, meaning))
    for name, meaning in _BOOLEAN_OPTIONS:
        parser.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, help=meaning)
    parser.add_argument("--pretrained", action="store_true", help="timm's weights")
    parser.add_argument("--init-from", metavar="RUN", help="start with the backbone of another run")
    parser.add_argument("--name", metavar="NAME", help="what the run is called (also WANDB_NAME)")
    parser.add_argument("--out", metavar="DIR", help="run folder (default runs/NAME)")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    parser.add_argument("--assign-new", action="store_true", help=f"with --resume: {ASSIGN_NEW_HELP}")
    parser.add_argument(
        "--timeout", type=float, metavar="S", help="seconds after which a silent process is given up (default 1800)"
    )
    parser.add_argument("--find-lr", action="store_true", help="train nothing: try rates on a copy and suggest one")
    parser.add_argument("--quiet", action="store_true", help="no bar on a terminal, no line per epoch elsewhere")
    parser.add_argument("--logger", nargs="+", default=[], metavar="KIND", help="also tensorboard, wandb")
    # As version 0.1.0 spelt it. torchrun takes it for one of its own options (--log-dir, --logs-specs) and leaves.
    hidden = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    parser.add_argument("--log", dest="logger", nargs="+", metavar="KIND", **hidden)
    parser.add_argument("--data-dir", metavar="DIR", help="folder with the data sets (also WIDEMARGIN_DATA)")
    seeds = parser.add_argument_group("the seeds' own flags")
    seeds.add_argument("--data-set", metavar="NAME", help="as DATA")
    seeds.add_argument("--data-location", metavar="DIR", help="as --data-dir: the data folder or its parent")
    seeds.add_argument("--model", metavar="NAME", help="as MODEL")
    seeds.add_argument("--margin-loss", metavar="LOSS", help="as LOSS, with their script's silent defaults")
    seeds.add_argument("--ra", type=int, metavar="N", help="repeated augmentation")
    seeds.add_argument("--reprob", type=float, metavar="P", help="random erasing")
    seeds.add_argument("--gin", nargs="+", default=[], metavar="NAME=VALUE", help="build_model.patch_size=2 …")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Train, print what came out."""
    from ..ranks import is_rank_zero
    from ..training.allocator import keep_freed_memory
    from ..training.judging import format_metrics
    from ..training.loop import train
    from .find_lr import find_lr

    keep_freed_memory()
    config = config_from_options(options)
    folder = options.out or os.path.join("runs", _run_folder_name(config))
    data_dir = options.data_dir or options.data_location
    try:
        if options.find_lr:
            find_lr(config, folder, options, data_dir)
            return
        record = train(
            config,
            folder,
            resume=options.resume,
            data_dir=data_dir,
            loggers=options.logger,
            quiet=options.quiet,
            command=_command_line(options),
            assign_new=options.assign_new,
            **({} if options.timeout is None else {"timeout": options.timeout}),
        )
    except RuntimeError as error:
        raise _explain_error(error, config) from None
    if is_rank_zero():
        said = format_metrics({**record["test"], "intervals": record.get("intervals")})
        print_escaped(f"{'unseen classes' if config.unseen_classes else 'test'}: {said}")
        print_escaped(f"wrote {folder}")


def config_from_options(options: argparse.Namespace) -> TrainConfig:
    """The run that the options describe."""
    from ..errors import InputError, shorten
    from ..run import TrainConfig
    from ..seedflags import parse_gin, seed_loss_spec

    gin = parse_gin(options.gin)
    values: dict[str, Any] = dict(_SEED_DEFAULTS) if options.margin_loss else {}
    given = [(name.replace("-", "_"), getattr(options, name.replace("-", "_"))) for name, _, _ in _NUMERIC_OPTIONS]
    given += [(name, getattr(options, name)) for name in ("opt", "schedule", "precision")]
    given += [(name.replace("-", "_"), getattr(options, name.replace("-", "_"))) for name, _ in _BOOLEAN_OPTIONS]
    values.update({name: value for name, value in given if value is not None})
    for ours, theirs in (("data", "data_set"), ("network", "model")):
        if getattr(options, ours) and getattr(options, theirs):
            raise InputError(
                f"{ours} is given twice: {shorten(getattr(options, ours))} and --{theirs.replace('_', '-')}"
            )
    if options.loss and options.margin_loss:
        raise InputError("the loss is given twice, in its place and as --margin-loss")
    values["data"] = _resolve_data(options.data or options.data_set or "cifar10")
    values["model"] = options.network or options.model or "resnet18"
    head = gin.get("MarginHead", {})
    if options.margin_loss:
        values["loss"] = seed_loss_spec(options.margin_loss, head)
    elif head:
        raise InputError(f"--gin MarginHead.{next(iter(head))} belongs to --margin-loss: write its value in the loss")
    elif options.loss:
        values["loss"] = options.loss
    if options.ra is not None:
        values["repeats"] = options.ra
    values.update(_augment_settings(options, gin.get("build_transform", {})))
    values["model_options"] = {**gin.get("build_model", {}), **({"pretrained": True} if options.pretrained else {})}
    values["init_from"] = options.init_from
    values["name"] = options.name or os.environ.get("WANDB_NAME") or None
    return TrainConfig(**values)


def _augment_settings(options: argparse.Namespace, gin: dict[str, Any]) -> dict[str, Any]:
    """The augmentation's name, if one is given, and its options from wherever they are given."""
    from ..errors import InputError
    from ..literal import parse_call

    found: dict[str, Any] = {}
    name, inside = parse_call(options.augment, "--augment") if options.augment is not None else (None, {})
    erasing = {} if options.reprob is None else {"erase": options.reprob}
    for given in (inside, gin, erasing):
        for key, value in given.items():
            if key in found:
                raise InputError(f"{key} of the augmentation is given twice: take it out of --augment")
            found[key] = value
    return {"augment_options": found, **({} if name is None else {"augment": name})}


def _command_line(options: argparse.Namespace) -> str:
    """The command as it was typed, to be typed again: a name from the environment is part of it."""
    import shlex

    name = None if options.name else os.environ.get("WANDB_NAME")
    return (f"WANDB_NAME={shlex.quote(name)} " if name else "") + shlex.join(["widemargin", *options.words])


def _explain_error(error: RuntimeError, config: TrainConfig) -> Exception:
    """What torch has only words for, in one line; any other error as it is, for it is ours."""
    from ..errors import InputError

    said = str(error)
    if "out of memory" in said or "can't allocate memory" in said:
        return InputError(f"too little memory: lower --batch-size {config.batch_size}, or take --accumulate")
    return error


def _resolve_data(given: str) -> str:
    """A set by its own name, a folder by its whole path: a run is judged from elsewhere too."""
    from ..data.images import canonical_set_name

    known = canonical_set_name(given)
    path = os.path.expanduser(given)
    return known or (os.path.abspath(path) if os.path.isdir(path) else given)


def _run_folder_name(config: TrainConfig) -> str:
    """A folder's name, whatever WANDB_NAME or a loss is spelt with."""
    words = config.name or f"{os.path.basename(config.data)}-{config.model}-{config.loss}-seed{config.seed}"
    return re.sub(r"[^A-Za-z0-9.=_+-]+", "_", words)[:200].strip("_.") or "run"  # file systems end at 255
