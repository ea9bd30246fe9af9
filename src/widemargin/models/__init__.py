"""Networks that turn images [N, C, H, W] into embeddings [N, D], by name, each with its `.embedding_dim`.

`build.py` finds them; `resnet.py` holds the paper's CIFAR ResNets, `fast.py` a small network made for CPUs,
`from_timm.py` everything of timm, `neck.py` the layers that the seeds put between network and head.
"""
