"""Backends: how a head splits the logits of a batch into target and others; one interface.

`base.py` has that interface, the loss on it, and the one definition of a class's logit, which every backend uses; a
backend only decides how many classes it holds at a time. `dense.py` holds all of them, `stream.py` one block at a time
(loop in `class_blocks.py`, elementwise work in `kernels.py`, which `compiled.py` compiles), `sharded.py` those of this
rank, `sampled.py` a random part, `stacked.py` those of many small models at once. `select.py` chooses the backend of a
head. Some functions have backward passes written by hand: `numerics/custom_autograd.py` says which, docs/numerics.md
what they gain.
"""
