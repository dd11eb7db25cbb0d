"""The nearest neighbours of every node by its features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from asgnn.errors import ConfigError
from asgnn.graphs.convert import undirected
from asgnn.graphs.csr import segment_sum
from asgnn.graphs.features import Features, Rows
from asgnn.graphs.keys import from_keys, to_keys, unique_keys
from asgnn.graphs.similarity import (
    METRICS,
    Measure,
    Metric,
    comparable,
    kind_of,
    measure_of,
    measured,
    view,
    without_features,
)
from asgnn.settings import check_choice, check_count

# Similarities per block of rows: 128 MB in double precision.
BLOCK = 2**24
# On a CPU, the exact search of more nodes takes minutes.
EXACT_UP_TO = 50_000
# A multiplication of a sparse product takes about as long as this many of a dense one, on a CPU.
SPARSE_COST = 100
# Closer similarities are ties. Larger than rounding errors, so that ties are the same on every machine.
RESOLUTION = 2.0**-30


def nearest_neighbors(features: Features, k: int, metric: Metric = "auto") -> Tensor:
    r"""Returns the k-nearest-neighbour graph of the features as an ``edge_index`` (2, E).

    Undirected: i and j are joined if one is among the k nodes most similar to the other. Both directions, sorted by row
    then column, without self-loops, on the device of the features. Only nodes of positive similarity are neighbours, so
    a node may have fewer than k. A node without features (a row of zeros or NaN) has none. Of nodes equally similar,
    those with lower indices are taken.

    Exact on a GPU, and on a CPU for up to 50,000 nodes: similarities are computed for a block of nodes at a time, never
    N × N at once. Time O(N² F) for dense features, less for sparse ones; memory O(NF + Nk) plus 0.5 GB. For more nodes
    on a CPU, pynndescent (the extra ``neighbors``) finds candidates, and a few percent of the neighbours may be missed;
    time about O(N log N). The result is kept as long as the features exist, and they are
    compared with a copy before it is reused.

    Args:
        features: The features; on any device.
        k: The number of neighbours.
        metric: "jaccard" needs binary features; "cosine" is that of the features as they are; "auto" is the cosine of
            binary and of sparse features as they are, and of the standardised columns of dense ones; "idf" and "latent"
            are the cosine of a :func:`~asgnn.graphs.similarity.view`.
    """
    check_count("k", k)
    check_choice("metric", metric, METRICS)
    held = features.dense if features.by_row is None else features.by_row.value
    assert held is not None
    copy, graphs = _KNOWN.get(held, (None, {}))
    # The values of sparse features are our own; a dense x is the caller's, who may have changed it in place.
    if copy is None or (features.by_row is None and not torch.equal(copy, held)):
        graphs = {}
        _KNOWN[held] = (held.detach().clone() if features.by_row is None else True, graphs)
    if (k, metric) not in graphs:
        graphs[k, metric] = _search(view(features, metric), k, measure_of(features, metric, "cosine"))
    found: Tensor = graphs[k, metric]
    return found


# The values of the features → a copy of them and the graphs by (k, metric)
_KNOWN = WeakTensorKeyDictionary()


def uninformative(features: Features) -> str | None:
    """Returns one sentence that says why feature similarity cannot judge any pair of nodes; ``None`` if it can.

    That is so if no node has features, if all that have features have the same, and if no two nodes share a feature.
    Time O(stored entries).
    """
    missing = without_features(features)
    if bool(missing.all()):
        return "No node has features (every row of x is zero), so feature similarity is unknown for every pair."
    first = int((~missing).nonzero()[0])
    if features.by_row is None:
        assert features.dense is not None
        x = features.dense.detach().nan_to_num()
        same = bool((x[~missing] == x[first]).all())
        shared = bool(((x != 0).sum(dim=0) > 1).any())
    else:
        rows = features.by_row
        start, stop = int(rows.crow[first]), int(rows.crow[first + 1])
        times = features.num_nodes - int(missing.sum())
        same = rows.value.numel() == times * (stop - start)
        same = same and bool((rows.col.view(times, -1) == rows.col[start:stop]).all())
        same = same and bool((rows.value.view(times, -1) == rows.value[start:stop]).all())
        shared = bool((torch.bincount(rows.col[rows.value != 0], minlength=1) > 1).any())
    if same:
        return "All nodes with features have the same ones, so feature similarity is the same for every pair."
    if not shared:
        return "No two nodes share a feature (as with identity features), so feature similarity is 0 for every pair."
    return None


@dataclass(frozen=True)
class _Compared:
    """What the similarities of a block are computed from: rows (N, F), their sizes, and the function of both.

    For binary features the rows are 0 and 1 and the size is the number of ones: dot products are exact and equal
    similarities are equal numbers. Otherwise the rows have norm 1 and their dot products are the similarities.
    """

    rows: Tensor | Rows | sp.csr_array
    size: Tensor
    measure: Measure
    binary: bool

    def scores(self, start: int, stop: int) -> Tensor:
        """Returns a number in [−1, 1] that grows with the similarity of nodes start … stop − 1 to every node."""
        dots = self._dots(start, stop)
        if not self.binary:
            return dots
        here = self.size[start:stop].unsqueeze(1)
        if self.measure == "jaccard":
            return dots.div_((here + self.size - dots).clamp_(min=1))
        # The square of the cosine, a quotient of whole numbers, so that equal cosines stay equal.
        return dots.square_().div_((here * self.size).clamp_(min=1))

    def _dots(self, start: int, stop: int) -> Tensor:
        if isinstance(self.rows, Tensor):
            return self.rows[start:stop] @ self.rows.t()
        if isinstance(self.rows, Rows):
            crow, width = self.rows.crow, self.rows.shape[1]
            first, last = int(crow[start]), int(crow[stop])
            block = torch.zeros(width, stop - start, dtype=torch.float64, device=crow.device)
            local = torch.repeat_interleave(
                torch.arange(stop - start, device=crow.device), crow[start : stop + 1].diff()
            )
            block[self.rows.col[first:last], local] = self.rows.value[first:last]
            return self.rows.product(block).t().contiguous()
        return torch.from_numpy((self.rows[start:stop] @ self.rows.T).toarray())


def _compared(features: Features, measure: Measure) -> _Compared:
    binary = measure != "standardised" and kind_of(features) == "binary"
    if measure == "standardised" or features.by_row is None:
        x = comparable(features, measure)
        size = x.square().sum(dim=1)
        return _Compared(x if binary else torch.nn.functional.normalize(x, dim=1, eps=1e-300), size, measure, binary)
    rows = features.by_row
    value = rows.value.detach().double()
    size = segment_sum(value.square().unsqueeze(1), rows.crow).squeeze(1)
    if not binary:
        value = value / torch.repeat_interleave(size, rows.crow.diff()).sqrt()
    rows = Rows(rows.crow, rows.col, value, rows.shape)
    if value.is_cuda:
        return _Compared(rows, size, measure, binary)
    matrix = sp.csr_array((value.numpy(), rows.col.numpy(), rows.crow.numpy()), shape=rows.shape)
    uses = np.bincount(matrix.indices, minlength=matrix.shape[1]).astype(float)
    if SPARSE_COST * (uses @ uses) > float(matrix.shape[0]) ** 2 * matrix.shape[1]:
        return _Compared(torch.from_numpy(matrix.toarray()), size, measure, binary)
    return _Compared(matrix, size, measure, binary)


def _search(features: Features, k: int, measure: Measure) -> Tensor:
    """Returns the graph for a measure."""
    n = features.num_nodes
    compared = _compared(features, measure)
    k = min(k, n - 1)
    device = compared.size.device
    if k == 0:
        return torch.zeros(2, 0, dtype=torch.int64, device=device)
    if n > EXACT_UP_TO and not compared.size.is_cuda:
        return _approximate(features, k, measure, compared)
    step = max(1, BLOCK // n)
    keys = []
    for start in range(0, n, step):
        stop = min(start + step, n)
        scores = compared.scores(start, stop)
        here = torch.arange(stop - start, device=device)
        scores[here, here + start] = -1.0  # not its own neighbour
        row, col = _best(scores, k)
        pairs = torch.stack([row + start, col])
        keys += [to_keys(pairs, n), to_keys(pairs.flip(0), n)]
    return from_keys(unique_keys(torch.cat(keys)), n)


def _approximate(features: Features, k: int, measure: Measure, compared: _Compared) -> Tensor:
    """Returns the graph of candidates that pynndescent finds by cosine, ranked by their exact similarity."""
    n = features.num_nodes
    try:
        from pynndescent import NNDescent
    except ImportError:
        raise ConfigError(
            f"The nearest neighbours of {n:,} nodes on a CPU (more than {EXACT_UP_TO:,}) need the package pynndescent: "
            "pip install asgnn[neighbors]; on a GPU the search is exact and needs no package."
        ) from None
    nodes = compared.size.nonzero().squeeze(1).numpy()
    rows: Any = compared.rows
    # An old SciPy matrix with 32-bit indices, for which pynndescent is compiled.
    x = rows[nodes].float().numpy() if isinstance(rows, Tensor) else sp.csr_matrix(rows[nodes].astype(np.float32))
    # One thread, because several may find different neighbours in each run.
    found = NNDescent(x, metric="cosine", n_neighbors=2 * k + 10, random_state=0, n_jobs=1, compressed=False)
    near = found.neighbor_graph[0]
    row, col = np.repeat(nodes, near.shape[1]), nodes[near.reshape(-1)]
    other = (near.reshape(-1) >= 0) & (row != col)
    there, back = torch.from_numpy(row[other]), torch.from_numpy(col[other])
    level = _level(measured(features, there, back, measure)).numpy()
    order = np.lexsort((back.numpy(), -level, there.numpy()))
    there, back, level = there[order], back[order], level[order]
    count = np.bincount(there.numpy(), minlength=n)
    rank = np.arange(there.numel()) - np.repeat(np.cumsum(count) - count, count)
    kept = torch.from_numpy((rank < k) & (level > 0))
    return undirected(torch.stack([there[kept], back[kept]]), n)


def _best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Returns the positions of the k largest positive scores of each row; of equal ones, those further left."""
    n = scores.size(1)
    # More than k, because torch says nothing of the order of ties: if the last one is no tie, none was left out.
    wide = min(2 * k + 8, n)
    top, col = scores.topk(wide, dim=1)
    level = _level(top)
    key = level * n + (n - 1 - col)
    order = key.argsort(dim=1, descending=True)
    col, level = col.gather(1, order)[:, :k].clone(), level.gather(1, order)
    if wide < n:
        again = ((level[:, k - 1] == level[:, -1]) & (level[:, -1] > 0)).nonzero().squeeze(1)
        reverse = torch.arange(n - 1, -1, -1, device=scores.device)
        for rows in again.split(max(1, BLOCK // 8 // n)):
            key = (_level(scores[rows]) * n + reverse).topk(k, dim=1).values
            col[rows] = n - 1 - key % n
    near = level[:, :k] > 0
    return near.nonzero(as_tuple=True)[0], col[near]


def _level(scores: Tensor) -> Tensor:
    """Returns the scores as whole multiples of :data:`RESOLUTION`."""
    level: Any = (scores / RESOLUTION).round().long()
    return level
