"""The command line: one file per command, which parses, calls and prints.

`COMMANDS` names every command with the file it stands in and the line that `widemargin --help` shows, so that only the
file of the command that was typed is imported.
"""

COMMANDS: dict[str, tuple[str, str]] = {
    "compare": ("compare", "compare losses on a table: which one serves my data?"),
    "fit": ("fit", "fit one loss to a table: a model to take home"),
    "train": ("train", 'train on images: widemargin train cifar10 resnet18 "arcgrad(s=10)"'),
    "evaluate": ("evaluate", "evaluate a trained run on its test images"),
    "predict": ("evaluate", "name images with a trained run, or the rows of a table with a fitted model"),
    "embed": ("export", "embeddings of images, as .npz or .parquet"),
    "export": ("export", "export a trained run: ONNX, weights, or a folder with a card"),
    "verify": ("export", "do two images show the same?"),
    "reproduce": ("reproduce", "tables and figures of the ArcGrad paper, made again"),
    "lab": ("lab", "a page to play with every margin: curves, regions, which s"),
    "tour": ("tour", "a page that explains the losses one by one, with pictures to move"),
    "report": ("report", "one run or several as a page: courses, angles, mistakes, settings"),
    "losses": ("losses", "list all losses, or explain one"),
    "curves": ("losses", "draw what every loss does with an angle"),
    "theory": ("losses", "scale against gap: which s for my number of classes?"),
    "completion": ("completion", "print a completion script for your shell"),
}
