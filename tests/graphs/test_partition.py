"""Parts of the nodes: by METIS and by order."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from asgnn.errors import AsgnnError, ConfigError, GraphError
from asgnn.graphs import partition_nodes, planted_graph, undirected
from asgnn.graphs.partition import _without_empty
from tests.awkward import AWKWARD

INSTALLED = find_spec("pymetis") is not None
METIS = pytest.param("metis", marks=pytest.mark.skipif(not INSTALLED, reason="pymetis is not installed"))


@pytest.mark.parametrize("method", ["order", METIS])
@pytest.mark.parametrize("name", AWKWARD)
def test_every_node_has_a_part_and_no_part_is_empty(name: str, method: str) -> None:
    num_nodes, edge_index = AWKWARD[name]
    for parts in {1, min(2, num_nodes), (num_nodes + 1) // 2, num_nodes}:
        part = partition_nodes(edge_index, num_nodes, parts, method)
        assert part.shape == (num_nodes,)
        assert part.dtype == torch.int64
        assert part.unique().tolist() == list(range(parts))
        assert torch.equal(part, partition_nodes(edge_index.clone(), num_nodes, parts, method))


@pytest.mark.parametrize(("num_nodes", "parts"), [(10, 3), (7, 7), (100, 9), (5, 1)])
def test_order_gives_contiguous_ranges_of_nearly_equal_size(num_nodes: int, parts: int) -> None:
    part = partition_nodes(torch.empty(2, 0, dtype=torch.int64), num_nodes, parts, "order")
    sizes = torch.bincount(part)
    assert torch.equal(part, part.sort().values)
    assert int(sizes.max() - sizes.min()) <= 1


def test_metis_finds_cliques_that_one_edge_joins() -> None:
    pytest.importorskip("pymetis")
    size = 12
    clique = torch.ones(size, size).triu(1).nonzero().t()
    # numbered alternately, so that the order of the nodes says nothing
    edge_index = undirected(torch.cat([2 * clique, 2 * clique + 1, torch.tensor([[0], [1]])], 1), 2 * size)
    part = partition_nodes(edge_index, 2 * size, 2, "metis")
    assert part[0] != part[1]
    assert torch.equal(part, torch.where(torch.arange(2 * size) % 2 == 0, part[0], part[1]))


def test_metis_balances_and_cuts_fewer_edges_than_the_order() -> None:
    pytest.importorskip("pymetis")
    data = planted_graph(2000, 4, degree=6, false_edges=0.1, seed=3)
    # in an order of nodes that says nothing about the classes
    edge_index = torch.randperm(2000, generator=torch.Generator().manual_seed(0))[data.edge_index]
    cut = {}
    for method in ("metis", "order"):
        part = partition_nodes(edge_index, 2000, 8, method)
        cut[method] = int((part[edge_index[0]] != part[edge_index[1]]).sum())
        assert torch.bincount(part).max() < 1.1 * 2000 / 8
    assert cut["metis"] < 0.8 * cut["order"]


def test_auto_is_metis_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    num_nodes, edge_index = AWKWARD["random 33"]
    if INSTALLED:
        metis = partition_nodes(edge_index, num_nodes, 4, "metis")
        assert torch.equal(partition_nodes(edge_index, num_nodes, 4), metis)
    monkeypatch.setitem(sys.modules, "pymetis", None)
    assert torch.equal(partition_nodes(edge_index, num_nodes, 4), partition_nodes(edge_index, num_nodes, 4, "order"))
    with pytest.raises(ConfigError, match=r"pip install asgnn\[partition\]"):
        partition_nodes(edge_index, num_nodes, 4, "metis")


def test_empty_parts_take_nodes_from_the_largest() -> None:
    part = _without_empty(torch.tensor([1, 1, 1, 3, 1]), 4)
    assert part.tolist() == [1, 1, 2, 3, 0]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"parts": 0}, ConfigError, "parts must be a whole number from 1 to 5; it is 0."),
        ({"parts": 6}, ConfigError, "parts must be a whole number from 1 to 5; it is 6."),
        ({"method": "best"}, ConfigError, "method must be one of auto, metis, order; it is 'best'."),
        ({"num_nodes": 0}, GraphError, "num_nodes must be a whole number from 1 to 3037000499; it is 0."),
        ({"num_nodes": 3}, GraphError, "edge_index[:, 3] is the edge 1–3, but the nodes are numbered 0 to 2."),
        (
            {"edge_index": torch.tensor([[0], [1]])},
            GraphError,
            "edge_index lists the edge 0→1 without its reverse 1→0; asgnn.graphs.undirected adds the reverses.",
        ),
    ],
)
def test_bad_input_is_one_sentence(change: dict[str, Any], error: type[AsgnnError], message: str) -> None:
    num_nodes, edge_index = AWKWARD["isolated node"]
    given = {"edge_index": edge_index, "num_nodes": num_nodes, "parts": 2, **change}
    with pytest.raises(error) as raised:
        partition_nodes(**given)
    assert str(raised.value) == message
