r"""Piecewise interpolants of smooth functions, with bounds on the error that hold everywhere.

**Between two nodes.** On a piece the remainder r = f - p of the chord (degree 1) or of the parabola
through the ends and the middle (degree 2) is tabulated in steps of $\Delta$. Between two entries r
differs from the line through them by at most $\tfrac18 \Delta^2 \max |r''|$. There r'' is f'' for a
chord; for a parabola it is 0 somewhere on the piece (r has three zeros there), hence at most the
piece's length times $\max |f^{(3)}|$. So the largest entry plus that much bounds |r|. The
derivatives are tabulated too and count as monotone between neighbouring entries. The nodes start
out dividing the integral of $|f^{(d+1)}|^{1/(d+1)}$ into equal parts, as the textbook bounds
$\tfrac18 h^2 \max |f''|$ and $h^3 \max |f^{(3)}| / (72 \sqrt 3)$ suggest, and are evened out until
all pieces are about equally far off; their number is counted up until the error is kept.

**Outside the outermost nodes** a, b the interpolant goes straight on with the slope of f's
asymptote. The gap g between f and its asymptote is monotone there (that too is read off the table)
and tends to 0, so $|g(x) - g(b)| \le |g(b)|$ bounds the error for every x, however large.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxmpd.activations import PiecewiseLinear, piecewise_linear

Asymptotes = tuple[tuple[float, float], tuple[float, float]]
"""Slope and intercept of the lines that a function tends to, on the left and on the right."""

TABLE = 1 << 13
"""Intervals of the table that the derivative is read from."""

ROUNDS = 20
"""How often the lengths of the pieces are evened out before one more is tried."""

FARTHEST = 1e6
"""How far out an asymptote is looked for."""


class Interpolant(NamedTuple):
    """A piecewise-linear function that stands in for a smooth one.

    Attributes:
        function: the interpolant.
        error: no value of it is farther than this from the smooth function's, up to rounding.
    """

    function: PiecewiseLinear
    error: float


class Nodes(NamedTuple):
    """What the search for an interpolant finds; it takes a while, and the rest does not.

    Attributes:
        abscissae: n + 1 points where the interpolant meets the function, in ascending order.
        error: the bound on the distance between the two.
    """

    abscissae: tuple[float, ...]
    error: float


class Pieces(NamedTuple):
    """A continuous piecewise polynomial.

    Attributes:
        kinks: n + 1 abscissae where the pieces meet.
        anchors: the point about which each of the n + 2 pieces is expanded.
        coefficients: a row a piece, in powers of x - anchor, constant first.
        error: a bound on the distance from the function that is interpolated.
    """

    kinks: tuple[float, ...]
    anchors: tuple[float, ...]
    coefficients: tuple[tuple[float, ...], ...]
    error: float


def interpolate(
    fn: Callable[[Any], Any],
    error: float = 1e-2,
    asymptotes: Asymptotes = ((0.0, -1.0), (0.0, 1.0)),
    derivative: Callable[[np.ndarray], np.ndarray] | None = None,
    known: Nodes | None = None,
) -> Interpolant:
    """A piecewise-linear activation in place of a smooth one.

    Args:
        fn: the smooth function of one number, in terms of `jax.numpy` unless `derivative` is given.
        error: the greatest distance allowed, positive.
        asymptotes: the lines fn tends to at minus and plus infinity, by default those of tanh.
        derivative: fn's second derivative, elementwise; by default `jax.grad` finds it.
        known: what the search for nodes found before; by default it runs.

    Returns:
        The activation, with as few kinks as the error allows, and the bound proved for it.

    Raises:
        ValueError: if the error is not positive or fn does not come near the asymptotes.

    Example:
        >>> import jax.numpy as jnp
        >>> softsign = interpolate(lambda x: x / (1 + jnp.abs(x)), 0.05)
        >>> len(softsign.function.kinks), softsign.error <= 0.05
        (8, True)

    References:
        C. de Boor, A Practical Guide to Splines, 1978, chapters II and III.
    """
    pieces = interpolate_pieces(fn, error, asymptotes, 1, derivative, known)
    first = pieces.coefficients[0][0]  # both tails are expanded about their node
    slopes = [row[1] for row in pieces.coefficients]
    function = piecewise_linear(pieces.kinks, slopes, (pieces.kinks[0], first))
    return Interpolant(function, pieces.error)


def interpolate_pieces(
    fn: Callable[[Any], Any],
    error: float,
    asymptotes: Asymptotes,
    degree: int,
    derivative: Callable[[np.ndarray], np.ndarray] | None = None,
    known: Nodes | None = None,
) -> Pieces:
    """The continuous interpolant of degree 1 or 2, in the manner of `interpolate`.

    Args:
        fn: the smooth function.
        error: the greatest distance allowed.
        asymptotes: the lines fn tends to.
        degree: 1 for chords, 2 for parabolas.
        derivative: the derivative of order degree + 1.
        known: what the search for nodes found before; by default it runs.

    Returns:
        The pieces and the bound.

    Raises:
        ValueError: as `interpolate`, or if the degree is neither 1 nor 2.
    """
    if degree not in (1, 2):
        raise ValueError(f"degree must be 1 or 2, got {degree}")
    if not error > 0:
        raise ValueError(f"error must be positive, got {error}")
    value = _elementwise(fn)
    if known is None:
        derivative = _derivative(fn, degree + 1) if derivative is None else derivative
        known = _search(value, derivative, asymptotes, degree, error)
    nodes = np.array(known.abscissae)
    anchors, rows = _parabolas(value, nodes, degree)
    start, stop = value(nodes[:1]), value(nodes[-1:])
    tails = np.zeros((degree + 1, 2))
    tails[0] = start[0], stop[0]
    tails[1] = asymptotes[0][0], asymptotes[1][0]
    coefficients = np.concatenate([tails[:, :1], rows, tails[:, 1:]], axis=1)
    return Pieces(
        tuple(nodes.tolist()),
        (float(nodes[0]), *anchors.tolist(), float(nodes[-1])),
        tuple(map(tuple, coefficients.T.tolist())),
        known.error,
    )


def _search(
    value: Callable[[np.ndarray], np.ndarray],
    derivative: Callable[[np.ndarray], np.ndarray],
    asymptotes: Asymptotes,
    degree: int,
    error: float,
) -> Nodes:
    """The fewest nodes that keep the error, and the error that they keep."""
    gaps = [
        lambda x, m=m, c=c, side=side: value(side * x) - (m * side * x + c)
        for side, (m, c) in zip((-1, 1), asymptotes, strict=True)
    ]
    (a, left), (b, right) = (_reach(gap, error) for gap in gaps)
    nodes, inner = _nodes(value, derivative, (-a, b), degree, error)
    return Nodes(tuple(nodes.tolist()), max(inner, left, right))


def _elementwise(fn: Callable[[Any], Any]) -> Callable[[np.ndarray], np.ndarray]:
    """The function on arrays, in float64."""

    def value(x: np.ndarray) -> np.ndarray:
        with jax.enable_x64(True):
            return np.asarray(fn(np.asarray(x, np.float64)), np.float64)

    return value


def _derivative(fn: Callable[[Any], Any], order: int) -> Callable[[np.ndarray], np.ndarray]:
    for _ in range(order):
        fn = jax.grad(fn)
    return _elementwise(jax.vmap(fn))


def _reach(gap: Callable[[np.ndarray], np.ndarray], error: float) -> tuple[float, float]:
    """Where the gap to an asymptote has come down to the error for good, and the gap there."""
    far = 1.0
    while not abs(float(gap(np.array([far]))[0])) <= error / 16:
        far *= 2
        if far > FARTHEST:
            raise ValueError(
                f"asymptotes: the function is still {float(gap(np.array([far / 2]))[0])} away from "
                f"its asymptote at a distance of {far / 2}"
            )
    x = np.linspace(0, far, TABLE + 1)
    g = np.abs(gap(x))
    # The last entry from which on the gap only falls and keeps the error.
    fine = (g[:-1] >= g[1:]) & (g[:-1] <= error)
    first = len(fine) - int(np.argmin(fine[::-1])) if not fine.all() else 0
    return float(x[first]), float(g[first])


def _parabolas(
    value: Callable[[np.ndarray], np.ndarray], nodes: np.ndarray, degree: int
) -> tuple[np.ndarray, np.ndarray]:
    """The anchors and the coefficients, a column a piece, of chords or parabolas on nodes."""
    lo, hi = nodes[:-1], nodes[1:]
    start, stop = value(lo), value(hi)
    slope = (stop - start) / (hi - lo)
    if degree == 1:
        return lo, np.stack([start, slope])
    middle = value((lo + hi) / 2)
    return (lo + hi) / 2, np.stack(
        [middle, slope, 2 * (start - 2 * middle + stop) / (hi - lo) ** 2]
    )


def _nodes(
    value: Callable[[np.ndarray], np.ndarray],
    derivative: Callable[[np.ndarray], np.ndarray],
    ends: tuple[float, float],
    degree: int,
    error: float,
) -> tuple[np.ndarray, float]:
    """The fewest nodes between the ends whose pieces keep the error, and the bound."""
    order = degree + 1
    x = np.linspace(*ends, TABLE + 1)
    cell = (ends[1] - ends[0]) / TABLE
    f, size = value(x), np.abs(derivative(x))
    # Entries next to a piece count too, so that no maximum is missed between two of them.
    around = np.maximum(size, np.maximum(np.roll(size, 1), np.roll(size, -1)))

    def bounds(nodes: np.ndarray) -> np.ndarray:
        anchors, rows = _parabolas(value, nodes, degree)
        piece = np.clip(np.searchsorted(nodes, x, side="right") - 1, 0, len(anchors) - 1)
        shift = x - anchors[piece]
        off = np.abs(f - np.polynomial.polynomial.polyval(shift, rows[:, piece], tensor=False))
        starts = np.searchsorted(piece, np.arange(len(anchors)))
        most = np.maximum.reduceat(around, starts) * (np.diff(nodes) if degree == 2 else 1)
        return np.maximum.reduceat(off, starts) + cell**2 / 8 * most

    density = size ** (1 / order)
    density = density + 1e-3 * density.mean() + 1e-300
    mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    constant = {1: 1 / 8, 2: 1 / (72 * math.sqrt(3))}[degree]
    estimate = mass[-1] * cell * (constant / error) ** (1 / order)
    for count in range(max(1, int(estimate / 2)), TABLE // 16):
        nodes = np.interp(np.linspace(0, mass[-1], count + 1), mass, x)
        for _ in range(ROUNDS):
            bound = bounds(nodes)
            if bound.max() <= error:
                return nodes, float(bound.max())
            # Longer pieces where there is room, shorter ones where there is none.
            lengths = np.diff(nodes) * np.maximum(bound, 1e-3 * bound.max()) ** (-0.7 / order)
            parts = np.cumsum(lengths)[:-1] / lengths.sum()
            nodes = np.concatenate([ends[:1], ends[0] + (ends[1] - ends[0]) * parts, ends[1:]])
    raise ValueError(f"error {error} takes more than {TABLE // 16} pieces: ask for a larger one")


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return (1 + np.tanh(x / 2)) / 2


def _gauss(x: np.ndarray) -> np.ndarray:
    return np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


def _gelu(x: np.ndarray) -> np.ndarray:
    return x / 2 * np.vectorize(math.erfc, otypes=[float])(-x / math.sqrt(2))


def _gelu_curvature(x: np.ndarray) -> np.ndarray:
    return (2 - x**2) * _gauss(x)


def _sigmoid_curvature(x: np.ndarray) -> np.ndarray:
    s = _sigmoid(x)
    return s * (1 - s) * (1 - 2 * s)


ERROR = 1e-2
"""The error of the named interpolants."""

KNOWN: dict[str, Nodes] = {
    "tanh": Nodes(
        (
            -2.6474609375,
            -1.7731502906918544,
            -1.287554875043104,
            -0.9266691806338077,
            -0.6112901506510915,
            -0.2789177719905224,
            0.2789177719905137,
            0.61129015065108,
            0.9266691806337958,
            1.2875548750430916,
            1.773150290691836,
            2.6474609375,
        ),
        0.009983923221756452,
    ),
    "sigmoid": Nodes(
        (
            -4.595703125,
            -2.9033759303506166,
            -1.912916641678323,
            -1.0470203730343157,
            1.0470203730343117,
            1.912916641678315,
            2.9033759303506166,
            4.595703125,
        ),
        0.009994227228881103,
    ),
    "gelu": Nodes(
        (
            -2.67529296875,
            -1.7655902832286157,
            -0.8744073341397288,
            -0.4793226045093028,
            -0.15437353180244948,
            0.1543735318024518,
            0.47932260450930864,
            0.87440733413974,
            1.765590283228631,
            2.67529296875,
        ),
        0.009987399988001142,
    ),
    "softplus": Nodes(
        (
            -4.6005859375,
            -2.8425722849453443,
            -1.8707901129887237,
            -1.1567899687130627,
            -0.5556316315760981,
            8.677878915037867e-15,
            0.5556316315761147,
            1.1567899687130867,
            1.8707901129887639,
            2.842572284945386,
            4.6005859375,
        ),
        0.009995822612760996,
    ),
}
"""Their nodes, which importing the package would take a tenth of a second to search for."""


def _known(name: str, error: float) -> Nodes | None:
    return KNOWN[name] if error == ERROR else None


def tanh(error: float = ERROR) -> Interpolant:
    """The hyperbolic tangent within the error."""
    return interpolate(
        np.tanh,
        error,
        derivative=lambda x: 2 * np.tanh(x) * (np.tanh(x) ** 2 - 1),
        known=_known("tanh", error),
    )


def sigmoid(error: float = ERROR) -> Interpolant:
    """The logistic function 1 / (1 + exp(-x)) within the error."""
    tails = ((0.0, 0.0), (0.0, 1.0))
    return interpolate(_sigmoid, error, tails, _sigmoid_curvature, _known("sigmoid", error))


def gelu(error: float = ERROR) -> Interpolant:
    """The Gaussian error linear unit, x times the normal distribution at x, within the error.

    Without the approximation by tanh, `jax.nn.gelu(x, approximate=False)`.
    """
    tails = ((0.0, 0.0), (1.0, 0.0))
    return interpolate(_gelu, error, tails, _gelu_curvature, _known("gelu", error))


def softplus(error: float = ERROR) -> Interpolant:
    """The function log(1 + exp(x)) within the error."""
    return interpolate(
        lambda x: np.logaddexp(x, 0),
        error,
        ((0.0, 0.0), (1.0, 0.0)),
        lambda x: _sigmoid(x) * _sigmoid(-x),
        _known("softplus", error),
    )


TANH = tanh().function
SIGMOID = sigmoid().function
GELU = gelu().function
SOFTPLUS = softplus().function

INTERPOLANTS: dict[str, PiecewiseLinear] = {
    "tanh": TANH,
    "sigmoid": SIGMOID,
    "gelu": GELU,
    "softplus": SOFTPLUS,
}
"""Named smooth activations, each within 0.01 of its function everywhere."""
