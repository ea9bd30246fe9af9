"""Backends: ways to split the logits of a batch into target and other classes, with one interface.

`base.py` has the interface, the loss on it, and the one definition of a logit, which every backend uses; backends
differ in how many classes they hold at a time. `dense.py` holds all of them, `stream.py` one block at a time (loop in
`class_blocks.py`, elementwise work in `kernels.py`, which `compiled.py` compiles), `sharded.py` those of this rank,
`sampled.py` a random part, `stacked.py` those of many small models at once. `select.py` chooses the backend of a head.
Some functions have hand-written backward passes: `numerics/custom_autograd.py` lists them, and docs/numerics.md shows
what they gain.
"""
