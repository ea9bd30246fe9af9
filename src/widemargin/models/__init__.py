"""Networks that turn images [N, C, H, W] into embeddings [N, D], by name, each with its `.embedding_dim`.

`build.py` builds them; `resnet.py` holds the paper's CIFAR ResNets, `fast.py` a small network made for CPUs,
`face_networks.py` IResNets and MobileFaceNet,
`timm_models.py` every model of timm, `neck.py` the layers that the seeds put between network and head. `attach.py`
replaces the classifier of any model by a head; `classifier.py` finds it and takes it off. `torchvision_compat.py` must
be imported before torchvision or timm.
"""
