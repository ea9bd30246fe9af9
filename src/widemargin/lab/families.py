"""Which losses the lab shows, and the places its sliders have for each."""

from __future__ import annotations

from dataclasses import dataclass

SCALES = (1.0, 2.0, 5.0, 10.0, 16.0, 20.0, 30.0, 40.0, 64.0)
CLASSES = (2, 3, 10, 100, 1_000, 10_000, 100_000, 1_000_000)


@dataclass(frozen=True)
class Family:
    """One loss: what stands in its brackets for a scale and a margin."""

    name: str
    margins: tuple[float, ...] = ()
    takes: str = "s"
    """What the scale slider is: `s`, `length` (of the embedding, where it is kept) or `nothing` (it has its own)."""
    rest: str = ""
    """Further options, as they are written."""

    @property
    def scales(self) -> tuple[float, ...]:
        return SCALES if self.takes != "nothing" else (1.0,)

    def spelled(self, scale: float, margin: float | None) -> str:
        """The loss in the little language.

        >>> Family("arcface", (0.3,)).spelled(16.0, 0.3)
        'arcface(s=16, m=0.3)'
        """
        inside = [f"s={scale:g}"] if self.takes == "s" else []
        inside += [f"m={margin:g}"] if margin is not None else []
        inside += [self.rest] if self.rest else []
        return f"{self.name}({', '.join(inside)})" if inside else self.name

    def length(self, scale: float) -> float:
        """‖x‖ at this place of the slider."""
        return scale if self.takes == "length" else 1.0


_ARC = tuple(round(0.1 * k, 1) for k in range(9))
FAMILIES = (
    Family("softmax", takes="length"),
    Family("modified_softmax", takes="length"),
    Family("normface"),
    Family("m_softmax", (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0), "length"),
    Family("l_softmax", (1.0, 2.0, 3.0, 4.0), "length", "lam=0"),
    Family("a_softmax", (1.0, 2.0, 3.0, 4.0), "length", "lam=0"),
    Family("cosface", tuple(round(0.06 * k, 2) for k in range(9))),
    Family("arcface", _ARC),
    Family("adacos", takes="nothing"),
    Family("adaacos", _ARC),
    Family("arcgrad"),
)
