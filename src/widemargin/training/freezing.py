"""Parts of a backbone that are not trained: for the whole run (`freeze`), or in its first epochs (`freeze_epochs`).

Frozen parts are in evaluation mode: batch norm keeps its statistics and dropout is off.
"""

from __future__ import annotations

from torch import nn

from ..io.errors import InputError, spell_option
from ..models.attach import MarginModel
from ..models.neck import BackboneWrapper
from .config import TrainConfig

ALL = "all"


class BackboneFreezing:
    """Which parameters are frozen in which epoch; the head and the layers behind the backbone always train."""

    def __init__(self, model: MarginModel, config: TrainConfig, world_size: int) -> None:
        self.backbone = model.backbone.backbone if isinstance(model.backbone, BackboneWrapper) else model.backbone
        self.stage_epochs, self.world_size = config.freeze_epochs, world_size
        names = [] if config.freeze is None else [name.strip() for name in config.freeze.split(",")]
        for parameter in self._select(names):
            parameter.requires_grad_(False)
        self.trainable = [parameter for parameter in self.backbone.parameters() if parameter.requires_grad]
        if self.stage_epochs >= config.epochs and self.stage_epochs:
            raise InputError(
                f"{spell_option('freeze_epochs', self.stage_epochs)} leaves no epoch of {config.epochs} to train the "
                f"backbone; use {spell_option('freeze', 'all')} if that is intended"
            )

    def _select(self, names: list[str]) -> list[nn.Parameter]:
        parameters = dict(self.backbone.named_parameters())
        if names == [ALL]:
            return list(parameters.values())
        found: list[nn.Parameter] = []
        for name in names:
            part = [p for key, p in parameters.items() if key == name or key.startswith(f"{name}.")]
            if not part:
                parts = ", ".join(dict.fromkeys(key.split(".")[0] for key in parameters))
                raise InputError(
                    f"{spell_option('freeze')}: the backbone has no part {name!r}; it has {parts}, or use all"
                )
            found += part
        return found

    def is_first_stage(self, epoch: int) -> bool:
        """Whether the whole backbone is frozen in this epoch, counted from 0."""
        return epoch < self.stage_epochs

    def begin_epoch(self, epoch: int) -> None:
        """Freeze and set the modes of the backbone's modules, after `model.train()`."""
        first_stage = self.is_first_stage(epoch)
        if self.world_size == 1:  # DDP expects a gradient of every parameter it was built with
            for parameter in self.trainable:
                parameter.requires_grad_(not first_stage)
        trained = set() if first_stage else {id(parameter) for parameter in self.trainable}
        for module in self.backbone.modules():
            own = list(module.parameters())
            if own and not any(id(parameter) in trained for parameter in own):
                module.eval()

    def drop_gradients(self, epoch: int) -> None:
        """Leave the backbone out of the optimizer's next step in the first stage of a run of several processes."""
        if self.world_size > 1 and self.is_first_stage(epoch):
            for parameter in self.trainable:
                parameter.grad = None
