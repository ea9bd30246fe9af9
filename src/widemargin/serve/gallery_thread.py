"""`GalleryThread`: one thread for everything that a server does with the model and the gallery.

A thread of its own, because torch keeps a team of threads for every thread that computes: in a pool of request threads
these teams compete for the cores. Images that arrive while it works wait, and are then embedded and searched together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from ..io.errors import InputError
from ..recognition.enrolment import EMBED_BATCH
from ..recognition.gallery import Gallery
from ..recognition.identification import Identification

if TYPE_CHECKING:
    from PIL import Image

T = TypeVar("T")


@dataclass
class _Probe:
    """An image that waits to be identified."""

    image: Image.Image
    top: int
    found: Future[Identification] = field(default_factory=Future)


class GalleryThread:
    """Runs functions on a gallery one at a time, on its state on disk."""

    def __init__(self, gallery: Gallery) -> None:
        self.gallery = gallery
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gallery")
        self._waiting: deque[_Probe] = deque()

    async def run(self, function: Callable[[], T]) -> T:
        """The result of a function that uses the gallery or the model."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._call, function)

    async def identify(self, image: Image.Image, top: int) -> Identification:
        """The nearest identities of an image, searched together with others that wait."""
        probe = _Probe(image, top)
        self._waiting.append(probe)
        self._thread.submit(self._identify_waiting)  # finds nothing if an earlier call has taken the image along
        return await asyncio.wrap_future(probe.found)

    def _identify_waiting(self) -> None:
        probes = [self._waiting.popleft() for _ in range(min(len(self._waiting), EMBED_BATCH))]
        probes = [probe for probe in probes if probe.found.set_running_or_notify_cancel()]
        if not self._answer(probes):
            for probe in probes:  # one of them is the reason: the others are answered
                self._answer([probe])

    def _answer(self, probes: list[_Probe]) -> bool:
        """Identify images together; False if that failed for several of them, which are then without an answer."""
        if not probes:
            return True
        top = max(probe.top for probe in probes)
        try:
            found = self._call(lambda: self.gallery.identify([probe.image for probe in probes], top=top))
        except Exception as error:
            if len(probes) == 1:
                probes[0].found.set_exception(error)
            return len(probes) == 1
        for probe, one in zip(probes, found, strict=True):
            probe.found.set_result(replace(one, matches=one.matches[: probe.top]))
        return True

    def _call(self, function: Callable[[], T]) -> T:
        """Call a function on the present state; once more if another process changes the gallery meanwhile."""
        self.gallery.reload_if_changed()
        try:
            return function()
        except InputError:
            if self.gallery.reload_if_changed():
                return function()
            raise
