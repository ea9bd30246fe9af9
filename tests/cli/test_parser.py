"""A mistyped word of the command line: one line with the nearest word that exists, or the command that has it."""

import pytest

from widemargin.cli.main import main


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("train --epoch 3", "unknown option --epoch; did you mean --epochs?"),
        ("train --batch_siz 3", "unknown option --batch-siz; did you mean --batch-size?"),
        ("train --ep 3", "did you mean --epochs?"),
        ("train -lr 0.1", "unknown option -lr; did you mean --lr?"),
        ("train -lr=0.1", "unknown option -lr; did you mean --lr?"),
        ("train --LR 0.1", "did you mean --lr?"),
        ("train --no-nek", "did you mean --no-neck?"),
        ("train --folds 3", "unknown option --folds; compare, reproduce figure2, reproduce table1 have --folds"),
        ("compare --schedule cosine", "unknown option --schedule; train has --schedule"),
        ("compare --batch_size 3", "did you mean --batch?; train, predict, embed have --batch-size"),
        ("reproduce table1 --resume", "train has --resume"),
        ("train --opt adm", "unknown --opt 'adm'; did you mean 'adam'?"),
        ("train --precision bf16-mix", "unknown --precision 'bf16-mix'; did you mean 'bf16-mixed'?"),
        ("losses --format jsn", "did you mean 'json'?"),
        ("train --epochs many", "argument --epochs: must be a whole number of at least 1, got 'many'"),
        ("train --lr fast", "argument --lr: must be a number of at least 0, got 'fast'"),
        ("train --lr=-1", "lr must be a number of at least 0, got -1.0"),
        ("compare --hidden 64 big", "argument --hidden: must be whole numbers of at least 1, got 'big'"),
        ("train --augment-options pad", "argument --augment-options: the value: cannot read 'pad'"),
        ("train --zzzz", "unknown option --zzzz (see widemargin train --help)"),
    ],
)
def test_a_mistyped_word_is_one_line_with_the_nearest(words, says, capsys):
    try:
        code = main(words.split())
    except SystemExit as left:
        code = left.code
    said = capsys.readouterr().err.strip()
    assert code == 2
    assert says in said
    assert "\n" not in said
