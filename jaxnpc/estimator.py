"""Certified training as an estimator of scikit-learn, alone or at the end of a pipeline."""

from collections.abc import Hashable, Iterable
from numbers import Integral
from typing import Any, Self

import jax
import numpy as np
import optax
from jaxtyping import ArrayLike, Float, Shaped

from jaxnpc.augmentation import Augment
from jaxnpc.batching import float64_on_cpu
from jaxnpc.certificate import Certificate, robust_accuracy
from jaxnpc.certify import certify
from jaxnpc.decisions import decide
from jaxnpc.domains import Domain
from jaxnpc.extras import require
from jaxnpc.folding import affine_map, fold
from jaxnpc.monitor import History
from jaxnpc.prototypes import Distance, PrototypeClassifier, padded_blocks, scores
from jaxnpc.training import train

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.pipeline import Pipeline
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError:
    require("sklearn.base")  # names the extra, if that is what is missing
    raise

BLOCK = 1024
"""Points whose decision function is computed at a time."""


class PrototypeEstimator(ClassifierMixin, BaseEstimator):
    """A nearest-prototype classifier trained for certified robustness, as scikit-learn has it.

    The parameters are those of [`train`][jaxnpc.training.train], which says more about each.

    Args:
        per_class: prototypes a class; a class with fewer samples gets one a sample.
        distance: the norm that finds the nearest prototype, 1, 2 or inf, or a function.
        q: the norm of the perturbations to be robust against.
        domain: where inputs live, in the units the estimator is given; None for all of R^d.
        objective: what is minimised, by name.
        cap: the radius beyond which robustness earns nothing more; None derives it from the data.
        rivals: how many prototypes of other classes are looked at closely.
        dropout: the probability that a prototype is hidden from a sample of its class.
        smoothing: a temperature that the l-infinity distance needs; 0 for none.
        start: where prototypes start: "kmeans", "sample", or a classifier to go on from.
        components: principal components to train in; None for the input space.
        augment: of images, by name or a function of key and images, which needs `shape`.
        shape: of an image.
        optimizer: "nesterov", which None is too, or "adam", or any optax transformation.
        learning_rate: of a named optimiser at the beginning; None derives it from the data.
        epochs: passes over the training samples.
        batch_size: samples a minibatch.
        validation: the share of the samples that the best prototypes are chosen by and that is not
            trained on; None trains on all and takes the last prototypes.
        criterion: by which it is chosen: "clean", "cra" or "area".
        eps: radii of interest, the first that of "cra".
        random_state: an integer, by which a fit is the same to the last bit; a
            `numpy.random.RandomState`, or None for another fit each time.
        verbose: whether to show a progress bar.

    Attributes:
        classes_: the class labels, sorted.
        classifier_: the [`PrototypeClassifier`][jaxnpc.prototypes.PrototypeClassifier].
        history_: what training recorded.
        settings_: what it takes to repeat it.
        n_features_in_: coordinates of a sample.
        feature_names_in_: their names, where X was a data frame with names.

    Example:
        >>> X = [[0.0, 0.1], [0.2, 0.0], [0.1, 0.2], [1.0, 0.9], [0.8, 1.0], [0.9, 0.8]]
        >>> y = ["low", "low", "low", "high", "high", "high"]
        >>> estimator = PrototypeEstimator(per_class=1, epochs=2).fit(X, y)
        >>> estimator.predict([[0.0, 0.0], [1.0, 1.0]]).tolist(), estimator.score(X, y)
        (['low', 'high'], 1.0)
        >>> certificate = estimator.certify(X, y)
        >>> bool(certificate.radius.min() > 0.3), bool(certificate.exact.all())
        (True, True)
    """

    # What fit sets, for type checkers only: scikit-learn takes their presence for having been set.
    classes_: Shaped[np.ndarray, " C"]
    classifier_: PrototypeClassifier
    history_: History
    settings_: dict[str, float | str]
    n_features_in_: int

    def __init__(
        self,
        per_class: int = 40,
        *,
        distance: float | Distance = 2,
        q: float = 2,
        domain: Domain | None = None,
        objective: str = "margin",
        cap: float | None = None,
        rivals: int = 8,
        dropout: float = 0.4,
        smoothing: float = 0.0,
        start: str | PrototypeClassifier = "kmeans",
        components: int | None = None,
        augment: str | Augment | None = None,
        shape: tuple[int, ...] | None = None,
        optimizer: str | optax.GradientTransformation | None = None,
        learning_rate: float | None = None,
        epochs: int = 40,
        batch_size: int = 500,
        validation: float | None = None,
        criterion: str = "area",
        eps: tuple[float, ...] | None = None,
        random_state: int | np.random.RandomState | None = 0,
        verbose: bool = False,
    ) -> None:
        self.per_class = per_class
        self.distance = distance
        self.q = q
        self.domain = domain
        self.objective = objective
        self.cap = cap
        self.rivals = rivals
        self.dropout = dropout
        self.smoothing = smoothing
        self.start = start
        self.components = components
        self.augment = augment
        self.shape = shape
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.epochs = epochs
        self.batch_size = batch_size
        self.validation = validation
        self.criterion = criterion
        self.eps = eps
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Float[ArrayLike, "n d"], y: Iterable[Hashable]) -> Self:
        """Train prototypes.

        Args:
            X: n samples of d numbers.
            y: their labels, of at least two classes.

        Returns:
            The estimator itself.

        Raises:
            ValueError: if the samples are not finite, there is only one class, or a parameter is
                out of its range.
        """
        points, labels = self._checked(X, y=y)
        check_classification_targets(labels)
        self.classes_ = np.unique(labels)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y has only one class, {self.classes_.tolist()[0]!r}: a classifier needs samples "
                "of at least two"
            )
        parameters = self.get_params(deep=False)
        state, verbose = parameters.pop("random_state"), parameters.pop("verbose")
        seed = (
            state if isinstance(state, Integral) else check_random_state(state).randint(2**31 - 1)
        )
        trained = train(points, labels, **parameters, seed=int(seed), progress=bool(verbose))
        self.classifier_ = trained.classifier
        self.history_, self.settings_ = trained.history, trained.settings
        return self

    def predict(self, X: Float[ArrayLike, "n d"]) -> Shaped[np.ndarray, " n"]:
        """The class of the nearest prototype, judged in float64.

        Args:
            X: n samples.

        Returns:
            Their labels; between equally close classes the first in `classes_`.

        Raises:
            NotFittedError: before `fit`.
            ValueError: if the samples are not finite or of another size.
        """
        points = self._points(X)
        with np.errstate(
            over="ignore", invalid="ignore"
        ):  # distances beyond float64 decide nothing
            return self.classes_[np.maximum(decide(self.classifier_, points).predicted, 0)]

    def decision_function(self, X: Float[ArrayLike, "n d"]) -> Float[np.ndarray, "n *C"]:
        """How much closer one class is than the others.

        Args:
            X: n samples.

        Returns:
            The negative distance to the nearest prototype of each class, (n, C), in float64; of two
            classes how much closer the second one is than the first, (n,), positive where it is
            predicted.

        Raises:
            NotFittedError: before `fit`.
            ValueError: if the samples are not finite or of another size.
        """
        points = np.asarray(self._points(X), np.float64)
        classifier = jax.tree.map(np.asarray, self.classifier_)
        with float64_on_cpu():
            blocks = [
                np.asarray(scores(classifier, block))[:count]
                for block, count in padded_blocks(points, BLOCK)
            ]
        values = np.concatenate(blocks)
        return values[:, 1] - values[:, 0] if len(self.classes_) == 2 else values

    def certify(
        self,
        X: Float[ArrayLike, "n d"],
        y: Iterable[Hashable] | None = None,
        *,
        q: float | None = None,
        domain: Domain | None = None,
        **options: Any,
    ) -> Certificate:
        """Prove how far each sample can move before its class changes, in the estimator's units.

        In a pipeline those are the units behind the scaler: there
        [`certify_pipeline`][jaxnpc.estimator.certify_pipeline] has the input's.

        Args:
            X: n samples. One that is NaN or infinite gets radius 0.
            y: their labels: a misclassified sample gets radius 0. None certifies predictions.
            q: the norm of the perturbation; by default the one the estimator was trained for.
            domain: where inputs live; by default likewise.
            options: further arguments of [`jaxnpc.certify`][jaxnpc.certify.certify].

        Returns:
            The certificate.

        Raises:
            NotFittedError: before `fit`.
            ValueError: if an argument does not fit.
        """
        points = self._points(X, ensure_all_finite=False)
        q = self.q if q is None else q
        domain = self.domain if domain is None else domain
        return certify(self.classifier_, points, y, q=q, domain=domain, **options)

    def _points(self, X: Any, **options: Any) -> Float[np.ndarray, "n d"]:
        check_is_fitted(self)
        return self._checked(X, reset=False, **options)

    def _checked(self, X: Any, **options: Any) -> Any:
        # As Any: scikit-learn's own defaults are strings, for which pyright takes its arguments.
        validate: Any = validate_data
        return validate(self, X, dtype=(np.float64, np.float32), **options)


def input_space(model: Any) -> PrototypeClassifier:
    """The classifier of the input itself that a pipeline is.

    Args:
        model: a fitted [`PrototypeEstimator`][jaxnpc.estimator.PrototypeEstimator], a `Pipeline` of
            affine transformers (those in `jaxnpc.folding.AFFINE`) that ends with one, or a search
            over such models.

    Returns:
        The classifier, its prototypes in the units of the input; see
        [`fold`][jaxnpc.folding.fold] about its precision.

    Raises:
        NotFittedError: before `fit`.
        TypeError: if a step is of another kind.
        ValueError: if the distance is none that stays one behind these transformers.

    Example:
        >>> from sklearn.pipeline import make_pipeline
        >>> from sklearn.preprocessing import MinMaxScaler
        >>> estimator = PrototypeEstimator(per_class=1, epochs=1)
        >>> model = make_pipeline(MinMaxScaler(), estimator)
        >>> model = model.fit([[0.0, 0.0], [10.0, 1.0]], ["left", "right"])
        >>> input_space(model).prototypes.shape, input_space(model).metric.round(3).tolist()
        ((2, 2), [[0.1..., 0.0], [0.0, 1.0]])
    """
    steps = _steps(model)
    if not steps or not isinstance(steps[-1], PrototypeEstimator):
        raise TypeError(f"model must be or end with a PrototypeEstimator, got {model!r}")
    check_is_fitted(steps[-1])
    return fold(steps[-1].classifier_, [affine_map(t) for t in steps[:-1]])


def certify_pipeline(
    model: Any,
    X: Float[ArrayLike, "n d"],
    y: Iterable[Hashable] | None = None,
    *,
    q: float | None = None,
    domain: Domain | None = None,
    **options: Any,
) -> Certificate:
    """Prove how far each sample can move before a pipeline changes its class, in the input's units.

    All of it is computed in float64, so that classifier and pipeline differ by its rounding only.

    Args:
        model: as in [`input_space`][jaxnpc.estimator.input_space].
        X: n samples as the pipeline takes them.
        y: their labels: a misclassified sample gets radius 0. None certifies predictions.
        q: the norm of the perturbation of the input; by default the one the last step was trained
            for.
        domain: where inputs live, in their own units; None for all of R^d.
        options: further arguments of [`jaxnpc.certify`][jaxnpc.certify.certify].

    Returns:
        The certificate; its witnesses are inputs.

    Raises:
        NotFittedError: before `fit`.
        TypeError: if a step is of another kind.
        ValueError: if an argument does not fit, or the distance is none that stays one behind the
            transformers.
    """
    with jax.enable_x64(True):
        classifier = input_space(model)
        norm: float = _steps(model)[-1].q if q is None else q
        return certify(classifier, np.asarray(X), y, q=norm, domain=domain, **options)


def certified_accuracy(
    model: Any, X: Float[ArrayLike, "n d"], y: Iterable[Hashable], *, eps: float, **options: Any
) -> float:
    """The share of samples whose class is right and proved to be up to eps, in the input's units.

    With its keyword arguments fixed it is a scorer for scikit-learn's searches, which compares
    pipelines with different scalers fairly:
    `GridSearchCV(pipeline, grid, scoring=functools.partial(certified_accuracy, eps=1.5))`.

    Args:
        model: as in [`input_space`][jaxnpc.estimator.input_space].
        X: n samples.
        y: their labels.
        eps: the size of the perturbation.
        options: further arguments of
            [`certify_pipeline`][jaxnpc.estimator.certify_pipeline].

    Returns:
        A share between 0 and 1.

    Raises:
        ValueError: as `certify_pipeline` does, or if eps is negative.
    """
    return float(robust_accuracy(certify_pipeline(model, X, y, **options), eps))


def _steps(model: Any) -> list[Any]:
    """The steps that do something, those of pipelines in pipelines too, in order."""
    model = getattr(model, "best_estimator_", model)
    if not isinstance(model, Pipeline):
        return [] if model is None or model == "passthrough" else [model]
    return [part for _, step in model.steps for part in _steps(step)]
