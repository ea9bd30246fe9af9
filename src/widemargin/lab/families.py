"""Which losses the lab shows, and the places its sliders have for each."""

from __future__ import annotations

from dataclasses import dataclass

SCALES = (1.0, 2.0, 5.0, 10.0, 16.0, 20.0, 30.0, 40.0, 64.0)
CLASS_COUNTS = (2, 3, 10, 100, 1_000, 10_000, 100_000, 1_000_000)


@dataclass(frozen=True)
class Family:
    """One loss: what stands in its brackets for a scale and a margin."""

    name: str
    margins: tuple[float, ...] = ()
    scale_input: str = "s"
    """What the scale slider is: `s`, `length` (of the embedding, where it is kept) or `nothing` (it has its own)."""
    extra_options: str = ""
    """Further options, as they are written."""

    @property
    def scales(self) -> tuple[float, ...]:
        return SCALES if self.scale_input != "nothing" else (1.0,)

    def loss_spec(self, scale: float, margin: float | None) -> str:
        """The loss in the little language.

        >>> Family("arcface", (0.3,)).spelled(16.0, 0.3)
        'arcface(s=16, m=0.3)'
        """
        inside = [f"s={scale:g}"] if self.scale_input == "s" else []
        inside += [f"m={margin:g}"] if margin is not None else []
        inside += [self.extra_options] if self.extra_options else []
        return f"{self.name}({', '.join(inside)})" if inside else self.name

    def x_norm(self, scale: float) -> float:
        """‖x‖ at this place of the slider."""
        return scale if self.scale_input == "length" else 1.0


_ANGULAR_MARGINS = tuple(round(0.1 * k, 1) for k in range(9))
FAMILIES = (
    Family("softmax", scale_input="length"),
    Family("modified_softmax", scale_input="length"),
    Family("normface"),
    Family("m_softmax", (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0), "length"),
    Family("l_softmax", (1.0, 2.0, 3.0, 4.0), "length", "lam=0"),
    Family("a_softmax", (1.0, 2.0, 3.0, 4.0), "length", "lam=0"),
    Family("cosface", tuple(round(0.06 * k, 2) for k in range(9))),
    Family("arcface", _ANGULAR_MARGINS),
    Family("adacos", scale_input="nothing"),
    Family("adaacos", _ANGULAR_MARGINS),
    Family("arcgrad"),
)
