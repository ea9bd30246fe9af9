"""Original command 1: ViT-tiny with patches of 2×2 on CIFAR-10, ArcGrad; published 96.35 %.

Cost: 100 epochs (the script's default; the run's name says 200) with each image three times, for GPUs; not measured by
us. In CPU size one epoch of a fiftieth of the images: minutes on two cores, a check that everything works together.
"""

from __future__ import annotations

import argparse

VIT_TINY_COMMAND = (
    "widemargin train --ckpt_freq 2 --opt adamw --lr 0.001 --weight_decay 0.05 --batch_size=256 --ra=3 "
    "--smoothing=0.1 --reprob 0.1 --data_set CIFAR10 --input_size 32 --model vit_tiny_patch16_224 "
    '--gin "build_transform.scale=(0.8,1)" build_transform.mean="(0.4914, 0.4822, 0.4465)" '
    'build_transform.std="(0.2470, 0.2435, 0.2616)" build_model.patch_size=2 build_model.img_size=32 '
    "--margin_loss arcgrad"
)
VIT_TINY_TOP1 = 96.35


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    from . import seed_flags

    seed_flags.add_seed_arguments(parser)


def run(options: argparse.Namespace) -> None:
    """Train if missing, and print our result next to the original one."""
    from . import seed_flags

    seed_flags.run_seed_recipe(options, "seed_vit_tiny", VIT_TINY_COMMAND, "arcgrad_vitt_e200", VIT_TINY_TOP1)
