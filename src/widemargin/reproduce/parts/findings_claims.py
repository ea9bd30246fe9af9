"""The claims of the papers, each judged from a record: what holds, under which conditions, with a test or an interval.

A claim without a record is "not tested here", with the command that would test it and its cost. Every figure and every
verdict is computed from the records; no result is written here.
"""

from __future__ import annotations

from pathlib import Path

from . import findings_angles, findings_images, findings_tables
from .claim import Claim, Judge


def judge_claims(records: Path) -> list[Claim]:
    """All claims, judged from the records in a folder where they are there."""
    judged = []
    for claim, judge in CLAIMS:
        path = records / claim.record
        judged.append(judge(claim, path) if judge is not None and claim.record and path.exists() else claim)
    return judged


_PAPER = "ArcGrad"
CLAIMS: tuple[tuple[Claim, Judge | None], ...] = (
    (
        Claim(
            "figure2",
            f"{_PAPER}, Figure 2",
            "With ten layers softmax, ArcFace and AdaCos are at chance on Iris; ArcGrad is not.",
            "widemargin reproduce depth",
            "about 12 minutes on one core",
            record="depth.json",
        ),
        findings_tables.judge_depth,
    ),
    (
        Claim(
            "one_number",
            f"{_PAPER}, Section III",
            "The margin is not necessary: one number, s, is enough and easy to choose.",
            "widemargin reproduce scale uci\nwidemargin reproduce scale fifty\nwidemargin reproduce scale cifar10\n"
            "widemargin reproduce scale omniglot",
            "about 5 and 9 minutes on one core; on images 16 runs each, of 5 minutes on two cores (CIFAR-10) and half "
            "a minute on one",
            record="scale_uci.json",
        ),
        findings_tables.judge_scale,
    ),
    (
        Claim(
            "eq19",
            f"{_PAPER}, Eq. 19",
            "Scale and margin are inversely proportional: s times gap is W₀((C−1)/e) + 1.",
            "widemargin reproduce gap",
            "about 10 minutes on one core",
            record="gap.json",
        ),
        findings_tables.judge_gap,
    ),
    (
        Claim(
            "auto_scale",
            f"{_PAPER}, Introduction (open problem)",
            "ArcGrad could choose its own s as well as held-out data do.",
            "widemargin reproduce auto_scale",
            "about 10 minutes on one core; 2 with --small, without the table of 50 classes",
            record="auto_scale.json",
        ),
        findings_tables.judge_auto_scale,
    ),
    (
        Claim(
            "table1",
            f"{_PAPER}, Table I",
            "ArcGrad has the best average accuracy on fifteen UCI sets.",
            "widemargin reproduce table1",
            "under a minute on two cores",
            record="table1.jsonl",
        ),
        findings_tables.judge_table1,
    ),
    (
        Claim(
            "table7",
            f"{_PAPER}, Table VII",
            "After 10 epochs of CIFAR-10+ ArcGrad is far above softmax (15.5 points), also with a small network.",
            "widemargin reproduce table7 --size cpu",
            "16 runs of 5 minutes on two cores",
            record="table7_cpu.jsonl",
        ),
        findings_images.judge_epochs,
    ),
    (
        Claim(
            "figure3",
            f"{_PAPER}, Figure 3",
            "With fewer training images ArcGrad loses least.",
            "widemargin reproduce figure3 --size cpu --seeds 3 --records records/figure3_cpu.jsonl",
            "32 runs beyond the record's, about 4 minutes each on two cores",
            record="figure3_cpu.jsonl",
        ),
        findings_images.judge_fractions,
    ),
    (
        Claim(
            "headline",
            f"{_PAPER}, Table IV",
            "ArcGrad's 94.36 % on CIFAR-10+ can be had in an hour on two CPU cores.",
            "widemargin reproduce headline\nwidemargin reproduce headline_losses",
            "an hour on two cores for each attempt; three seeds of headline_losses give a verdict",
            record="headline.jsonl",
        ),
        findings_images.judge_headline,
    ),
    (
        Claim(
            "rates",
            f"{_PAPER}, Tables III and VII",
            "After 10 epochs at the printed rate (Adam at 0.1) ArcGrad is far above softmax, and at other rates too.",
            "widemargin reproduce rates\nwidemargin reproduce rates --rates 0.1 0.01 --seeds 3\n"
            "widemargin reproduce rates --rates 0.1 --epochs 20 40 --methods soft arcface arcgrad\n"
            "widemargin reproduce rates --full",
            "30 runs, 24 more with three seeds at two rates, of the order of 10 minutes each on two cores; 6 longer "
            "ones; --full three runs of about 85 minutes; estimates",
            record="rates.jsonl",
        ),
        findings_images.judge_rates,
    ),
    (
        Claim(
            "table6",
            f"{_PAPER}, Table VI",
            "ArcGrad has the smallest angle to the own class (WC-Intra) and the largest between classes (W-Inter).",
            "widemargin reproduce table6 --size cpu\nwidemargin reproduce rates",
            "none beyond the runs of Table VII and of the rates",
            record="table7_cpu.jsonl",
        ),
        findings_angles.judge_angles,
    ),
    (
        Claim(
            "figure4",
            f"{_PAPER}, Figure 4",
            "ArcGrad's angles to the own class fall faster than softmax's and end lower.",
            "widemargin reproduce rates --rates 0.1 --seeds 3",
            "none beyond the runs of the rates",
            record="rates.jsonl",
        ),
        findings_angles.judge_angle_histories,
    ),
    (
        Claim(
            "headline_losses",
            f"{_PAPER}, Table IV",
            "ArcGrad leads softmax and ArcFace in the same hour, three seeds.",
            "widemargin reproduce headline_losses",
            "nine runs of just under an hour on two cores",
            record="headline_losses.jsonl",
        ),
        findings_images.judge_headline_losses,
    ),
    (
        Claim(
            "table4",
            f"{_PAPER}, Table IV",
            "ArcGrad has 94.36 % on CIFAR-10+ with ResNet-18 after 120 epochs, softmax 93.50 %.",
            "widemargin reproduce table4 --augment paper",
            "30 runs of 120 epochs of ResNet-18, for GPUs: one is about 17 hours on two cores (100 images a second)",
        ),
        None,
    ),
    (
        Claim(
            "table4_none",
            f"{_PAPER}, Table IV",
            "Without augmentation ArcGrad leads softmax on CIFAR-10 (87.83 % against 86.2 %).",
            "widemargin reproduce table4 --size cpu --augment none --seeds 3",
            "24 runs of 5 minutes on two cores",
            record="table4_none.jsonl",
        ),
        findings_images.judge_no_augmentation,
    ),
    (
        Claim(
            "table5",
            f"{_PAPER}, Table V",
            "ArcGrad has 75.12 % on CIFAR-100+, softmax 72.55 %.",
            "widemargin reproduce table5",
            "30 runs of ResNet-34, for GPUs; the files of CIFAR-100 are needed",
        ),
        None,
    ),
    (
        Claim(
            "adaacos",
            "AdaAcos",
            "Without tuning AdaAcos is as good as a tuned ArcFace (ten seeds, MNIST and Omniglot).",
            "widemargin reproduce openset adaacos --seeds 10 --records records/openset_adaacos.jsonl",
            "380 runs; the 114 of three seeds took 25 minutes on two cores, two at a time with one thread each",
            record="openset_adaacos.jsonl",
        ),
        findings_images.judge_tuning,
    ),
    (
        Claim(
            "seeds_96",
            "training scripts",
            "96.35 % and 96.21 % on CIFAR-10 (ResNet-18 at 64 px, ViT-Tiny).",
            "widemargin reproduce seed_resnet18\nwidemargin reproduce seed_vit_tiny",
            "100 epochs each, for GPUs",
        ),
        None,
    ),
    (
        Claim(
            "emnist",
            "AdaAcos",
            "AdaAcos on EMNIST.",
            "widemargin train FOLDER fast adaacos",
            "the files of EMNIST as a folder of images are needed; about 10 minutes per epoch on two "
            "cores, not measured",
        ),
        None,
    ),
    (
        Claim(
            "digiface",
            "training scripts",
            "Margins on DigiFace-1M.",
            "widemargin train FOLDER iresnet18 'arcface(s=64, m=0.5)'",
            "the files of DigiFace-1M are needed; days on a CPU, for GPUs, not measured",
        ),
        None,
    ),
)
