"""Roads to `L`, the logsumexp over the classes that are not the target's; one signature.

`rays.py` has the definition of a class's logit, which every road uses; a road only decides how many
classes it holds at a time. `dense` holds all of them, `stream` walks over blocks.
"""
