"""A run as a value, and the commands that describe one: the seeds' own and our shorter spelling."""

import json
import shlex

import pytest

from runs import RESNET, VIT, config_of_command
from widemargin.cli.main import main
from widemargin.io.errors import InputError
from widemargin.training.config import TrainConfig

# The two commands of seed 000, with `vitrun eval_cls_margin.py` replaced and parentheses quoted.
TRANSFORM = {
    "scale": (0.8, 1.0),
    "mean": (0.4914, 0.4822, 0.4465),
    "std": (0.2470, 0.2435, 0.2616),
    "erase": 0.1,
}


def test_the_seeds_vit_command(monkeypatch):
    monkeypatch.setenv("WANDB_NAME", "arcgrad_vitt_e200")
    assert config_of_command(VIT) == TrainConfig(
        data="cifar10",
        model="vit_tiny_patch16_224",
        loss="arcgrad(s=10)",
        epochs=100,  # silent
        batch_size=256,
        opt="adamw",
        lr=0.001,
        weight_decay=0.05,
        schedule="cosine",  # silent, as are the next three and the neck
        warmup_epochs=5.0,
        warmup_lr=1e-6,
        min_lr=1e-5,
        label_smoothing=0.1,
        augment="seed",
        augment_options=TRANSFORM,
        model_options={"patch_size": 2, "img_size": 32},
        neck=True,
        repeated_augmentation=3,
        input_size=32,
        ckpt_freq=2,
        name="arcgrad_vitt_e200",
    )


def test_the_seeds_resnet_command(monkeypatch):
    monkeypatch.setenv("WANDB_NAME", "arcgrad")
    assert config_of_command(RESNET) == TrainConfig(
        data="cifar10",
        model="resnet18",
        loss="arcgrad(s=10)",
        epochs=100,
        batch_size=128,
        opt="muon",
        lr=0.002,
        weight_decay=5e-4,
        schedule="cosine",
        warmup_epochs=10.0,
        warmup_lr=1e-6,
        min_lr=1e-5,
        label_smoothing=0.1,
        augment="seed",
        augment_options=TRANSFORM,
        model_options={"stem_type": "deep", "output_stride": 8},
        neck=True,
        repeated_augmentation=3,
        input_size=64,
        ckpt_freq=2,
        name="arcgrad",
    )


def test_the_seeds_augmentation_is_what_their_script_does():
    from types import SimpleNamespace

    from widemargin.data.images.augment import build_augment

    run = config_of_command(VIT)
    made = build_augment(run.augment, SimpleNamespace(mean=(0.0,), std=(1.0,)), size=32, **run.augment_options)
    assert (made.mixup, made.cutmix, made.mix_prob, made.switch) == (0.8, 1.0, 1.0, 0.5)
    assert (made.rand, made.interpolation, made.eval_zoom) == ("rand-m9-mstd0.5-inc1", "bicubic", 256 / 224)
    assert (made.scale, made.erase, made.mean) == ((0.8, 1.0), 0.1, (0.4914, 0.4822, 0.4465))


@pytest.mark.parametrize(
    ("given", "means"),
    [("softmax", "normface(s=10)"), ("arcface", "arcface(s=10, m=0.5)"), ("arcgrad", "arcgrad(s=10)")],
)
def test_margin_losses_of_the_seeds(given, means):
    from widemargin.losses.grammar import parse

    assert parse(config_of_command(f"--margin-loss {given}").loss) == parse(means)


def test_our_own_spelling():
    run = config_of_command('cifar10 resnet18 "arcgrad(s=10)"')
    assert run == TrainConfig(data="cifar10", model="resnet18", loss="arcgrad(s=10)", name=run.name)
    assert (run.neck, run.schedule, run.augment, run.epochs) == (False, "onecycle", "paper", 120)
    assert config_of_command("CIFAR-10").data == config_of_command("cifar10").data == "cifar10"


def test_flags_are_taken_over():
    run = config_of_command(
        "mnist fast softmax --epochs 3 --val-fraction 0.1 --train-fraction 0.5 --ema 0.9 --clip 1 --neck --pretrained"
    )
    assert (run.epochs, run.val_fraction, run.train_fraction, run.ema, run.clip, run.neck) == (
        3,
        0.1,
        0.5,
        0.9,
        1.0,
        True,
    )
    assert run.model_options == {"pretrained": True}


def test_a_folder_keeps_its_spelling_and_becomes_a_whole_path(tmp_path, monkeypatch):
    (tmp_path / "MyPets").mkdir()
    monkeypatch.chdir(tmp_path)
    assert config_of_command("MyPets").data == str(tmp_path / "MyPets")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("cifar10 fast softmax --gin MarginHead.s=10", "MarginHead.s belongs to --margin-loss"),
        ("--gin MarginHead.m=0.1", "MarginHead.m belongs to --margin-loss"),
        ("cifar10 --data-set mnist", "given twice"),
        ("cifar10 fast --model resnet18", "given twice"),
        ("cifar10 fast softmax --margin-loss arcgrad", "given twice"),
        ("--gin build_model.size=3 --margin-loss arcgrad", "--input_size"),
        ("--gin build_transform.colour=3", "colour"),
        ("--opt adamm", "did you mean 'adam'?"),
        ("--schedule cosin", "did you mean 'cosine'?"),
        ("--epochs 0", "epochs must be a whole number of at least 1"),
        ("--train-fraction 0", "--train-fraction must be a number above 0 and at most 1"),
        ("--lr nan", "lr must be a number"),
        ("--seed -1", "seed must be a whole number of at least 0"),
        ("--input-size 0", "--input-size must be"),
        ("cifar11", "unknown image set 'cifar11'; did you mean 'cifar10'?"),
        ("./nowhere/at/all", "no such folder, index file or packed file of images"),
        ("--logger wandbb", "unknown logger 'wandbb'; did you mean 'wandb'?"),
        ("mnist fast arcgard", "did you mean 'arcgrad'?"),
        ("mnist fst softmax", "did you mean"),
    ],
)
def test_mistakes_are_one_line(words, says, tmp_path, capsys, data_dir):
    assert main(["train", *shlex.split(words), "--out", str(tmp_path / "run"), "--data-dir", str(data_dir)]) == 2
    said = capsys.readouterr().err.strip()
    assert says in said
    assert "\n" not in said
    assert not (tmp_path / "run").exists()


def test_an_unknown_flag_is_one_line_with_the_nearest(capsys):
    with pytest.raises(SystemExit) as left:
        main(["train", "cifar10", "--epoch", "3"])
    said = capsys.readouterr().err.strip()
    assert left.value.code == 2
    assert "\n" not in said
    assert "--epochs" in said


def test_a_run_comes_back_from_its_text_as_it_was():
    for run in (
        config_of_command(VIT),
        config_of_command(RESNET),
        TrainConfig(model_options={"widths": [32, 96, 96], "deep": ((1, 2), [3])}),
    ):
        again = TrainConfig.from_json(run.to_json())
        assert again == run
        assert again.to_json() == run.to_json()
    assert TrainConfig(augment_options={"scale": [0.8, 1.0]}) == TrainConfig(augment_options={"scale": (0.8, 1.0)})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("[1]", "not the settings of a run"),
        (json.dumps({"epoks": 3}), "did you mean 'epochs'?"),
        (json.dumps({"epochs": "3"}), "epochs must be a whole number"),
        (json.dumps({"train_fraction": "x"}), "train_fraction must be a number above 0 and at most 1"),
        (json.dumps({"augment_options": [1]}), "augment_options must be names with values"),
    ],
)
def test_a_damaged_run_file_is_one_line(text, says):
    with pytest.raises(InputError, match=r"run\.json") as refused:
        TrainConfig.from_json(text)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(InputError, match=r"is .* a run"):
        TrainConfig.read(tmp_path)


def test_folder_names_cannot_climb(monkeypatch):
    from widemargin.training.run_files import default_run_folder

    assert "/" not in default_run_folder(TrainConfig(name="../../etc/x")).name
    assert not default_run_folder(TrainConfig(name="..")).name.startswith(".")
    assert (
        default_run_folder(TrainConfig(data="/data/My Pets", model="fast(width=0.5)")).name
        == "My_Pets-fast_width=0.5_-arcgrad_s=10_-seed0"
    )


def test_a_loss_may_be_given_as_a_value():
    import widemargin as wm

    assert TrainConfig(loss=wm.ArcFace(m=0.3)) == TrainConfig(loss=repr(wm.ArcFace(m=0.3)))
    assert TrainConfig(loss=wm.parse("arcface + 0.02*center")).loss == repr(wm.parse("arcface + 0.02*center"))
    with pytest.raises(wm.InputError, match="loss must be a string"):
        TrainConfig(loss=3)


def test_options_of_the_augmentation_within_its_name():
    config = TrainConfig("mnist", augment="timm(rand=rand-m9-mstd0.5-inc1)", augment_options={"color": 0.2})
    assert config.augment == "timm"
    assert config.augment_options == {"rand": "rand-m9-mstd0.5-inc1", "color": 0.2}
    assert TrainConfig("mnist", augment="paper(pad=2)") == TrainConfig("mnist", augment_options={"pad": 2})
    with pytest.raises(InputError, match="both set pad"):
        TrainConfig("mnist", augment="paper(pad=2)", augment_options={"pad": 3})
