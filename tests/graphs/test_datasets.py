import numpy as np
import pytest
import scipy.sparse as sp
import torch

from asgnn.errors import ConfigError, DataUnavailable
from asgnn.graphs import DATASETS, Source, available, from_scipy, load_dataset, read_npz, validate
from asgnn.graphs.sources import GNN_META_ATTACK, cache_folder, fetch

# Largest connected component: nodes, undirected edges, features, classes.
FACTS = {
    "cora": (2485, 5069, 1433, 7),
    "citeseer": (2110, 3668, 3703, 6),
    "cora_ml": (2810, 7981, 2879, 7),
    "polblogs": (1222, 16714, 1222, 2),
    "acm": (2006, 12628, 1870, 3),
    "actor": (7600, 26659, 932, 5),
    "chameleon_filtered": (890, 8854, 2325, 5),
    "squirrel_filtered": (2223, 46998, 2089, 5),
    "cornell": (183, 277, 1703, 5),
    "texas": (183, 279, 1703, 5),
    "wisconsin": (251, 450, 1703, 5),
    "minesweeper": (10000, 39402, 7, 2),
    "tolokers": (11758, 519000, 10, 2),
}


def test_the_table_is_complete():
    assert DATASETS.keys() == FACTS.keys()


@pytest.mark.parametrize("name", FACTS)
def test_facts(name, mirror):
    dataset = DATASETS[name]
    if dataset.source is not None:
        mirror(dataset.source)
        assert available(name) == "mirror"
    data = load_dataset(name)
    found = (data.num_nodes, data.num_edges // 2, data.x.size(1), int(data.y.max()) + 1)
    assert found == FACTS[name] == (dataset.nodes, dataset.edges, dataset.features, dataset.classes)
    assert data.x.dtype == torch.float32
    assert data.name == name
    assert data.y.unique().numel() == dataset.classes
    validate(data, need_split=dataset.splits > 0)
    if dataset.splits:
        masks = [data.train_mask, data.val_mask, data.test_mask]
        assert all(mask.shape == (data.num_nodes, dataset.splits) for mask in masks)
        # In all ten splits each node is in exactly one part.
        assert torch.equal(sum(mask.int() for mask in masks), torch.ones_like(masks[0], dtype=torch.int32))
    if name in ("cora", "citeseer", "acm"):
        assert set(data.x.unique().tolist()) == {0, 1}


def test_builtin_cora_needs_no_files():
    assert available("cora") == "built in"
    assert load_dataset("cora").num_nodes == 2485
    assert not cache_folder().exists()


def test_builtin_cora_equals_the_published_file(mirror):
    source = Source(
        *GNN_META_ATTACK,
        "data/cora.npz",
        "398a5c8f949a4f2a3c8fb248f777d2756c654de714762d6a18c04eaa19a96271",
    )
    mirror(source)
    keys = [f"{matrix}_{part}" for matrix in ("adj", "attr") for part in ("data", "indices", "indptr", "shape")]
    arrays = read_npz(fetch(source), [*keys, "labels"])
    adj, attr = (
        sp.csr_array((arrays[f"{m}_data"], arrays[f"{m}_indices"], arrays[f"{m}_indptr"]), shape=arrays[f"{m}_shape"])
        for m in ("adj", "attr")
    )
    published = from_scipy(adj, attr, arrays["labels"])
    builtin = DATASETS["cora"].read(_resource())
    for name in ("x", "y", "edge_index"):
        assert torch.equal(builtin[name], published[name])
    assert builtin.num_nodes == 2708


def _resource():
    from importlib import resources

    return resources.files("asgnn.graphs") / "resources" / "cora.npz"


def test_builtin_cora_file_is_small_and_plain():
    path = _resource()
    assert len(path.read_bytes()) < 300_000
    with np.load(path, allow_pickle=False) as archive:
        assert {name: archive[name].dtype.name for name in archive.files} == {
            "shape": "uint32",
            "attr_indptr": "uint32",
            "attr_indices": "uint16",
            "edges": "uint16",
            "labels": "uint8",
        }
        edges = archive["edges"].astype(int)
    assert (edges[:, 0] < edges[:, 1]).all()
    assert (np.diff(edges[:, 0] * 2708 + edges[:, 1]) > 0).all()


@pytest.mark.parametrize("name", ["Cora", "CORA", " cora "])
def test_names_are_matched_in_any_case(name):
    assert load_dataset(name).name == "cora"


def test_hyphens_are_underscores():
    assert available("Cora-ML") == available("cora_ml") == "download"


@pytest.mark.parametrize(("name", "nearest"), [("citesear", "citeseer"), ("chameleon", "chameleon_filtered")])
def test_unknown_name_lists_the_names_and_the_nearest(name, nearest):
    with pytest.raises(ConfigError, match=f"no dataset '{name}' \\(did you mean {nearest}\\?\\)") as caught:
        load_dataset(name)
    assert all(known in str(caught.value) for known in DATASETS)
    with pytest.raises(ConfigError, match="no dataset None"):
        load_dataset(None)


def test_available_reads_no_files(tmp_path, monkeypatch):
    source = DATASETS["texas"].source
    for folder, answer in ((tmp_path / "mirror", "mirror"), (tmp_path / "cache", "cached")):
        path = source.within(folder)
        path.parent.mkdir(parents=True)
        path.touch()
        monkeypatch.setenv("ASGNN_MIRROR", str(tmp_path / "mirror"))
        assert available("texas") == answer


def test_unavailable_dataset():
    with pytest.raises(DataUnavailable, match=r"data/texas\.npz of yandex-research.*ASGNN_MIRROR.*put the file at"):
        load_dataset("texas")


def test_the_dtype_does_not_depend_on_the_default():
    torch.set_default_dtype(torch.float64)
    try:
        assert load_dataset("cora").x.dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)
