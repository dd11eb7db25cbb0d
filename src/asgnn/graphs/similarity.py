"""Feature similarity of pairs of nodes."""

from __future__ import annotations

from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from asgnn.errors import ConfigError, GraphError
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.checks import check_pairs
from asgnn.graphs.edge_ops import sddmm
from asgnn.graphs.features import SPARSE_BELOW, Features
from asgnn.graphs.relaxed import relaxation, step
from asgnn.settings import check_choice

# Entries per block; bounds the temporary memory.
BLOCK = 2**16

# The similarities of nodes that share a word are of this size.
SIMILARITY_UNIT = 0.1

Metric = Literal["auto", "jaccard", "cosine", "idf", "latent"]
METRICS: tuple[Metric, ...] = ("auto", "jaccard", "cosine", "idf", "latent")
Kind = Literal["binary", "sparse", "dense"]
Measure = Literal["jaccard", "cosine", "standardised"]


def edge_similarity(features: Features, adj: Adjacency) -> Tensor:
    r"""Returns the feature similarity of every entry (E,), self-loops included, bitwise symmetric.

    Uses the Jaccard index for binary features, else the cosine:

    .. math:: J_{ij} = \frac{|x_i \cap x_j|}{|x_i \cup x_j|}, \qquad
              \cos_{ij} = \frac{x_i \cdot x_j}{\|x_i\| \|x_j\|}

    The similarity is 0 if one of the nodes has only zero features.

    Raises :class:`~asgnn.errors.GraphError` if no two nodes share a feature, as with identity features. Time
    O(E · non-zeros per row); never builds an N × N matrix.
    """
    x = features.to_scipy()
    if features.num_nodes > 1 and x.count_nonzero(axis=0).max(initial=0) < 2:
        raise GraphError(
            "No two nodes share a feature (as with identity features), so feature similarity is 0 for every edge; "
            "choose a method that uses the graph structure only."
        )
    return _ratio(features, x, adj, jaccard=bool((x.data == 1).all()))


def edge_cosine(features: Features, adj: Adjacency) -> Tensor:
    """Returns the cosine similarity of every entry (E,); 0 if one of the nodes has only zero features.

    Differentiable if the features require a gradient; then it needs O(E F) temporary memory.
    """
    if features.requires_grad:
        assert features.dense is not None
        unit = F.normalize(features.dense, dim=1).unsqueeze(2)
        return sddmm(unit, unit, adj).squeeze(1)
    return _ratio(features, features.to_scipy(), adj, jaccard=False)


def _ratio(features: Features, x: sp.csr_array, adj: Adjacency, *, jaccard: bool) -> Tensor:
    if adj.row.is_cuda:  # an attack asks for new pairs at every step, many more than the edges
        return _dense_ratio(features.to_dense().detach().double(), adj, jaccard=jaccard)
    row, col = adj.row.cpu().numpy(), adj.col.cpu().numpy()
    size = x.multiply(x).sum(axis=1)  # squared norm; for binary rows the number of ones
    starts = range(0, row.size, BLOCK)
    shared = np.concatenate([_dots(x, row[at : at + BLOCK], col[at : at + BLOCK]) for at in starts])
    whole = size[row] + size[col] - shared if jaccard else np.sqrt(size[row] * size[col])
    found = np.divide(shared, whole, out=np.zeros_like(shared), where=whole > 0)
    return torch.from_numpy(found).to(adj.row.device)


def relaxed_gate(features: Features, adj: Adjacency, measure: Measure, threshold: float) -> Tensor | None:
    """Returns 1 where the similarity of an entry (E,) reaches a threshold, with a gradient in the features.

    ``None`` unless thresholds are relaxed and the features require a gradient; the threshold is a constant then.
    Needs O(E F) memory.
    """
    if relaxation() is None or not features.requires_grad or measure == "standardised":
        return None
    assert features.dense is not None
    return step(_dense_ratio(features.dense, adj, jaccard=measure == "jaccard"), threshold, unit=SIMILARITY_UNIT)


def _dense_ratio(x: Tensor, adj: Adjacency, *, jaccard: bool) -> Tensor:
    """The same from dense rows (N, F), on their device; memory O(F) for each of ``BLOCK // 4`` pairs."""
    size = x.square().sum(1)
    pairs = zip(adj.row.split(BLOCK // 4), adj.col.split(BLOCK // 4), strict=True)
    shared = torch.cat([(x[row] * x[col]).sum(1) for row, col in pairs])
    row, col = size[adj.row], size[adj.col]
    whole = row + col - shared if jaccard else (row * col).sqrt()
    return torch.where(whole > 0, shared / torch.where(whole > 0, whole, 1.0), 0.0)


def _dots(x: sp.csr_array, row: NDArray[np.int64], col: NDArray[np.int64]) -> NDArray[Any]:
    dots: NDArray[Any] = x[row].multiply(x[col]).sum(axis=1)
    return dots


# --- pairs of nodes, of which some may have no features ---------------------------------------------------------------


def without_features(features: Features) -> Tensor:
    """Returns which nodes have no features (N,) bool: those whose row contains only zeros or only NaN."""
    if features.by_row is None:
        assert features.dense is not None
        x = features.dense.detach()
        return ((x == 0) | x.isnan()).all(dim=1)
    rows = features.by_row
    before = torch.zeros(rows.value.numel() + 1, dtype=torch.int64, device=rows.value.device)
    torch.cumsum(rows.value != 0, 0, out=before[1:])
    return before[rows.crow[1:]] == before[rows.crow[:-1]]


def kind_of(features: Features) -> Kind:
    """Returns "binary" if every entry is 0 or 1, "sparse" if fewer than 10 % are non-zero, else "dense".

    Nodes without features do not count. Time O(stored entries).
    """
    value = features.dense if features.by_row is None else features.by_row.value
    assert value is not None
    nonzero = (value != 0) & ~value.isnan()
    if bool(((value == 1) | ~nonzero).all()):
        return "binary"
    known = features.num_nodes - int(without_features(features).sum())
    return "sparse" if int(nonzero.sum()) < SPARSE_BELOW * known * features.num_features else "dense"


def measure_of(features: Features, metric: Metric, binary: Measure) -> Measure:
    """Returns the similarity that ``metric`` means for these features; ``binary`` is that of "auto" if binary.

    For a metric of :data:`VIEWS`, it is that of the rows of :func:`view`.
    """
    check_choice("metric", metric, METRICS)
    if metric in ("cosine", *VIEWS):
        return "cosine"
    kind = kind_of(features)
    if metric == "jaccard":
        if kind != "binary":
            raise ConfigError('metric="jaccard" needs features that are 0 or 1; use metric="auto" or "cosine".')
        return metric
    measures: dict[Kind, Measure] = {"binary": binary, "sparse": "cosine", "dense": "standardised"}
    return measures[kind]


def standardised(features: Features) -> Tensor:
    """Returns the features with columns of mean 0 and variance 1, (N, F) in double precision.

    Mean and variance are those of the nodes with features. Rows of nodes without features, and constant columns,
    become 0. Time and memory O(NF).
    """
    missing = without_features(features)
    x = features.to_dense().detach().double()
    known = x[~missing]
    deviation, mean = torch.std_mean(known, dim=0, correction=0)
    # A constant column may have a deviation of one rounding error, which would be blown up to 1.
    varies = deviation > 1e-12 * known.abs().amax(dim=0) if known.size(0) else deviation > 0
    z = torch.where(varies, (x - mean) / deviation, 0.0)
    return torch.where(missing.unsqueeze(1), 0.0, z)


def pair_similarity(features: Features, row: Tensor, col: Tensor, metric: Metric = "auto") -> Tensor:
    r"""Returns the similarity of the pairs (row[e], col[e]), (E,) in double precision; NaN where it is unknown.

    It is unknown if one of the two nodes has no features (:func:`without_features`). To keep such pairs, drop those
    with ``similarity < threshold``: NaN compares false. The result for (j, i) is bitwise that for (i, j). Without
    gradient. Time O(E · non-zeros per row), memory O(NF + E); never N × N.

    Args:
        features: The features; on any device.
        row: (E,) node indices.
        col: (E,) node indices.
        metric: "jaccard" needs binary features; "cosine" is that of the features as they are; "auto" is the Jaccard
            index of binary features, the cosine of sparse ones, and the cosine of the standardised columns of dense
            ones. "idf" and "latent" are the cosine of a :func:`view`.
    """
    check_pairs(torch.stack([row, col]), features.num_nodes, "The pairs")
    missing = without_features(features)
    similarity = measured(view(features, metric), row, col, measure_of(features, metric, "jaccard"))
    return torch.where(missing[row] | missing[col], torch.nan, similarity)


def measured(features: Features, row: Tensor, col: Tensor, measure: Measure) -> Tensor:
    """Returns the similarity of pairs of nodes by a given measure; 0 if a row has norm 0. Cost as above."""
    if measure == "standardised" or features.by_row is None or row.is_cuda:
        x = comparable(features, measure)
        size = x.square().sum(dim=1)
        at = zip(row.split(BLOCK), col.split(BLOCK), strict=True)
        shared = torch.cat([(x[i] * x[j]).sum(dim=1) for i, j in at])
    else:
        matrix = features.to_scipy()
        there, back = row.cpu().numpy(), col.cpu().numpy()
        starts = range(0, there.size, BLOCK)
        dots = [_dots(matrix, there[at : at + BLOCK], back[at : at + BLOCK]) for at in starts]
        shared = torch.from_numpy(np.concatenate([np.zeros(0), *dots])).to(row.device)
        size = torch.from_numpy(matrix.multiply(matrix).sum(axis=1)).to(row.device)
    whole = size[row] + size[col] - shared if measure == "jaccard" else (size[row] * size[col]).sqrt()
    # A row of standardised zeros, the mean of all, is like no other: 0.
    return torch.where(whole > 0, shared / whole, 0.0)


def comparable(features: Features, measure: Measure) -> Tensor:
    """Returns the dense rows (N, F) whose cosine, or Jaccard index, is the similarity; missing ones are 0."""
    if measure == "standardised":
        return standardised(features)
    return features.to_dense().detach().double().nan_to_num()


# --- other views of the features --------------------------------------------------------------------------------------

# Metrics that compare other rows than the features.
VIEWS = ("idf", "latent")
# Directions of the latent view. Of 50, 100 and 200, the best on validation nodes of Cora and Citeseer.
LATENT = 50

# features → metric → their view
_VIEWS: WeakKeyDictionary[Features, dict[str, Features]] = WeakKeyDictionary()


def view(features: Features, metric: Metric) -> Features:
    r"""Returns the rows that a metric compares: the features themselves, or another view of them. No gradient.

    - "idf" weighs each column by :math:`\log(N / n_f)`, where :math:`n_f` nodes have feature f: rare words say more.
      Not for dense features.
    - "latent" keeps the first 50 singular directions of these rows with norm 1, as latent semantic analysis does; of
      dense features, of their standardised columns. It is equal on all machines up to rounding.

    Time O(stored entries), for "latent" some hundred passes over them. Kept as long as the features exist.
    """
    if metric not in VIEWS:
        return features
    if features.requires_grad:  # the caller may change such features in place
        return _view(features, metric)
    known = _VIEWS.setdefault(features, {})
    if metric not in known:
        known[metric] = _view(features, metric)
    return known[metric]


def views_of(features: Features) -> tuple[Metric, ...]:
    """Returns the metrics that see these features differently; of dense ones, with many columns only."""
    if kind_of(features) != "dense":
        return ("auto", "latent", "idf")
    return ("auto", "latent") if min(features.num_nodes, features.num_features) > LATENT else ("auto",)


def _view(features: Features, metric: str) -> Features:
    x: Any = None
    if kind_of(features) != "dense":
        x = features.to_scipy()
        uses = np.maximum(x.count_nonzero(axis=0), 1)
        x = sp.csr_array(x.multiply(np.log(features.num_nodes / uses)[np.newaxis]))
        x.data = np.nan_to_num(x.data)
    elif metric == "idf":
        raise ConfigError('metric="idf" needs features of which fewer than 10 % are not 0; use metric="latent".')
    if metric == "latent":
        from sklearn.decomposition import TruncatedSVD
        from sklearn.preprocessing import normalize

        x = normalize(standardised(features).cpu().numpy() if x is None else x)
        if min(x.shape) > LATENT:
            nothing = abs(x).sum(axis=1) == 0  # such rows stay exactly 0, so that they have no neighbours
            x = TruncatedSVD(LATENT, algorithm="arpack", random_state=0).fit_transform(x)
            x[nothing] = 0
    rows = torch.from_numpy(x) if isinstance(x, np.ndarray) else _as_tensor(x)
    return Features.of(rows.to(features.device))


def _as_tensor(x: sp.csr_array) -> Tensor:
    index = torch.from_numpy(np.stack(x.tocoo().coords).astype(np.int64))
    return torch.sparse_coo_tensor(index, torch.from_numpy(x.data), x.shape, check_invariants=False)
