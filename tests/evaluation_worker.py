"""One rank of training/test_evaluate.py: evaluates its part of some images and writes down the metrics of all.

main(OUT, COLOURS)            # the metrics of all cases, to OUT/RANK.json
main(OUT, COLOURS, "vanish")  # rank 1 ends in the middle of its images
"""

import json
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

import widemargin as wm
from widemargin.cli.main import main as command
from widemargin.data.images.sets import Images, ImageSet
from widemargin.numerics import distributed
from widemargin.training import image_inputs as training_inputs
from widemargin.training.config import TrainConfig
from widemargin.training.distributed import is_connection_error, lost_rank_error
from widemargin.training.evaluate import evaluate
from widemargin.training.image_inputs import Inputs
from widemargin.training.input_splits import build_run_augment
from widemargin.training.inputs import load_inputs

BATCH_SIZE, CLASSES = 3, ("a", "b", "c", "d", "e", "f")
CLASSIFIERS = ("arcface(s=8)", "adacos", "cross_entropy", "softmax + 0.1*center")
SIZES = (40, 31, 10, 4, 2)  # in batches of 3: more and fewer than ranks, and with a smaller last one
CASES = [(spec, size, 0.0) for spec in CLASSIFIERS for size in SIZES]
CASES += [("triplet", 40, 0.0), ("triplet", 31, 0.0), ("arcface(s=8)", 31, 0.5)]


def build_model(spec: str, rank: int) -> wm.MarginModel:
    """A small network; the running statistics of its batch norm are the rank's own."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))
    model = wm.MarginModel(body, wm.Objective(spec, 5, len(CLASSES)))
    torch.manual_seed(100 + rank)
    with torch.no_grad():
        body[1].running_mean.normal_()
        body[1].running_var.uniform_(0.5, 2.0)
        body[1].num_batches_tracked.fill_(rank)
    return model


def build_inputs(num_images: int, unseen_classes: float, spec: str) -> Inputs:
    draw = torch.Generator().manual_seed(1)
    x = torch.randint(256, (num_images, 1, 8, 8), generator=draw, dtype=torch.uint8)
    images = Images("noise", x, torch.arange(num_images) % len(CLASSES), CLASSES)
    config = TrainConfig(data="noise", loss=spec, augment="fast", unseen_classes=unseen_classes)
    image_set = ImageSet("noise", images, images, (0.5,), (0.25,))
    return Inputs(images, None, images, build_run_augment(config, image_set), config)


def metrics_of(spec: str, num_images: int, unseen_classes: float, rank: int) -> dict:
    """Metrics with the buffers of rank 0, on all ranks together where there are several."""
    model, inputs = build_model(spec, rank), build_inputs(num_images, unseen_classes, spec)
    distributed.broadcast_buffers(model)
    model.train()
    found = evaluate(model, inputs.config, inputs, inputs.test, over_ranks=True)
    assert model.training
    return found


class CountedBatches(Inputs):
    """Inputs that count the images they give out, and may end the process on the way."""

    num_seen = 0
    vanish = False

    def eval_batches(self, *args: object, **options: object) -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in super().eval_batches(*args, **options):
            self.num_seen += len(y)
            if self.vanish:
                os._exit(1)
            yield x, y


def count_images(rank: int, vanish: bool = False) -> int:
    """How many images this rank has looked at, of 40."""
    plain = build_inputs(40, 0.0, "arcface(s=8)")
    inputs = CountedBatches(plain.train, None, plain.test, plain.augment, plain.config)
    inputs.vanish = vanish and rank == 1
    evaluate(build_model("arcface(s=8)", 0), inputs.config, inputs, inputs.test, over_ranks=True)
    return inputs.num_seen


def evaluate_damaged_folder(folder: str) -> str:
    """The message where one file, in one rank's part, is no image; files are decoded batch by batch."""
    config = TrainConfig(data=folder, model="fast(width=0.125)", input_size=16, augment="seed")
    inputs = load_inputs(config, None)
    model = wm.MarginModel(nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 5)), wm.Objective("arcface", 5, 3))
    try:
        evaluate(model, config, inputs, inputs.test, over_ranks=True)
    except wm.InputError as error:
        return str(error)
    return "nothing"


def message_without_images(rank: int) -> str:
    inputs = build_inputs(6, 0.0, "arcface(s=8)")
    none = inputs.test.take(torch.arange(0))
    try:
        evaluate(build_model("arcface(s=8)", rank), inputs.config, inputs, none, over_ranks=True)
    except wm.InputError as error:
        return str(error)
    return "nothing"


def main(out: str, folder: str, what: str = "") -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    training_inputs.eval_batch_size = lambda *_: BATCH_SIZE
    rank = dist.get_rank()
    if what == "vanish":
        try:
            count_images(rank, vanish=True)
        except RuntimeError as error:
            said = str(lost_rank_error(5.0, timedelta(seconds=30))) if is_connection_error(error) else str(error)
            Path(out, f"{rank}.json").write_text(json.dumps(said))
        os._exit(0)
    seen = {f"{case}": metrics_of(*case, rank) for case in CASES}
    seen |= {"num_seen": count_images(rank), "no_images": message_without_images(rank)}
    seen["damaged"] = evaluate_damaged_folder(folder)
    Path(out, f"{rank}.json").write_text(json.dumps(seen))
    dist.barrier()
    dist.destroy_process_group()


def train(argv: list[str]) -> int:
    """The command with evaluations in small batches."""
    training_inputs.eval_batch_size = lambda *_: BATCH_SIZE
    return command(argv)
