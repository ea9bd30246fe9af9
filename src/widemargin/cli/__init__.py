"""The command line: one file per command, which parses, calls and prints.

`COMMANDS` maps every command to its file and its line in `widemargin --help`, so that only the file of the requested
command is imported.
"""

COMMANDS: dict[str, tuple[str, str]] = {
    "compare": ("compare", "compare losses on a table, with significance tests"),
    "fit": ("fit", "fit one loss to a table and save the model"),
    "train": ("train", 'train on images: widemargin train cifar10 resnet18 "arcgrad(s=10)"'),
    "evaluate": ("evaluate", "evaluate a trained run on its test images"),
    "predict": ("evaluate", "classify images with a trained run, or the rows of a table with a fitted model"),
    "embed": ("export", "write embeddings of images to .npz or .parquet"),
    "export": ("export", "export a trained run: ONNX, weights, or a folder with a model card"),
    "verify": ("export", "decide whether two images show the same class"),
    "calibrate": ("gallery", "fit thresholds by false accept rate on identities the run never saw"),
    "gallery": ("gallery", "enrol identities with a trained run: create, add, remove, list, check"),
    "identify": ("gallery", "find the identity of images in a gallery, or none"),
    "serve": ("serve", "serve a web page on a gallery: identify, compare, enrol, browse"),
    "outliers": ("outliers", "rank training images that look mislabelled or foreign"),
    "reproduce": ("reproduce", "reproduce tables and figures of the ArcGrad paper"),
    "lab": ("lab", "write an interactive page with the curves of every margin"),
    "tour": ("tour", "write an interactive page that explains the losses one by one"),
    "report": ("report", "write a page on one or several runs: curves, angles, mistakes, settings"),
    "losses": ("losses", "list all losses, or explain one"),
    "curves": ("losses", "draw the curves of the losses over the angle"),
    "suggest": ("losses", "suggest losses to try first, with numbers, reasons and sources"),
    "theory": ("losses", "print the scale s for a number of classes and an angular gap"),
    "completion": ("completion", "print a completion script for your shell"),
}
