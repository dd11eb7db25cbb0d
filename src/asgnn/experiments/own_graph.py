"""A graph of one's own as a dataset of the experiments."""

from __future__ import annotations

from torch_geometric.data import Data

from asgnn.graphs import DATASETS, Dataset, NamedGraph, find_dataset, validate
from asgnn.training.tuning_file import graph_hash


def add_graph(graph: NamedGraph) -> str:
    """Add a labelled graph to the datasets of this process and return its name.

    The name contains the SHA-256 of features, edges, weights and labels, so a store keeps the results of equal graphs
    together and those of different graphs apart. Random splits have the usual 10/10/80 % of the labelled nodes.
    """
    validate(graph.data, sparse=True)
    name = f"file-{graph_hash(graph.data)[:16]}"

    def copy() -> Data:
        found: Data = graph.data.__copy__()
        return found

    sizes = (graph.num_nodes, graph.num_edges, int(graph.data.x.size(1)), len(graph.classes))
    DATASETS[name] = Dataset(name, "a graph from files", *sizes, None, whole=True, generate=copy)
    return find_dataset(name).name
