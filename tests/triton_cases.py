"""Cases of the Triton backend in Triton's interpreter; run as a program, prints one JSON object.

`test_triton.py` starts it in a process of its own, because `TRITON_INTERPRET=1` counts when kernels are defined. What
is compared with `dense` is that of `python -m benchmarks triton_accuracy`, with fewer losses and shapes.
"""

import json
import sys
import warnings

import torch

import widemargin as wm
from benchmarks import triton_accuracy
from benchmarks.triton_accuracy import Batch, compare_with_dense, relative_error
from widemargin.head.backends import triton_backend, triton_kernels

SHAPES = ((1, 9, 5), (40, 33, 70))  # one sample and other class; less than a tile and a part of the next one
COUNTS = f"counts=[{', '.join(str(k + 1) for k in range(19))}]"


def compare_more():
    """Errors of cases that the benchmark leaves out."""
    small = triton_accuracy.random_batch((13, 11, 19))
    cases = {
        f"per class {loss[:4]}": compare_with_dense(loss, torch.float32, small)
        for loss in (f"ldam({COUNTS})", f"logit_adjusted({COUNTS})")
    }
    triton_backend.CHUNK_ENTRIES = triton_backend.MAX_TILES_SUMMED = 1  # the smallest chunks, and ranges of one tile
    wide = triton_accuracy.random_batch((70, 9, 2500))
    cases["chunks"] = compare_with_dense("softmax(bias=True)", torch.float32, wide, label_smoothing=0.1)
    cases["chunks of angles"] = compare_with_dense("arcface", torch.float32, wide)
    return cases


def run_step(head, x, y):
    """Losses, and gradients of those tensors that want one."""
    losses = head(x, y)
    if losses.requires_grad:
        losses.sum().backward()
    return [losses.detach(), x.grad, head.weight.grad]


def compare_calls():
    """Largest relative difference from `stream` for calls that differ in their tensors, and the backend used."""
    draw = torch.Generator().manual_seed(2)
    plain, y = torch.randn(7, 12, generator=draw), torch.arange(7)
    calls = {
        "transposed embeddings": {"x": torch.randn(12, 7, generator=draw).T},
        "embeddings without gradient": {"x_grad": False},
        "weights without gradient": {"w_grad": False},
        "transposed weights": {"transposes": True},
        "bf16 embeddings, fp32 weights": {"x": plain.bfloat16()},
        "fp32 embeddings, bf16 weights": {"w_dtype": torch.bfloat16},
        "autocast": {"autocast": True, "x": plain.bfloat16()},
    }
    results = {}
    for name, call in calls.items():
        steps, used = [], None
        for backend in ("triton", "stream"):
            head = wm.Head(12, 19, "arcgrad", backend=backend, dtype=call.get("w_dtype", torch.float32))
            torch.nn.init.normal_(head.weight, generator=torch.Generator().manual_seed(5))
            if call.get("transposes"):
                head.weight = torch.nn.Parameter(head.weight.detach().T.contiguous().T)
            head.weight.requires_grad_(call.get("w_grad", True))
            x = call.get("x", plain).detach().clone().requires_grad_(call.get("x_grad", True))
            with torch.autocast("cpu", torch.bfloat16, enabled=call.get("autocast", False)):
                steps.append(run_step(head, x, y))
            used = used or head.active_backend
        pairs = [(a, b) for a, b in zip(*steps, strict=True) if a is not None or b is not None]
        results[name] = {"used": used, "error": max(relative_error(a, b) for a, b in pairs), "tensors": len(pairs)}
    return results


def compare_far_classes():
    """Errors of products, gradients and norms of the last classes of a matrix with more than 2³¹ entries.

    Its memory is provided by the system page by page, and only the last page is ever touched. The interpreter computes
    addresses in numbers of 32 bits where a kernel does, so these would overflow as on a GPU.
    """
    classes, dims, chunk, samples = 2**25 + 128, 64, 128, 16
    weight, grad = (torch.empty(classes, dims, dtype=torch.float16) for _ in range(2))
    draw = torch.Generator().manual_seed(0)
    near = torch.randn(chunk, dims, generator=draw).to(torch.float16)
    weight[-chunk:] = near
    x = torch.randn(samples, dims, generator=draw).to(torch.float16)
    blocks = triton_backend.TritonBlocks(False, x.float(), weight, x, None)
    gradients = torch.randn(samples, chunk, generator=draw)
    place = {"n": samples, "c": classes, "d": dims, "chunk_start": classes - chunk, "chunk_size": chunk}
    tiles = triton_backend.TILES[2, True]["gradients"]
    partial, nothing = torch.empty(1, samples, dims), torch.empty(1)
    options = blocks._dot_options(tiles, True)
    common = {"chunk": gradients, "w": weight, **place, **options}
    triton_kernels.embedding_gradients[(1, 1, 1)](**common, partial_out=partial, classes_each=chunk, ADDS=False)
    triton_kernels.weight_gradients[(2, 1)](
        **common, x=x, along=nothing, inverse_norm=nothing, grad_out=grad, DIVIDES=False, HAS_ALONG=False
    )
    return {
        "embeddings": relative_error(partial[0], gradients.double() @ near.double()),
        "weights": relative_error(grad[-chunk:], gradients.double().T @ x.double()),
    }


def check_repeats():
    """Whether repeated steps give the same bits, and whether two calls of one head are checked and compiled once."""
    x, w, y = triton_accuracy.random_batch((40, 33, 70))
    steps = [
        triton_accuracy.run_head("arcface", "triton", torch.float32, Batch((x, w, y)), label_smoothing=0.1)
        for _ in range(2)
    ]
    return all(map(torch.equal, *steps))


def main():
    warnings.simplefilter("error", UserWarning)  # a fall-back
    warnings.filterwarnings("ignore", message=".*without counts.*")
    triton_accuracy.SHAPES, triton_accuracy.TARGET_LOSSES = SHAPES, (1e-4, 1e-6)
    record = triton_accuracy.measure(("arcface", "arcgrad", "curricularface", "softmax(bias=True)"))
    more = {"repeats": check_repeats(), "calls": compare_calls(), "far": compare_far_classes(), "more": compare_more()}
    json.dump({"record": record, "violations": triton_accuracy.list_violations(record), **more}, sys.stdout)


if __name__ == "__main__":
    main()
