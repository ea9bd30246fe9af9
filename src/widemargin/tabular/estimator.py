"""MarginClassifier: any loss of the registry as a scikit-learn classifier and transformer.

The network, the defaults and the training are those of a comparison, so what `fit` trains is what a fold
of a comparison trains. DataFrames with words, categories, dates or gaps are read by `TableEncoder`, the encoder of
files. `save` writes a fitted one to a folder that `wm.load` and `widemargin predict` read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from ..data.label_sets import rarest_labels
from ..data.tabular.encoder import TableEncoder, needs_encoder
from ..data.tabular.read import are_codes, is_quantity
from ..data.tabular.table import check_cells
from ..io.errors import InputError, format_value
from ..losses.base import Loss
from ..losses.grammar import Sum, loss_options, parse, replace_options
from ..losses.multilabel import check_multilabel_loss, is_multilabel_loss
from ..metrics.angles import Angles, angles
from ..metrics.classification import fit_temperature
from .config import DEFAULT_LOSS, MLPConfig
from .crossval import (
    INNER_FOLDS,
    Partition,
    inner_partitions,
    inner_seed,
    inner_temperatures,
    scale_progress,
    stratified_sample,
)
from .early_stopping import train_validation_split
from .metric_choice import BALANCED_METRIC_THRESHOLD
from .model_stacks import TrainingJob
from .multilabel import is_multilabel_target, read_indicators
from .novelty import MAX_FIT_ROWS, NoveltyDetector
from .single import InputModels, MatrixRows, RowSource, TrainedMLP, learn_preprocessing, network_inputs, train_single
from .tune import check_tuning, tune_single

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
_VALIDATE_DATA_OPTIONS = {
    "dtype": [np.float64, np.float32],
    "ensure_all_finite": "allow-nan",
    "accept_sparse": "csr",
}
_READING_SHARE = 0.1  # of the progress; a guess
MAX_INNER_ROWS = 100_000
"""Rows, a stratified sample where there are more, whose inner folds decide tuning and temperature."""


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
    class_weight : "balanced" weights every class alike, a dict has a weight for each label; None weights rows alike.
    tune : seconds (True for 300) to choose learning rate, weight decay, `s` and `m` on inner folds of the rows, as
        `wm.compare(tune=…)` does; False takes them as they are.
    tune_trials : the number of trials itself, which makes a tuned fit reproducible.
    calibrate : fit a temperature to rows that the weights were not fitted to (those held out for early stopping, or
        those of three inner folds, at about twice the time of a fit), by which `predict_proba` divides the logits.
    random_state : whole number, RandomState or None; the same number gives the same model.
    device : where to train; the fitted model is kept on the CPU.
    verbose : 0 is silent, 1 prints the loss as it goes.

    Options of the loss are parameters too: `loss__s`, `loss__m`, for grid searches.

    X is a matrix, dense or sparse, or a DataFrame. One with columns of words, categories or dates is read by
    `TableEncoder`, columns are then found by name, and levels that `fit` has not seen are none of the known ones.
    Missing values (NaN) are replaced by the column's median in the training rows, as a comparison does.

    Attributes
    ----------
    classes_ : labels in the order of the logits; 0 … C−1 where y were 0 and 1 [n, C].
    multilabel_ : whether rows have several labels.
    encoder_ : the `TableEncoder` of a DataFrame with more than numbers; None without.
    temperature_ : what `predict_proba` divides the logits by; 1 without calibration, and for several labels per row.
    tuned_ : values that tuning chose (lr, weight_decay, s, m); None without.
    loss_ : the loss with them, a parse string.
    novelty_ : the `NoveltyDetector` of `is_unknown`.
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
            tags.classifier_tags.multi_label = is_multilabel_loss(self._parse_loss())
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    # ---------------------------------------------------------------- parameters

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters by name; with `deep` also the options of the loss, as `loss__s`."""
        found: dict[str, Any] = super().get_params(deep)
        if deep:
            with suppress(InputError):  # which `fit` raises
                found |= {f"loss__{name}": value for name, value in loss_options(self._parse_loss()).items()}
        return found

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name, also options of the loss: `loss__s=10`."""
        nested = {name.removeprefix("loss__"): params.pop(name) for name in list(params) if name.startswith("loss__")}
        super().set_params(**params)
        if nested:
            loss = replace_options(self._parse_loss(), **nested)
            self.loss = repr(loss) if isinstance(self.loss, str) else loss
        return self

    @property
    def partial_fit(self) -> NoReturn:
        """There is none."""
        raise AttributeError(
            "MarginClassifier has no partial_fit: the learning rate falls along the whole course and the scaling comes "
            "from all rows, so a model grown in pieces would be another one than fit makes; fit again on all rows, or "
            "stream them from a Parquet file with wm.fit"
        )

    # ---------------------------------------------------------------- fitting

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on X [n, F] with labels y, anew; a y that looks like a number to be predicted is refused.

        y are labels [n], or several labels per row, for `loss="bce"` or `"focal"`: 0 and 1 [n, C], or a list of sets.
        `sample_weight` [n] are factors of the rows' losses, of their errors on held-out rows too.
        """
        is_multilabel = is_multilabel_target(y)
        if is_multilabel:
            check_multilabel_loss(self._parse_loss())
        encoder = None
        if needs_encoder(X):
            encoder = TableEncoder().fit(X)
            x: Any = encoder.transform(X)
            self.n_features_in_, self.feature_names_in_ = encoder.n_features_in_, encoder.feature_names_in_
            if not is_multilabel:
                y = column_or_1d(y, warn=True)
                check_consistent_length(X, y)
        elif is_multilabel:
            x = validate_data(self, X, **_VALIDATE_DATA_OPTIONS)
        else:
            x, y = validate_data(self, X, y, **_VALIDATE_DATA_OPTIONS)
        num_rows, num_columns = x.shape
        check_cells(num_rows, num_columns, "X", " (TruncatedSVD makes fewer)" if hasattr(x, "toarray") else "")
        indicators = None
        if is_multilabel:
            classes, indicators = read_indicators(y, x.shape[0])
            codes = rarest_labels(torch.from_numpy(indicators)).numpy()
        else:
            self._check_not_regression_target(y)
            check_classification_targets(y)
            classes, codes = np.unique(y, return_inverse=True)
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, x, dtype=np.float64, ensure_non_negative=True)
            kept = np.flatnonzero(weights > 0)
            if len(kept) < len(weights):  # as if the others were not there
                x, codes, weights = x[kept], codes[kept], weights[kept]
                indicators = None if indicators is None else indicators[kept]
        return self.fit_source(MatrixRows(x), codes, classes, encoder, indicators=indicators, sample_weight=weights)

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
        """Train on rows that come in blocks, with the place of each row's class among `classes`.

        Args:
            encoder: what made the rows; columns of categories are not scaled.
            indicators: [n, C] where rows have several labels; `codes` are then groups to hold rows out from.
            on_progress: gets shares of the work as they are done.
        """
        if len(classes) < 2:
            raise InputError(f"y has only one class, {classes.tolist()[0]!r}; at least two are needed")
        codes = codes.astype(np.int64)
        spec, device, seed = self._parse_loss(), self._resolve_device(), self._resolve_seed()
        config = self._mlp_config(len(source), source.num_columns, len(classes))
        seconds, trials = check_tuning(self.tune, self.tune_trials)
        if self.calibrate not in (True, False):
            raise InputError(f"calibrate must be True or False, got {format_value(self.calibrate)}")
        weights = self._row_weights(codes, classes, sample_weight, indicators is not None)
        parts: tuple[NDArray[np.int64], NDArray[np.int64] | None] = (
            train_validation_split(codes, config.val_fraction, [seed])
            if config.val_fraction
            else (np.arange(len(source)), None)
        )
        if weights is not None:
            weights *= len(parts[0]) / weights[torch.from_numpy(parts[0])].sum()
        scaler, table = learn_preprocessing(
            source,
            codes,
            len(classes) + (indicators is not None),  # rows without any label are a group of their own
            parts[0],
            config,
            is_numeric=None if encoder is None else encoder.is_numeric_,
            standardize=self.standardize,
            seed=seed,
        )
        table = replace(table, num_classes=len(classes))
        inputs = network_inputs(source, scaler, table, self._dtype, device, scale_progress(on_progress, _READING_SHARE))
        self.temperature_ = 1.0
        self.tuned_: dict[str, float] | None = None
        needs_inner = indicators is None and (seconds is not None or trials is not None)
        needs_inner |= indicators is None and self.calibrate and not config.val_fraction
        share = (1.0 - _READING_SHARE) * (0.5 if needs_inner else 1.0)
        if needs_inner:
            spec, config = self._use_inner_folds(
                inputs,
                codes,
                len(classes),
                spec,
                config,
                seed,
                weights,
                (seconds, trials),
                scale_progress(on_progress, share),
            )
        y = torch.from_numpy(codes if indicators is None else indicators)
        model, history = train_single(
            spec,
            scaler,
            table,
            inputs,
            y,
            parts,
            config,
            seed=seed,
            sample_weight=weights,
            on_progress=print if self.verbose else None,
            on_steps=scale_progress(on_progress, share),
        )
        if parts[1] is not None and indicators is None and self.calibrate:
            held_out = inputs[torch.from_numpy(parts[1])].to("cpu", torch.float64)
            logits = model.head.logits(model.network_outputs(held_out).unsqueeze(0))[0]
            self.temperature_ = fit_temperature(logits.numpy(), codes[parts[1]])
        self.loss_, self.seed_, self.class_counts_ = (
            repr(spec),
            seed,
            np.bincount(codes[parts[0]], minlength=len(classes)).tolist(),
        )
        self._set_model(model, config, classes, encoder, indicators is not None)
        rows = stratified_sample(np.arange(len(codes)), codes, MAX_FIT_ROWS, [seed, 11])
        seen = inputs[torch.from_numpy(rows).to(inputs.device)].to("cpu", torch.float64).numpy()
        self.novelty_ = NoveltyDetector.learn(seen, codes[rows], seed)
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

    def _use_inner_folds(
        self,
        inputs: torch.Tensor,
        codes: NDArray[np.int64],
        num_classes: int,
        spec: Sum | Loss,
        config: MLPConfig,
        seed: int,
        weights: torch.Tensor | None,
        tuning: tuple[float | None, int | None],
        on_progress: Callable[[float], None] | None,
    ) -> tuple[Sum | Loss, MLPConfig]:
        """Loss and settings, tuned if that is asked for; sets `temperature_` and `tuned_`."""
        rows = stratified_sample(np.arange(len(codes)), codes, MAX_INNER_ROWS, [seed, 9])
        if len(rows) < 4 * INNER_FOLDS:
            return spec, config  # an inner fold would have three rows
        chosen = torch.from_numpy(rows)
        models = InputModels.build(
            inputs[chosen.to(inputs.device)].cpu(),
            codes[rows],
            num_classes,
            spec,
            config,
            seed,
            None if weights is None else weights[chosen],
        )
        if tuning != (None, None):
            lopsided = np.bincount(codes).max() >= BALANCED_METRIC_THRESHOLD * len(codes)
            metric = "balanced_accuracy" if lopsided or self.class_weight == "balanced" else "accuracy"
            with torch.enable_grad():
                found = tune_single(models, seconds=tuning[0], trials=tuning[1], metric=metric, on_progress=on_progress)
            if self.verbose:
                chosen_values = ", ".join(f"{name} {value:g}" for name, value in found.values.items())
                print(f"tuned with {found.trials} trials: {chosen_values}")
            self.tuned_ = dict(found.values)
            self.temperature_ = found.temperature if self.calibrate else 1.0
            values = dict(found.values)
            config = replace(config, lr=values.pop("lr"), weight_decay=values.pop("weight_decay"))
            return (replace_options(spec, **values) if values else spec), config
        everything = np.arange(len(rows))
        inner = inner_partitions([Partition(everything, everything[:0])], codes[rows], seed)
        jobs = [TrainingJob(part.training, inner_seed(seed, k)) for k, part in enumerate(inner)]
        with torch.enable_grad():
            self.temperature_ = inner_temperatures(models, inner, jobs, on_progress)[0]
        return spec, config

    def _row_weights(
        self,
        codes: NDArray[np.int64],
        classes: NDArray[Any],
        sample_weight: NDArray[np.float64] | None,
        is_multilabel: bool,
    ) -> torch.Tensor | None:
        """Weights of the rows by `sample_weight` and `class_weight`; None where all are alike."""
        if self.class_weight is None and sample_weight is None:
            return None
        weights = np.ones(len(codes)) if sample_weight is None else sample_weight.copy()
        if self.class_weight is not None:
            if is_multilabel:
                raise InputError("class_weight is for rows with one label each; give sample_weight")
            if self.class_weight != "balanced" and not isinstance(self.class_weight, Mapping):
                raise InputError(
                    f'class_weight must be "balanced", a dict or None, got {format_value(self.class_weight)}'
                )
            weights *= compute_sample_weight(self.class_weight, classes[codes])
        if len(np.unique(codes[weights > 0])) < (1 if is_multilabel else 2):
            raise InputError("fewer than two classes have rows of a weight above 0; at least two are needed")
        return torch.from_numpy(weights)

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
        """Probabilities [n, C]: the softmax of the logits over `temperature_`; of several labels the sigmoid of each.

        The temperature makes probabilities of all losses, also of those whose logits are none of a softmax
        (sphereface2, uniface, p2sgrad). Without calibration these are in the right order, and mean nothing more.
        """
        return self._probabilities(self._logits(X))

    def probabilities_of_embeddings(self, embedded: torch.Tensor) -> NDArray[np.float64]:
        """Probabilities [n, C] of embeddings [n, D], as of the rows themselves."""
        return self._probabilities(self._model.head.logits(embedded.unsqueeze(0))[0])

    def _probabilities(self, logits: torch.Tensor) -> NDArray[np.float64]:
        logits = logits / self.temperature_
        found: NDArray[np.float64] = (torch.sigmoid(logits) if self.multilabel_ else torch.softmax(logits, 1)).numpy()
        return found

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """Logarithms of the probabilities [n, C], exact where these vanish."""
        logits = self._logits(X) / self.temperature_
        log_probabilities = F.logsigmoid(logits) if self.multilabel_ else torch.log_softmax(logits, 1)
        found: NDArray[np.float64] = log_probabilities.numpy()
        return found

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Logits [n, C]; for two classes that exclude each other the second's lead over the first, [n].

        They are not divided by the temperature.
        """
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
        x = self._matrix(X)
        embedded: NDArray[Any] = self._model.embed(x).numpy().astype(x.dtype, copy=False)
        return embedded

    def novelty(self, X: Any) -> NDArray[np.float64]:
        """Distances [n] of rows to what was seen in training: Mahalanobis', to the nearest class mean."""
        x = self._matrix(X)
        return self.novelty_.distances(self._model.inputs(x).numpy())

    def is_unknown(self, X: Any, target_far: float = 0.01) -> NDArray[np.bool_]:
        """Which rows look like nothing seen in training, at a rate of false alarms.

        Args:
            X: rows.
            target_far: share of held-out rows of the training table that would be rejected; at least ten of these must
                be, else the rate is refused.
        """
        check_is_fitted(self)
        limit = self.novelty_.threshold(target_far)
        found: NDArray[np.bool_] = self.novelty(X) > limit
        return found

    def angles(self, X: Any, y: Any) -> Angles:
        """WC-Intra, W-Inter and C-Inter in radians of these rows against the class weights; see `wm.angles`."""
        check_is_fitted(self)
        if self.multilabel_:
            raise InputError("angles are of rows with one label each; this classifier was fitted with several")
        x, y = self._matrix(X), column_or_1d(y)
        check_consistent_length(x, y)
        strange = np.setdiff1d(y, self.classes_)
        if len(strange):
            raise InputError(f"label {strange.tolist()[0]!r} was not among the classes in fit")
        codes = torch.from_numpy(np.searchsorted(self.classes_, y))
        return angles(self._model.embed(x), codes, torch.from_numpy(self.class_weights_))

    def _logits(self, X: Any) -> torch.Tensor:
        x = self._matrix(X)
        return self._model.logits(x)

    def _matrix(self, X: Any) -> Any:
        """Rows as numbers [n, F], by the encoder where there is one."""
        check_is_fitted(self)
        if self.encoder_ is not None:
            return self.encoder_.transform(X)
        return validate_data(self, X, reset=False, **_VALIDATE_DATA_OPTIONS)

    # ---------------------------------------------------------------- a folder

    def save(self, folder: str | Path, *, overwrite: bool = False, command: str = "") -> Path:
        """Write the fitted model to a folder, which `wm.load` and `widemargin predict` read; see `model_files`.

        Args:
            folder: is made; one that holds something else is refused.
            overwrite: replace a model that is there.
            command: how it was made, for people.
        """
        from .model_files import save_model

        check_is_fitted(self)
        return save_model(self, Path(folder), overwrite=overwrite, command=command)

    @property
    def _n_features_out(self) -> int:
        return int(self.embedding_dim_)
