"""The Triton backend, experimental: the streaming backend with its sums and gradients computed by Triton kernels.

It differs from `stream` in `TritonBlocks` alone: the autograd function, the target's angle (from the chord, outside the
kernels), tiny angles and the second derivative are those of `stream.py`. The kernels are in `triton_kernels.py`, the
loss's logit and derivatives in them are generated (`triton_source.py`).

Forward, a program sums a tile of samples over a range of classes, and the few partial sums are combined in fp64.
Backward, the products are computed again, a chunk of classes at a time (a fourth matrix product, in exchange for no
N×C matrix): gradients of a chunk's products go to memory that all chunks share, from which two matrix products make the
gradients of embeddings and weights. The kernels use no atomic operations: every number is written by one program, which
sums in a fixed order. Chunks share memory because launches on one stream run one after the other. Two sums are torch's
`index_add_`, whose order on CUDA is fixed only with `torch.use_deterministic_algorithms`: gradients at tiny angles, and
those of the targets' norms for a margin that keeps ‖w‖.

Embeddings and weights that are both bf16 or both fp16 are multiplied as they are, with sums in fp32; otherwise both are
multiplied in fp32, without TF32 unless torch allows it (`torch.backends.cuda.matmul.fp32_precision`). The two gradient
products of fp16 are multiplied in TF32, which has the digits of fp16 and the range of fp32.

Nothing here was ever run on a GPU: only in Triton's interpreter (`python -m benchmarks triton_accuracy`) and through
its compiler (`python -m benchmarks triton_compiled`). So `auto` never selects this backend, and the first call for a
loss, dtype and device compares it with `dense` on small batches; if they differ, the head streams, with one warning.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ...io.errors import InputError
from ...losses.base import PerClass
from ...losses.margin import Margin
from .base import Backend, Geometry, NormalizedEmbeddings, compute_margin_loss
from .class_blocks import ClassBlocks
from .dense import DenseBackend
from .kernels import KernelSpec, safe_reciprocal
from .stream import StreamBackend
from .triton_source import LogitFunctions, check_margin, load_functions

if TYPE_CHECKING:
    from ..head import Head

_HALF_DTYPES = (torch.bfloat16, torch.float16)


class Tiles(NamedTuple):
    """Sizes of a kernel's tiles, and its launch options."""

    samples: int
    classes: int
    dims: int
    warps: int
    stages: int


# By size of a number in bytes, and whether the number of dimensions is a multiple of 16. If it is not, numbers are
# loaded one by one, which needs more registers: tiles are smaller there, so that none are spilled to memory.
TILES = {
    (4, True): {"products": Tiles(32, 64, 32, 8, 2), "gradients": Tiles(32, 64, 64, 8, 2)},
    (4, False): {"products": Tiles(32, 64, 16, 8, 2), "gradients": Tiles(32, 64, 64, 8, 2)},
    (2, True): {"products": Tiles(64, 64, 64, 8, 3), "gradients": Tiles(64, 64, 128, 8, 3)},
    (2, False): {"products": Tiles(64, 64, 64, 8, 3), "gradients": Tiles(64, 64, 64, 8, 3)},
}
NORM_TILES = Tiles(1, 32, 128, 4, 2)
CHUNK_ENTRIES = 1 << 22  # gradients of products in memory at a time: 16 MiB in fp32
MIN_PROGRAMS = 1024  # of the forward launch: several for each place of a large GPU, or many places idle at the end
MIN_GRADIENT_PROGRAMS = 256  # of a launch for embeddings: each part of the classes needs memory for N×D numbers
MAX_TILES_SUMMED = 64  # tiles that a program sums in fp32; further sums are in fp64


def launch_options(tiles: Tiles) -> dict[str, Any]:
    """Options of a launch for Triton's compiler; fused multiply-add is its default, of which it warns if not given."""
    return {"num_warps": tiles.warps, "num_stages": tiles.stages, "enable_fp_fusion": True}


def why_unavailable(device: torch.device) -> str | None:
    """Return why the kernels cannot run on a device, None if they can."""
    if find_spec("triton") is None:
        return "Triton is not installed"
    try:
        if device.type == "cuda" or (device.type == "cpu" and is_interpreted()):
            return None
    except Exception as failure:  # an installation that is broken or of another version
        return f"Triton cannot be imported: {_first_line(failure)}"
    return f"Triton has no kernels for {device.type} (TRITON_INTERPRET=1 interprets them)"


def is_interpreted() -> bool:
    """True if `TRITON_INTERPRET=1` was set when Triton was imported: the kernels run on the CPU, for tests."""
    import triton.language

    from . import triton_kernels

    # Triton's own functions too: torch may have imported it before the variable was set.
    functions = (triton_kernels.log_sums, triton.language.zeros)
    return all(type(function).__name__ == "InterpretedFunction" for function in functions)


class TritonBlocks(ClassBlocks):
    """`ClassBlocks` whose log-sums and gradients are Triton kernels; other passes are the plain ones.

    `x` are the embeddings as the kernels multiply them; `a = x · x_scale` if a scale [N] is given.
    """

    def __init__(self, divides_by_w_norm: bool, a: Tensor, weight: Tensor, x: Tensor, x_scale: Tensor | None) -> None:
        super().__init__(divides_by_w_norm, a, weight, None, compile_kernels=False)
        self.x, self.x_scale = x.contiguous(), x_scale
        self.w = weight.contiguous()
        self.w_inverse: Tensor | None = None

    def with_grad_weight(self, grad_weight: Tensor) -> TritonBlocks:
        blocks = copy.copy(self)
        blocks.grad_weight = grad_weight
        return blocks

    # ---------------------------------------------------------------- launches

    def _dtypes(self, for_gradients: bool) -> tuple[Any, str, torch.dtype]:
        """Dtype of the factors of `tl.dot`, its precision, and the dtype in which gradients of products are stored."""
        import triton.language as tl

        if self.x.dtype == torch.bfloat16:
            # The interpreter multiplies no bf16; in fp32 the products are the same.
            return (tl.float32, "ieee", torch.bfloat16) if is_interpreted() else (tl.bfloat16, "ieee", torch.bfloat16)
        if self.x.dtype == torch.float16:
            # Gradients leave the range of fp16, not that of TF32, which has the same digits and so keeps x and w exact.
            return (tl.float32, "tf32", torch.float32) if for_gradients else (tl.float16, "ieee", torch.float32)
        return tl.float32, "tf32" if _is_tf32_allowed() else "ieee", torch.float32

    def launch(self, kernel: Any, grid: tuple[int, ...], tiles: Tiles, **arguments: Any) -> None:
        """Launch a kernel on the device of its tensors, which may be another than the current one."""
        with torch.cuda.device(self.x.device) if self.x.is_cuda else nullcontext():
            kernel[grid](**arguments, **launch_options(tiles))

    def _dot_options(self, tiles: Tiles, for_gradients: bool) -> dict[str, Any]:
        """Arguments of every kernel with a `tl.dot`."""
        dot, precision, _ = self._dtypes(for_gradients)
        return {"DOT": dot, "PRECISION": precision, "BN": tiles.samples, "BC": tiles.classes, "BD": tiles.dims}

    def _tiles(self, name: str) -> Tiles:
        return TILES[self.x.element_size(), self.x.shape[1] % 16 == 0][name]

    def _inverse_norms(self) -> Tensor:
        """1/‖w‖ [C] in fp32, 0 for a weight that is zero or shorter than 1e-30; computed once for a call."""
        if self.w_inverse is None:
            from . import triton_kernels

            c, d = self.w.shape
            self.w_inverse = torch.empty(c, dtype=torch.float32, device=self.w.device)
            self.launch(
                triton_kernels.inverse_norms,
                (_divide_up(c, NORM_TILES.classes),),
                NORM_TILES,
                w=self.w,
                inverse_out=self.w_inverse,
                c=c,
                d=d,
                BC=NORM_TILES.classes,
                BD=NORM_TILES.dims,
            )
        return self.w_inverse

    def _shared_arguments(
        self, functions: LogitFunctions, spec: KernelSpec, y: Tensor, bias: Tensor | None, values: Sequence[Tensor]
    ) -> dict[str, Any]:
        """Arguments of both kernels that compute logits; placeholders are never read."""
        by_name = dict(zip((*spec.sample_names, *spec.value_names), values, strict=True))
        n, c, d = len(self.x), len(self.w), self.x.shape[1]
        nothing = self.a.new_empty(1)
        for name in functions.source.number_names:
            if by_name[name].numel() != 1:
                raise InputError(
                    f'backend="triton": {name} of {spec.margin.name} is not one number: use backend="stream"'
                )
        numbers = [by_name[name].detach().reshape(()) for name in functions.source.number_names]
        samples = [by_name[name].detach().expand(n) for name in functions.source.sample_names]
        return {
            "x": self.x,
            "w": self.w,
            "x_scale": nothing if self.x_scale is None else self.x_scale,
            "inverse_norm": self._inverse_norms() if self.divides_by_w_norm else nothing,
            "bias": nothing if bias is None else bias.detach().to(torch.float32).contiguous(),
            "labels": y.to(torch.int32).contiguous(),
            "numbers": torch.stack(numbers).to(torch.float32) if numbers else nothing,
            "samples": torch.stack(samples).to(torch.float32) if samples else nothing,
            "n": n,
            "c": c,
            "d": d,
            "HAS_X_SCALE": self.x_scale is not None,
            "DIVIDES": self.divides_by_w_norm,
            "HAS_BIAS": bias is not None,
            "WITH_LOGIT_SUM": spec.with_logit_sum,
        }

    # ---------------------------------------------------------------- forward

    def _log_sum_exp(
        self, spec: KernelSpec, y: Tensor, x_norm: Tensor, bias: Tensor | None, values: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        from . import triton_kernels

        functions, tiles = load_functions(spec, bias is not None), self._tiles("products")
        shared = self._shared_arguments(functions, spec, y, bias, values)
        n, c = shared["n"], shared["c"]
        rows, each = _split_evenly(n, c, tiles)
        ranges = _divide_up(c, each)
        tops, sums = (self.a.new_empty(ranges, n) for _ in range(2))
        logit_sums = self.a.new_empty(ranges, n) if spec.with_logit_sum else self.a.new_empty(1)
        outputs = {"top_out": tops, "sum_out": sums, "logit_sum_out": logit_sums}
        self.launch(
            triton_kernels.log_sums,
            (rows, ranges),
            tiles,
            **shared,
            **outputs,
            **self._dot_options(tiles, False),
            classes_each=each,
            LOGIT=functions.logit,
        )
        top = tops.amax(0)
        anchor = torch.where(top == -torch.inf, 0.0, top).to(torch.float64)
        total = (sums.to(torch.float64) * torch.exp(tops.to(torch.float64) - anchor)).sum(0)
        return anchor + torch.log(total), logit_sums.to(torch.float64).sum(0) if spec.with_logit_sum else None

    # ---------------------------------------------------------------- backward

    @torch.no_grad()
    def compute_gradients(
        self,
        spec: KernelSpec,
        y: Tensor,
        x_norm: Tensor,
        bias: Tensor | None,
        values: Sequence[Tensor],
        log_sum: Tensor,
        grad_others: Tensor,
        grad_logit_sum: Tensor,
        grad_target_product: Tensor,
        target_w_coefficient: Tensor | None,
        needs_a_grad: bool,
        grad_weight: Tensor | None,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, list[Tensor]]:
        from . import triton_kernels

        functions = load_functions(spec, bias is not None)
        shared = self._shared_arguments(functions, spec, y, bias, values)
        n, c, d = shared["n"], shared["c"], shared["d"]
        products, tiles = self._tiles("products"), self._tiles("gradients")
        size = min(_divide_up(c, 128) * 128, max(1024, CHUNK_ENTRIES // n // 128 * 128))
        rows, columns = _divide_up(n, products.samples), _divide_up(size, products.classes)
        chunk = torch.empty(n, size, dtype=self._dtypes(True)[2], device=self.x.device)
        along_parts, bias_parts, number_parts = (
            self.a.new_empty(shape) for shape in ((rows, size), (rows, size), (rows, columns))
        )
        has_learnt = functions.source.learnt_name is not None
        vectors = (log_sum, grad_others, grad_logit_sum, grad_target_product)
        names = ("log_sum", "grad_others", "grad_logit_sum", "grad_target_product")
        per_sample = {name: v.detach().to(torch.float32).contiguous() for name, v in zip(names, vectors, strict=True)}
        along = None
        if target_w_coefficient is not None:
            # Coefficients of the weights of the targets; with `divides_by_w_norm` a margin keeps no norm of a weight.
            along = self.a.new_zeros(c).index_add_(0, y.clamp(0, c - 1), target_w_coefficient)
        grad_bias = None if bias is None else torch.empty_like(bias)
        grad_number = self.a.new_zeros((), dtype=torch.float64)
        # Parts of the classes that are summed by different programs, so that a small batch keeps a GPU busy.
        row_tiles, dim_tiles = _divide_up(n, tiles.samples), _divide_up(d, tiles.dims)
        parts = max(1, min(_divide_up(size, tiles.classes), MIN_GRADIENT_PROGRAMS // (row_tiles * dim_tiles)))
        each = _divide_up(_divide_up(size, parts), tiles.classes) * tiles.classes
        parts = _divide_up(size, each)
        partial = self.a.new_empty(parts, n, d) if needs_a_grad else None
        for start in range(0, c, size):
            stop = min(start + size, c)
            place = {"chunk_start": start, "chunk_size": size}
            self.launch(
                triton_kernels.logit_gradients,
                (rows, columns),
                products,
                **shared,
                **per_sample,
                **place,
                **self._dot_options(products, False),
                chunk_out=chunk,
                along_out=along_parts,
                grad_bias_out=bias_parts,
                grad_number_out=number_parts,
                SLOPE=functions.logit_and_slope,
                NUMBER_SLOPE=functions.number_slope,
                HAS_LEARNT=has_learnt,
            )
            if grad_bias is not None:
                grad_bias[start:stop] = bias_parts[:, : stop - start].sum(0)
            if has_learnt:
                grad_number += number_parts.to(torch.float64).sum()
            common = {"chunk": chunk, "w": self.w, "n": n, "c": c, "d": d, **place}
            if partial is not None:
                self.launch(
                    triton_kernels.embedding_gradients,
                    (row_tiles, dim_tiles, parts),
                    tiles,
                    **common,
                    **self._dot_options(tiles, True),
                    partial_out=partial,
                    classes_each=each,
                    ADDS=start > 0,
                )
            if grad_weight is not None:
                if self.divides_by_w_norm:
                    of_chunk = along_parts.to(torch.float64).sum(0).to(torch.float32)
                else:
                    of_chunk = along_parts if along is None else along[start:stop].contiguous()
                self.launch(
                    triton_kernels.weight_gradients,
                    (_divide_up(size, tiles.classes), dim_tiles),
                    tiles,
                    **common,
                    **self._dot_options(tiles, True),
                    x=self.x,
                    along=of_chunk,
                    inverse_norm=shared["inverse_norm"],
                    grad_out=grad_weight,
                    DIVIDES=self.divides_by_w_norm,
                    HAS_ALONG=self.divides_by_w_norm or along is not None,
                )
        grad_a = None if partial is None else partial.sum(0)
        if grad_a is not None and self.x_scale is not None:
            grad_a *= safe_reciprocal(self.x_scale).unsqueeze(1)  # of a = x · x_scale
        count = len(spec.sample_names)
        learnt = [
            (name, value)
            for name, value, needed in zip(spec.value_names, values[count:], spec.value_requires_grad, strict=True)
            if needed
        ]
        grads = [
            grad_number.to(value.dtype).expand(value.shape)
            if name == functions.source.learnt_name
            else torch.zeros_like(value)
            for name, value in learnt
        ]
        return grad_a, None, grad_bias, grads


def _divide_up(count: int, size: int) -> int:
    return -(-count // size)


def _split_evenly(samples: int, classes: int, tiles: Tiles) -> tuple[int, int]:
    """Return the tiles of samples, and the classes of one program: whole tiles, few enough to make `MIN_PROGRAMS`.

    >>> tiles = Tiles(64, 64, 32, 8, 2)
    >>> _split_evenly(256, 100_000, tiles), _split_evenly(256, 10**7, tiles)
    ((4, 448), (4, 4096))
    """
    rows = _divide_up(samples, tiles.samples)
    class_tiles = _divide_up(classes, tiles.classes)
    each = min(_divide_up(class_tiles, max(1, MIN_PROGRAMS // rows)), MAX_TILES_SUMMED)
    return rows, each * tiles.classes


class TritonBackend(StreamBackend):
    """The streaming backend with Triton kernels."""

    def _get_blocks(self, geometry: Geometry) -> ClassBlocks:
        if geometry not in self._blocks_cache:
            a, weight = self._matmul_input(geometry).detach(), self.weight.detach()
            x, x_scale = a, None
            half = self.embeddings.given_dtype
            if half in _HALF_DTYPES and half == weight.dtype:
                x = self.embeddings.x.detach()
                if not geometry.folds_x_norm:
                    # A power of two makes the norm about 1, so that no product overflows; a direction would be rounded.
                    length = self.embeddings.norm.detach()
                    exponent = -torch.frexp(length).exponent.clamp_min(-125)  # 2¹²⁵: a larger power would overflow
                    x, x_scale = torch.ldexp(x, exponent.unsqueeze(1)), safe_reciprocal(torch.ldexp(length, exponent))
                x = x.to(half)
            self._blocks_cache[geometry] = TritonBlocks(not geometry.folds_w_norm, a, weight, x, x_scale)
        return self._blocks_cache[geometry]


# ---------------------------------------------------------------- selection

# Samples, classes and dimensions of the self-check: parts of tiles, and multiples of 16, for which Triton compiles
# other code, with wider loads and more shared memory.
CHECK_SIZES = ((5, 37, 19), (16, 48, 32))
_CHECK_TOLERANCES = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
_TF32_TOLERANCE = 5e-2
_check_results: dict[tuple[Any, ...], str | None] = {}
_warnings_given: set[str] = set()


def build_triton_backend(
    head: Head, embeddings: NormalizedEmbeddings, fallback: Callable[[], Backend]
) -> tuple[Backend, str]:
    """Return the Triton backend of a head and its name, or `fallback()` and its name, with one warning."""
    if embeddings.dtype != torch.float32:
        raise InputError(
            f'backend="triton" takes bf16, fp16 and fp32, not {embeddings.dtype}: use backend="stream" or "dense"'
        )
    check_margin(head.margin)
    if len(embeddings) == 0:
        return fallback(), "stream"
    reason = why_unavailable(head.weight.device) or _find_disagreement(head, embeddings)
    if reason is not None:
        message = f'backend="triton" is not used, backend="stream" is: {reason}'
        if message not in _warnings_given:
            _warnings_given.add(message)
            warnings.warn(message, stacklevel=4)
        return fallback(), "stream"
    backend = TritonBackend(
        embeddings, head.weight, head.loss_bias(), head.grad_buffer, head.compile_kernels, head.margin.subcenters
    )
    return backend, "triton"


@torch.compiler.disable  # type: ignore[untyped-decorator]  # compares numbers
def _find_disagreement(head: Head, embeddings: NormalizedEmbeddings) -> str | None:
    """Compare with `dense` on small batches, once for a loss, dtypes and device; return what is wrong, if anything."""
    given, bias = embeddings.given_dtype or embeddings.dtype, head.loss_bias() is not None
    weight, margin = head.weight, head.margin
    # Without the numbers per class, which would be hashed in every step.
    per_class = [name for name, value in margin.named_values() if isinstance(value, PerClass)]
    bare = margin.with_values(**dict.fromkeys(per_class, 1.0)) if per_class else margin
    key = (bare, given, weight.dtype, weight.device, bias, head.label_smoothing, _is_tf32_allowed())
    if key not in _check_results:
        if weight.is_cuda and torch.cuda.is_current_stream_capturing():
            raise InputError('backend="triton" compares its results with dense once: call the head before the capture')
        try:
            sizes = CHECK_SIZES[:1] if is_interpreted() else CHECK_SIZES
            errors = [
                measure_disagreement(
                    margin,
                    given,
                    weight.dtype,
                    weight.device,
                    (samples, min(classes, head.num_classes), dims),
                    bias,
                    head.label_smoothing,
                )
                for samples, classes, dims in sizes
            ]
            error = float(torch.tensor(errors).amax())  # NaN if one is
            bound = max(_CHECK_TOLERANCES[given], _CHECK_TOLERANCES[weight.dtype])
            bound = max(bound, _TF32_TOLERANCE) if _is_tf32_allowed() else bound
            wrong = not error <= bound  # also NaN
            _check_results[key] = f"it differs from dense by {error:.1e} on a small batch" if wrong else None
        except InputError:
            raise
        except Exception as failure:
            _check_results[key] = f"its self-check failed: {_first_line(failure)}"
    return _check_results[key]


def _first_line(failure: Exception) -> str:
    text = str(failure).strip().splitlines()
    return text[0] if text else type(failure).__name__


def _is_tf32_allowed() -> bool:
    # Not `allow_tf32`, which raises an error if the precision was set by its newer name; this reads both.
    return str(torch.backends.cuda.matmul.fp32_precision) == "tf32"


def measure_disagreement(
    margin: Margin,
    x_dtype: torch.dtype,
    w_dtype: torch.dtype,
    device: torch.device,
    sizes: tuple[int, int, int] = CHECK_SIZES[0],
    with_bias: bool = False,
    label_smoothing: float = 0.0,
) -> float:
    """Largest normwise difference of losses and gradients from `dense` in fp64, on a fixed batch of these sizes.

    The state of random number generators is kept, also for a loss that draws its margins.
    """
    samples, num_classes, dims = sizes
    generator = torch.Generator().manual_seed(0)
    x, w, b = (torch.randn(rows, dims, generator=generator) for rows in (samples, num_classes, num_classes))
    y = (torch.arange(samples) * 7 % num_classes).to(device)
    x, w = x.to(device, x_dtype), (w / dims**0.5).to(device, w_dtype)
    bias = b[:, 0].to(device) if with_bias else None
    results = []
    devices = [device] if device.type == "cuda" else []
    for kind, working in ((TritonBackend, torch.float32), (DenseBackend, torch.float64)):
        with torch.random.fork_rng(devices), torch.inference_mode(False), torch.enable_grad():
            torch.manual_seed(0)
            # Clones, because tensors made in inference mode have no gradient.
            raw = x.to(working).clone().requires_grad_()
            weight = (w if kind is TritonBackend else w.to(working)).clone().requires_grad_()
            labels, offsets = y.clone(), None if bias is None else bias.to(working).clone()
            embeddings = NormalizedEmbeddings(raw, x_dtype)
            step = torch.zeros((), dtype=torch.int64, device=device)
            current = margin.at_step(step, labels, working)
            backend = kind(embeddings, weight, offsets)
            loss, _ = compute_margin_loss(backend, current, labels, step=step, label_smoothing=label_smoothing)
            gradients = torch.autograd.grad(loss.sum(), (raw, weight))
        results.append([t.detach().double() for t in (loss, *gradients)])
    errors = [(ours - theirs).norm() / theirs.norm().clamp_min(1e-30) for ours, theirs in zip(*results, strict=True)]
    return float(torch.stack(errors).amax())  # NaN if one is
