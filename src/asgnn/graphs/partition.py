"""Parts of the nodes: few edges between the parts, and nearly equal sizes."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from asgnn.errors import ConfigError
from asgnn.graphs.checks import check_edges, check_size
from asgnn.graphs.keys import from_keys, sort_keys, to_keys
from asgnn.settings import check_choice, check_count

Method = Literal["auto", "metis", "order"]
METHODS = ("auto", "metis", "order")


def partition_nodes(edge_index: Tensor, num_nodes: int, parts: int, method: Method = "auto") -> Tensor:
    """Returns the part of every node, (N,) int64 from 0 to ``parts`` − 1, on the CPU; no part is empty.

    The same on every call. METIS also depends on the version of pymetis and on the platform.

    Args:
        edge_index: (2, E), every undirected edge in both directions, without self-loops.
        num_nodes: N.
        parts: the number of parts, at most N.
        method: "metis" has few edges between the parts (Karypis & Kumar, 1998) and needs pymetis, the extra
            ``partition``; "order" takes contiguous ranges of node numbers, whose sizes differ by at most one; "auto"
            takes METIS if pymetis is installed, else the order.

    Time O(E log E) for METIS, which takes about 8 s for 10⁶ nodes and 4·10⁶ edges; O(N) for the order.
    """
    num_nodes = check_size(num_nodes, 1)
    check_count("parts", parts, 1, num_nodes)
    check_choice("method", method, METHODS)
    check_edges(edge_index, num_nodes)
    if method != "order":
        try:
            import pymetis
        except ImportError:
            if method == "metis":
                raise ConfigError(
                    "Parts by METIS need the package pymetis: pip install asgnn[partition]; parts by order need none."
                ) from None
        else:
            return _by_metis(pymetis, edge_index, num_nodes, parts)
    return torch.arange(num_nodes) * parts // num_nodes


def _by_metis(pymetis: Any, edge_index: Tensor, num_nodes: int, parts: int) -> Tensor:
    row, col = from_keys(sort_keys(to_keys(edge_index.detach().cpu(), num_nodes)), num_nodes).numpy()
    crow = np.zeros(num_nodes + 1, dtype=np.int64)
    np.cumsum(np.bincount(row, minlength=num_nodes), out=crow[1:])
    graph = pymetis.CSRAdjacency(crow, col)
    _, found = pymetis.part_graph(parts, graph, options=pymetis.Options(seed=0))
    return _without_empty(torch.from_numpy(np.array(found, dtype=np.int64)), parts)


def _without_empty(part: Tensor, parts: int) -> Tensor:
    """Gives each empty part one node of the part that is then the largest: METIS may leave parts of few nodes empty."""
    sizes = torch.bincount(part, minlength=parts)
    for empty in (sizes == 0).nonzero().squeeze(1).tolist():
        largest = int(sizes.argmax())
        part[int((part == largest).nonzero()[-1])] = empty
        sizes[largest] -= 1
        sizes[empty] = 1
    return part
