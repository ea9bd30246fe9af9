"""Original command 2: timm's ResNet-18 with a deep stem on CIFAR-10 at 64 pixels, ArcGrad; published 96.21 %.

Cost: 100 epochs with each image three times, for GPUs; not measured by us. In CPU size one epoch of a fiftieth of the
images: minutes on two cores, a check that everything works together.
"""

from __future__ import annotations

import argparse

RESNET18_COMMAND = (
    "widemargin train --ckpt_freq 2 --opt muon --lr 0.002 --weight_decay 5e-4 --warmup_epochs=10 --epochs 100 "
    "--batch_size=128 --ra=3 --smoothing=0.1 --reprob 0.1 --data_set CIFAR10 --input_size 64 --model resnet18 "
    '--gin "build_transform.scale=(0.8,1)" "build_transform.mean=(0.4914, 0.4822, 0.4465)" '
    "\"build_transform.std=(0.2470, 0.2435, 0.2616)\" build_model.stem_type='deep' build_model.output_stride=8 "
    "MarginHead.s=10 --margin_loss arcgrad"
)
RESNET18_TOP1 = 96.21


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    from . import seed_flags

    seed_flags.add_seed_arguments(parser)


def run(options: argparse.Namespace) -> None:
    """Train if missing, and print our result next to the original one."""
    from . import seed_flags

    seed_flags.run_seed_recipe(options, "seed_resnet18", RESNET18_COMMAND, "arcgrad", RESNET18_TOP1)
