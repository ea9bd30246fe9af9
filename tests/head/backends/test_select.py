"""Which backend `auto` chooses."""

import pytest
import torch

import widemargin as wm
from head_batch import C, D, batch


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
