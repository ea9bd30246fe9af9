"""Which backend `auto` chooses."""

import pytest
import torch

import widemargin as wm
from head_batch import C, D, batch
from widemargin.head.backends import compiled


def test_auto_backend_streams_when_the_logits_would_not_fit(monkeypatch):
    from widemargin.head.backends import select

    x, y = batch()
    head = wm.Head(D, C, "arcface(s=8)")
    assert head.active_backend is None
    expected = head(x, y)
    assert head.active_backend == "dense"
    monkeypatch.setattr(select, "MIN_STREAM_LOGITS", 10)
    torch.testing.assert_close(head(x, y), expected)
    assert head.active_backend == "stream"


@pytest.mark.skipif(not compiled.can_compile(torch.device("cpu")), reason="no C++ compiler")
def test_auto_trains_at_once_what_native_kernels_can_hold(monkeypatch):
    """Evaluation and mixup of the same head stream, and so do larger batches and heads that must not compile."""
    from widemargin.head.backends import select

    x, y = batch()
    monkeypatch.setattr(select, "MIN_STREAM_LOGITS", 10)
    monkeypatch.setattr(compiled, "MIN_DENSE_COMPILE_LOGITS", 10)
    head, plain = wm.Head(D, C, "arcface(s=8)"), wm.Head(D, C, "arcface(s=8)", compile=False)
    plain.load_state_dict(head.state_dict())
    torch.testing.assert_close(head(x, y), plain(x, y))
    assert (head.active_backend, plain.active_backend) == ("dense", "dense")
    with torch.no_grad():
        head(x, y)
    assert head.active_backend == "stream"
    head(x, y, mix=(y.flip(0), 0.5))
    assert head.active_backend == "stream"
    monkeypatch.setattr(select, "MAX_NATIVE_PRODUCTS", len(x) * C - 1)
    head(x, y)
    assert head.active_backend == "stream"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sample_rate": 0.5}, 'belongs to backend="sampled"'),
        ({"backend": "sampled", "sample_rate": 0.0}, "above 0 and at most 1"),
        ({"backend": "sampled", "sample_rate": True}, "above 0 and at most 1"),
        ({"backend": "sampled", "sample_rate": 0.5, "label_smoothing": 0.1}, "set sample_rate=1"),
        ({"backend": "stream", "group": object()}, "must be a process group"),
        ({"backend": "streem"}, "did you mean 'stream'"),
    ],
)
def test_what_a_backend_cannot_do_is_one_line(options, words):
    with pytest.raises(wm.InputError, match=words):
        wm.Head(D, C, "arcface", **options)
