"""MarginClassifier: any loss that distinguishes classes, as a scikit-learn classifier and transformer.

Network, defaults and training are those of `compare`: with the same rows and settings `fit` gives the model of one of
its folds. DataFrames with words, categories, dates or missing values are read by `TableEncoder`, as files are. `save`
writes a fitted model to a folder that `wm.load` and `widemargin predict` read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import (
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
)

from ..data.tabular.encoder import TableEncoder
from ..io.errors import InputError
from ..losses.base import Loss
from ..losses.grammar import Sum, loss_options, replace_options
from ..losses.multilabel import check_multilabel_loss, is_multilabel_loss
from ..metrics.angles import Angles, angles
from .config import DEFAULT_LOSS, MLPConfig
from .fit_options import parse_loss, resolve_fit_options
from .fit_rows import fit_rows
from .multilabel import is_multilabel_target, read_indicators
from .single import MatrixRows, RowSource, TrainedMLP
from .training_data import combine_weights, read_training_data, validate_matrix


class MarginClassifier(ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A network with ReLU layers, trained with a margin loss or any other loss that distinguishes classes.

    Parameters
    ----------
    loss : parse string such as "arcface(s=20, m=0.1)" or "softmax + 0.02*center", or a value such as `wm.ArcGrad(s=5)`.
        Its options are parameters too, `loss__s` and `loss__m`, for grid searches.
    hidden : widths of the layers before the class weights; the last is the embedding.
    epochs, min_steps : passes over the rows, but at least this many optimizer steps.
    batch, lr, warmup, weight_decay, dropout, screening, max_components : see `MLPConfig`. Of these and the two lines
        above, those that are None follow the size of X by the rule of `MLPConfig.for_table`, as in a comparison.
    label_smoothing : see `MLPConfig`.
    standardize : scale and decorrelate (or project) the columns with statistics of the training rows; False leaves X
        unchanged.
    early_stopping : hold out `validation_fraction` of the rows, evaluate on them fifty times in a full training, stop
        after `patience` evaluations without an improvement (of accuracy, then of log loss), and keep the best weights.
        None does so from 4,000 rows on, with a tenth of them, at most 5,000.
    validation_fraction, patience : see `early_stopping`.
    class_weight : "balanced" gives every class the same total weight, a dict has a weight for each label; None gives
        every row the same weight.
    tune : seconds (True for 300) to select learning rate, weight decay, `s` and `m` on inner folds of the rows, as
        `wm.compare(tune=…)` does; False does not tune.
    tune_trials : number of trials instead of seconds, which makes a tuned fit reproducible.
    calibrate : fit a temperature, by which `predict_proba` divides the logits, on rows that the weights were not fitted
        to: those held out for early stopping, or those of three inner folds, which about doubles the time of a fit.
    random_state : whole number, RandomState or None; the same number gives the same model.
    device : where to train; the fitted model is kept on the CPU.
    verbose : 0 prints nothing, 1 prints the loss during training.

    X is a matrix, dense or sparse, or a DataFrame. A DataFrame with words, categories or dates is read by
    `TableEncoder`; its columns are then found by name, and levels that were not in the training rows are encoded as
    zeros. Missing values (NaN) are replaced by the column's median in the training rows, as in a comparison.

    Attributes
    ----------
    classes_ : labels in the order of the logits; 0 … C−1 if y was a matrix of 0 and 1 [n, C].
    multilabel_ : whether rows have several labels.
    encoder_ : the `TableEncoder` of a DataFrame with other columns than numbers, else None.
    temperature_ : what `predict_proba` divides the logits by; 1 without calibration, and for several labels per row.
    tuned_ : values that tuning selected (lr, weight_decay, s, m); None without tuning.
    loss_ : the loss with these values, a parse string.
    novelty_ : the `NoveltyDetector` of `is_unknown`.
    n_features_in_, feature_names_in_ : columns of X, and their names if X had names.
    config_ : the `MLPConfig` of the training.
    embedding_dim_ : D, the number of columns that `transform` returns.
    class_weights_ : class weights [C, D] of the head; [C, k, D] of a loss with k > 1 sub-centres per class.
    n_iter_, n_steps_ : passes over the rows, the last perhaps incomplete, and optimizer steps.
    loss_curve_ : mean training loss of each pass, a list of n_iter_ numbers.
    validation_scores_, best_validation_score_ : accuracies on the rows held out for early stopping; None without it.

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
        loss: str | Sum | Loss = DEFAULT_LOSS,
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
        class_weight: str | Mapping[Any, float] | None = None,
        tune: float | bool = False,
        tune_trials: int | None = None,
        calibrate: bool = True,
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
        self.class_weight = class_weight
        self.tune = tune
        self.tune_trials = tune_trials
        self.calibrate = calibrate
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.sparse = True
        with suppress(InputError):  # which `fit` raises
            tags.classifier_tags.multi_label = is_multilabel_loss(parse_loss(self.loss))
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    # ---------------------------------------------------------------- parameters

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters by name; with `deep` also the options of the loss, as `loss__s`."""
        parameters: dict[str, Any] = super().get_params(deep)
        if deep:
            with suppress(InputError):  # which `fit` raises
                parameters |= {f"loss__{name}": value for name, value in loss_options(parse_loss(self.loss)).items()}
        return parameters

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name, also options of the loss: `loss__s=10`."""
        nested = {name.removeprefix("loss__"): params.pop(name) for name in list(params) if name.startswith("loss__")}
        super().set_params(**params)
        if nested:
            loss = replace_options(parse_loss(self.loss), **nested)
            self.loss = repr(loss) if isinstance(self.loss, str) else loss
        return self

    @property
    def partial_fit(self) -> NoReturn:
        """Not available; the AttributeError gives the reason."""
        raise AttributeError(
            "MarginClassifier has no partial_fit: the learning rate decays over the whole training and the columns are "
            "scaled by statistics of all rows, so a model trained in parts would differ from that of fit; fit again on "
            "all rows, or stream them from a Parquet file with wm.fit"
        )

    # ---------------------------------------------------------------- fitting

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on X [n, F] with labels y, discarding an earlier fit; regression targets are refused.

        y has labels [n], or several labels per row for `loss="bce"` or `"focal"`: 0 and 1 [n, C], or a list of sets.
        `sample_weight` [n] multiplies the losses of the rows. Rows of weight 0 are left out.
        """
        is_multilabel = is_multilabel_target(y)
        if is_multilabel:
            check_multilabel_loss(parse_loss(self.loss))
        data = read_training_data(self, X, y, sample_weight, is_multilabel=is_multilabel)
        return self.fit_source(
            MatrixRows(data.x),
            data.codes,
            data.classes,
            data.encoder,
            indicators=data.indicators,
            sample_weight=data.sample_weight,
        )

    def fit_source(
        self,
        source: RowSource,
        codes: NDArray[np.int64],
        classes: NDArray[Any],
        encoder: TableEncoder | None = None,
        *,
        indicators: NDArray[np.bool_] | None = None,
        sample_weight: NDArray[np.float64] | None = None,
        on_progress: Callable[[float], None] | None = None,
    ) -> Self:
        """Train on rows that are read in blocks.

        Args:
            source: rows as numbers.
            codes: [n], the position of each row's class in `classes`.
            classes: sorted labels.
            encoder: the encoder of the rows; columns of categories are not scaled.
            indicators: [n, C] if rows have several labels; `codes` are then the groups by which rows are held out.
            sample_weight: [n], factors of the rows' losses.
            on_progress: called with the share of the work done since the last call.
        """
        if len(classes) < 2:
            raise InputError(f"y has only one class, {classes.tolist()[0]!r}; at least two are needed")
        codes, is_multilabel = codes.astype(np.int64), indicators is not None
        fit = fit_rows(
            source,
            codes,
            len(classes),
            resolve_fit_options(self, self._dtype, len(source), source.num_columns, len(classes)),
            is_numeric=None if encoder is None else encoder.is_numeric_,
            indicators=indicators,
            weights=combine_weights(self.class_weight, sample_weight, codes, classes, is_multilabel),
            on_progress=on_progress,
        )
        self.loss_, self.seed_, self.class_counts_ = repr(fit.loss), fit.seed, fit.class_counts
        self.tuned_, self.temperature_, self.novelty_ = fit.tuned, fit.temperature, fit.novelty
        self._set_model(fit.model, fit.config, classes, encoder, is_multilabel)
        history = fit.history
        self.loss_curve_, self.n_iter_, self.n_steps_ = history.losses, len(history.losses), history.steps
        self.validation_scores_ = history.validation_scores
        self.best_validation_score_ = max(history.validation_scores) if history.validation_scores else None
        return self

    def _set_model(
        self,
        model: TrainedMLP,
        config: MLPConfig,
        classes: NDArray[Any],
        encoder: TableEncoder | None,
        is_multilabel: bool,
    ) -> None:
        self.config_, self.multilabel_, self.encoder_ = config, is_multilabel, encoder
        self.classes_, self._model, self.embedding_dim_ = classes, model, model.head.weight.shape[2]
        weights = model.head.class_weights[0].numpy().copy()
        self.class_weights_ = weights[:, 0] if weights.shape[1] == 1 else weights

    # ---------------------------------------------------------------- prediction

    def predict(self, X: Any) -> NDArray[Any]:
        """Labels [n]; 0 and 1 [n, C] if rows have several labels, 1 for a probability above one half."""
        logits = self._logits(X)
        if self.multilabel_:
            indicators: NDArray[Any] = (logits > 0).numpy().astype(np.int64)
            return indicators
        labels: NDArray[Any] = self.classes_[logits.argmax(1).numpy()]  # a tensor of one would index as a number
        return labels

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probabilities [n, C]: softmax of the logits divided by `temperature_`; with several labels per row sigmoid.

        Calibration makes them probabilities for all losses, also for those that are not trained with a softmax of these
        logits (sphereface2, uniface, p2sgrad). Without calibration only their order is meaningful.
        """
        return self._probabilities(self._logits(X))

    def probabilities_of_embeddings(self, embedded: torch.Tensor) -> NDArray[np.float64]:
        """Probabilities [n, C] from embeddings [n, D], equal to those of the rows."""
        return self._probabilities(self._model.head.logits(embedded.unsqueeze(0))[0])

    def _probabilities(self, logits: torch.Tensor) -> NDArray[np.float64]:
        logits = logits / self.temperature_
        probabilities = torch.sigmoid(logits) if self.multilabel_ else torch.softmax(logits, 1)
        array: NDArray[np.float64] = probabilities.numpy()
        return array

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """Logarithms of the probabilities [n, C], finite also where these underflow to 0."""
        logits = self._logits(X) / self.temperature_
        log_probabilities = F.logsigmoid(logits) if self.multilabel_ else torch.log_softmax(logits, 1)
        array: NDArray[np.float64] = log_probabilities.numpy()
        return array

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Logits [n, C], not divided by the temperature; for two classes the second minus the first, [n]."""
        logits: NDArray[np.float64] = self._logits(X).numpy()
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 and not self.multilabel_ else logits

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy; with several labels per row the share of rows with all labels correct."""
        check_is_fitted(self)
        if self.multilabel_:
            y = read_indicators(y, None, self.classes_)[1].astype(np.int64)
        return float(super().score(X, y, sample_weight))

    def transform(self, X: Any) -> NDArray[Any]:
        """Embeddings [n, D]."""
        x = self._matrix(X)
        embedded: NDArray[Any] = self._model.embed(x).numpy().astype(x.dtype, copy=False)
        return embedded

    def novelty(self, X: Any) -> NDArray[np.float64]:
        """Mahalanobis distance [n] of each row to the nearest class mean of the training rows."""
        x = self._matrix(X)
        return self.novelty_.distances(self._model.inputs(x).numpy())

    def is_unknown(self, X: Any, target_far: float = 0.01) -> NDArray[np.bool_]:
        """Which rows are farther from the training rows than a threshold: booleans [n].

        Args:
            X: rows.
            target_far: rate of false alarms, the share of held-out rows of the training table that the threshold
                rejects. A rate at which these are fewer than ten is refused.
        """
        check_is_fitted(self)
        limit = self.novelty_.threshold(target_far)
        is_far: NDArray[np.bool_] = self.novelty(X) > limit
        return is_far

    def angles(self, X: Any, y: Any) -> Angles:
        """WC-Intra, W-Inter and C-Inter in radians of these rows against the class weights; see `wm.angles`."""
        check_is_fitted(self)
        if self.multilabel_:
            raise InputError("angles need one label per row; this classifier was fitted with several")
        x, y = self._matrix(X), column_or_1d(y)
        check_consistent_length(x, y)
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise InputError(f"label {unknown.tolist()[0]!r} was not among the classes in fit")
        codes = torch.from_numpy(np.searchsorted(self.classes_, y))
        return angles(self._model.embed(x), codes, torch.from_numpy(self.class_weights_))

    def _logits(self, X: Any) -> torch.Tensor:
        x = self._matrix(X)
        return self._model.logits(x)

    def _matrix(self, X: Any) -> Any:
        """Rows as numbers [n, F], encoded if the training rows were."""
        check_is_fitted(self)
        if self.encoder_ is not None:
            return self.encoder_.transform(X)
        return validate_matrix(self, X, reset=False)

    # ---------------------------------------------------------------- a folder

    def save(self, folder: str | Path, *, overwrite: bool = False, command: str = "") -> Path:
        """Write the fitted model to a folder, which `wm.load` and `widemargin predict` read; see `model_files`.

        Args:
            folder: is created; an existing folder is refused unless it is empty.
            overwrite: replace an existing model; a folder with other files is refused.
            command: the command that made the model, stored in the folder for readers.
        """
        from .model_files import save_model

        check_is_fitted(self)
        return save_model(self, Path(folder), overwrite=overwrite, command=command)

    @property
    def _n_features_out(self) -> int:
        return int(self.embedding_dim_)
