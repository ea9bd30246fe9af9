"""MarginClassifier: any loss of the registry as a scikit-learn classifier and transformer.

The network, the defaults and the training are those of a comparison, so what `fit` trains is what a fold
of a comparison trains. There is no `partial_fit`: the learning rate falls along the whole course and the
scaling comes from all rows, so a model grown in pieces would be another one than `fit` makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from ..data.label_sets import rarest_labels
from ..data.tabular.encode import EncodedTable
from ..data.tabular.read import are_codes, is_quantity
from ..io.errors import InputError
from ..losses.base import Loss
from ..losses.grammar import Sum, parse
from ..losses.multilabel import check_multilabel_loss, is_multilabel_loss
from ..metrics.angles import Angles, angles
from .batched import StackedTable
from .config import MLPConfig
from .early_stopping import train_validation_split
from .model_stacks import build_stacked_table
from .multilabel import is_multilabel_target, read_indicators
from .single import ColumnScaler, check_magnitude, train_single

_RULE_PARAMETERS = (
    "hidden",
    "epochs",
    "min_steps",
    "batch",
    "lr",
    "warmup",
    "weight_decay",
    "dropout",
    "screening",
    "max_components",
)
"""Parameters that follow the size of X where they are None."""
_VALIDATE_DATA_OPTIONS = {"dtype": [np.float64, np.float32], "ensure_all_finite": "allow-nan"}


class MarginClassifier(ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A ReLU network under a margin loss (or any other of the registry) for scikit-learn.

    Parameters
    ----------
    loss : parse string such as "arcface(s=20, m=0.1)" or "softmax + 0.02*center", or a value such as `wm.ArcGrad(s=5)`.
    hidden : widths of the layers before the class weights; the last is the embedding.
    epochs, min_steps : passes over the rows, but at least so many optimizer steps.
    batch, lr, warmup, weight_decay, dropout, screening, max_components : see `MLPConfig`. Of these and the two lines
        above, what is None follows the size of X by the rule of `MLPConfig.for_table`, as in a comparison.
    label_smoothing : see `MLPConfig`.
    standardize : scale and decorrelate (or project) the columns with statistics of the training rows; False leaves X as
        it is.
    early_stopping : hold `validation_fraction` of the rows out, evaluate on them fifty times in a full training, stop
        after `patience` evaluations without a better one (accuracy, then log loss), and keep the best weights. None
        does so where the rule holds rows out: from 4,000 rows on, a tenth of them and 5,000 at the most.
    validation_fraction, patience : see `early_stopping`.
    random_state : whole number, RandomState or None; the same number gives the same model.
    device : where to train; the fitted model is kept on the CPU.
    verbose : 0 is silent, 1 prints the loss as it goes.

    Missing values (NaN) are replaced by the column's median in the training rows, as a comparison does.

    Attributes
    ----------
    classes_ : labels in the order of the logits; 0 … C−1 where y were 0 and 1 [n, C].
    multilabel_ : whether rows have several labels.
    n_features_in_, feature_names_in_ : columns of X, and their names where X had names.
    config_ : the `MLPConfig` it was trained with.
    embedding_dim_ : D, the width of `transform`.
    class_weights_ : class weights [C, D] of the head; [C, k, D] of a loss with k > 1 sub-centres per class.
    n_iter_, n_steps_ : passes over the rows that were begun, and optimizer steps.
    loss_curve_ : mean training loss of each pass, a list of n_iter_ numbers.
    validation_scores_, best_validation_score_ : accuracies on what early stopping held out; None without it.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = MarginClassifier(loss="arcgrad(s=5)", random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.95), model.predict_proba(X[:2]).shape, model.transform(X).shape
    (True, (2, 3), (150, 24))
    """

    _dtype: ClassVar[torch.dtype] = torch.float32

    def __init__(
        self,
        loss: str | Sum | Loss = "arcgrad(s=5)",
        hidden: Sequence[int] | None = None,
        *,
        epochs: float | None = None,
        min_steps: int | None = None,
        batch: int | None = None,
        lr: float | None = None,
        warmup: float | None = None,
        weight_decay: float | None = None,
        dropout: float | None = None,
        label_smoothing: float = 0.0,
        screening: float | None = None,
        max_components: int | None = None,
        standardize: bool = True,
        early_stopping: bool | None = None,
        validation_fraction: float = 0.1,
        patience: int = MLPConfig.patience,
        random_state: Any = None,
        device: str = "cpu",
        verbose: int = 0,
    ) -> None:
        self.loss = loss
        self.hidden = hidden
        self.epochs = epochs
        self.min_steps = min_steps
        self.batch = batch
        self.lr = lr
        self.warmup = warmup
        self.weight_decay = weight_decay
        self.dropout = dropout
        self.label_smoothing = label_smoothing
        self.screening = screening
        self.max_components = max_components
        self.standardize = standardize
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        with suppress(InputError):  # which `fit` raises
            tags.classifier_tags.multi_label = is_multilabel_loss(self._parse_loss())
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    # ---------------------------------------------------------------- fitting

    def fit(self, X: Any, y: Any) -> Self:
        """Train on X [n, F] with labels y, anew; a y that looks like a number to be predicted is refused.

        y are labels [n], or several labels per row, for `loss="bce"` or `"focal"`: 0 and 1 [n, C], or a list of sets.
        """
        spec = self._parse_loss()
        is_multilabel = is_multilabel_target(y)
        if is_multilabel:
            check_multilabel_loss(spec)
            X = validate_data(self, X, **_VALIDATE_DATA_OPTIONS)
            classes, indicators = read_indicators(y, len(X))
            codes = rarest_labels(torch.from_numpy(indicators)).numpy()
        else:
            X, y = validate_data(self, X, y, **_VALIDATE_DATA_OPTIONS)
            self._check_not_regression_target(y)
            check_classification_targets(y)
            classes, codes = np.unique(y, return_inverse=True)
            if len(classes) < 2:
                raise InputError(f"y has only one class, {classes.tolist()[0]!r}; at least two are needed")
        config, device, seed = (
            self._mlp_config(len(X), X.shape[1], len(classes)),
            self._resolve_device(),
            self._resolve_seed(),
        )
        parts = (
            train_validation_split(codes, config.val_fraction, [seed])
            if config.val_fraction
            else (np.arange(len(X)), None)
        )
        scaler, table = self._fit_preprocessing(
            check_magnitude(X.astype(np.float64)),
            codes.astype(np.int64),
            len(classes) + is_multilabel,  # rows without any label are a group of their own
            parts[0],
            config,
        )
        if is_multilabel:
            table = replace(table, y=torch.from_numpy(indicators), num_classes=len(classes))
        model, history = train_single(
            spec,
            scaler,
            table,
            parts,
            config,
            seed=seed,
            patience=config.patience,
            dtype=self._dtype,
            device=device,
            on_progress=print if self.verbose else None,
        )
        self.config_, self.multilabel_ = config, is_multilabel
        self.classes_, self._model, self.embedding_dim_ = classes, model, model.head.weight.shape[2]
        weights = model.head.class_weights[0].numpy().copy()
        self.class_weights_ = weights[:, 0] if weights.shape[1] == 1 else weights
        self.loss_curve_, self.n_iter_, self.n_steps_ = history.losses, len(history.losses), history.steps
        self.validation_scores_ = history.validation_scores
        self.best_validation_score_ = max(history.validation_scores) if history.validation_scores else None
        return self

    @staticmethod
    def _check_not_regression_target(y: NDArray[Any]) -> None:
        """Whole numbers that look like a quantity are refused; those with fractions are refused by scikit-learn."""
        if y.dtype.kind not in "iuf" or (y != np.floor(y)).any():
            return
        different, counts = np.unique(y, return_counts=True)
        values = different.astype(np.float64)
        # Codes of classes that have hardly two rows each, as in a part of a split, occur once by chance.
        few_each = are_codes(values) and 1.5 * len(values) <= len(y) < 4 * len(values)
        if is_quantity(values, counts) and not few_each:
            raise InputError(
                f"y looks like a number to be predicted ({len(values):,} different values in {len(y):,} rows), not "
                "like classes; bin it first, or pass y.astype(str) if these are classes"
            )

    def _fit_preprocessing(
        self,
        X: NDArray[np.float64],
        codes: NDArray[np.int64],
        num_classes: int,
        training: NDArray[np.int64],
        config: MLPConfig,
    ) -> tuple[ColumnScaler, StackedTable]:
        """How the model sees rows: the scaling of its training rows, and what stands in for a missing value."""
        scaler = ColumnScaler.fit(X[training])
        columns = EncodedTable(scaler(X), np.ones(X.shape[1], np.bool_), ())
        table = build_stacked_table(columns, codes, num_classes, [training], torch.float64, config)
        if not self.standardize:
            scale, center = (torch.from_numpy(values).view_as(table.scale) for values in (scaler.scale, scaler.center))
            table = replace(
                table, scale=scale, shift=center, decorrelation=None, projection=None
            )  # back to X as it was
        # In these units the median is 0: it also stands in for what will only be missing in new rows.
        return scaler, replace(table, fill=torch.zeros_like(table.scale))

    def _parse_loss(self) -> Sum | Loss:
        value = parse(self.loss) if isinstance(self.loss, str) else self.loss
        if not isinstance(value, Sum | Loss):
            raise InputError(f"loss must be a parse string such as 'arcgrad(s=5)' or a loss, got {self.loss!r}")
        return value

    def _mlp_config(self, num_rows: int, num_columns: int, num_classes: int) -> MLPConfig:
        """An `MLPConfig` with these numbers, which it checks, and those of the rule where they are None."""
        if self.hidden is not None and not isinstance(self.hidden, list | tuple | np.ndarray):
            raise InputError(f"hidden must be a sequence of whole numbers such as (64, 24), got {self.hidden!r}")
        given = {name: value for name in _RULE_PARAMETERS if (value := getattr(self, name)) is not None}
        if "hidden" in given:
            given["hidden"] = tuple(given["hidden"])
        given |= {"label_smoothing": self.label_smoothing, "patience": self.patience}
        if self.early_stopping is not None:
            given["val_fraction"] = self._check_validation_fraction() if self.early_stopping else 0.0
        return MLPConfig.for_table(num_rows, num_columns, num_classes, **given)

    def _check_validation_fraction(self) -> float:
        """The share of rows that early stopping holds out."""
        share: Any = self.validation_fraction
        if not isinstance(share, Real) or not 0 < float(share) < 1:
            raise InputError(f"validation_fraction must be a number above 0 and below 1, got {share!r}")
        return float(share)

    def _resolve_seed(self) -> int:
        """A whole number is the seed itself, so that a comparison with it has the same starts."""
        draw = check_random_state(self.random_state)
        if isinstance(self.random_state, Integral):
            return int(self.random_state)
        return int(draw.randint(np.iinfo(np.int32).max))

    def _resolve_device(self) -> torch.device:
        try:
            return torch.empty(0, device=self.device).device
        except (RuntimeError, AssertionError, TypeError, NotImplementedError):
            raise InputError(f"device={self.device!r} cannot be used here; device='cpu' always can") from None

    # ---------------------------------------------------------------- prediction

    def predict(self, X: Any) -> NDArray[Any]:
        """Labels [n]; 0 and 1 [n, C] where rows have several labels, 1 for a probability above one half."""
        logits = self._logits(X)
        if self.multilabel_:
            indicators: NDArray[Any] = (logits > 0).numpy().astype(np.int64)
            return indicators
        found: NDArray[Any] = self.classes_[logits.argmax(1).numpy()]  # a tensor of one would index as a number
        return found

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probabilities [n, C]: the softmax of the logits; of several labels per row the sigmoid of each.

        Of losses that are no softmax over the classes (sphereface2, uniface, p2sgrad) these are in the right order and
        sum to 1, but training did not make them probabilities: p2sgrad's logits are cosines, so that even a sure answer
        is hardly above the others. Calibrate them, as with scikit-learn's `CalibratedClassifierCV`, where that matters.
        """
        logits = self._logits(X)
        found: NDArray[np.float64] = (torch.sigmoid(logits) if self.multilabel_ else torch.softmax(logits, 1)).numpy()
        return found

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """Logarithms of the probabilities [n, C], exact where these vanish."""
        logits = self._logits(X)
        log_probabilities = F.logsigmoid(logits) if self.multilabel_ else torch.log_softmax(logits, 1)
        found: NDArray[np.float64] = log_probabilities.numpy()
        return found

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Logits [n, C]; for two classes that exclude each other the second's lead over the first, [n]."""
        logits: NDArray[np.float64] = self._logits(X).numpy()
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 and not self.multilabel_ else logits

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy; where rows have several labels the share of rows all of whose labels are right."""
        check_is_fitted(self)
        if self.multilabel_:
            y = read_indicators(y, None, self.classes_)[1].astype(np.int64)
        return float(super().score(X, y, sample_weight))

    def transform(self, X: Any) -> NDArray[Any]:
        """Embeddings [n, D]."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, **_VALIDATE_DATA_OPTIONS)
        embedded: NDArray[Any] = self._model.embed(X).numpy().astype(X.dtype, copy=False)
        return embedded

    def angles(self, X: Any, y: Any) -> Angles:
        """WC-Intra, W-Inter and C-Inter in radians of these rows against the class weights; see `wm.angles`."""
        check_is_fitted(self)
        if self.multilabel_:
            raise InputError("angles are of rows with one label each; this classifier was fitted with several")
        X, y = validate_data(self, X, y, reset=False, **_VALIDATE_DATA_OPTIONS)
        strange = np.setdiff1d(y, self.classes_)
        if len(strange):
            raise InputError(f"label {strange.tolist()[0]!r} was not among the classes in fit")
        codes = torch.from_numpy(np.searchsorted(self.classes_, y))
        return angles(self._model.embed(X), codes, torch.from_numpy(self.class_weights_))

    def _logits(self, X: Any) -> torch.Tensor:
        check_is_fitted(self)
        return self._model.logits(validate_data(self, X, reset=False, **_VALIDATE_DATA_OPTIONS))

    @property
    def _n_features_out(self) -> int:
        return int(self.embedding_dim_)
