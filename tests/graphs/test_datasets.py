import gzip
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.datasets import load_digits

from asgnn.errors import ConfigError, DataCorrupt, DataUnavailable
from asgnn.graphs import (
    DATASETS,
    PLANTED,
    Dataset,
    Source,
    SplitRule,
    available,
    count_published,
    find_dataset,
    from_scipy,
    load_dataset,
    published_split,
    random_split,
    read_npz,
    to_scipy,
    validate,
)
from asgnn.graphs.sources import GNN_META_ATTACK, cache_folder, fetch
from asgnn.training import fit_many, recipe

# Nodes, undirected edges, features, classes; of the largest connected component for the first five.
FACTS = {
    "cora": (2485, 5069, 1433, 7),
    "citeseer": (2110, 3668, 3703, 6),
    "cora_ml": (2810, 7981, 2879, 7),
    "polblogs": (1222, 16714, 1222, 2),
    "acm": (2006, 12628, 1870, 3),
    "actor": (7600, 26659, 932, 5),
    "chameleon": (890, 8854, 2325, 5),
    "squirrel": (2223, 46998, 2089, 5),
    "cornell": (183, 277, 1703, 5),
    "texas": (183, 279, 1703, 5),
    "wisconsin": (251, 450, 1703, 5),
    "minesweeper": (10000, 39402, 7, 2),
    "tolokers": (11758, 519000, 10, 2),
    "digits": (1797, 0, 64, 10),
    "planted-false-5": (2000, 4000, 30, 5),
    "planted-false-20": (2000, 7000, 30, 5),
    "planted-false-50": (2000, 10000, 30, 5),
    "planted-weak": (2400, 9600, 30, 6),
    "planted-strong": (1600, 6400, 30, 6),
    "planted-words": (2200, 6600, 600, 10),
    "planted-one-percent": (3000, 7500, 30, 4),
    "planted-five-per-class": (2100, 6300, 800, 7),
    "planted-2-classes": (1500, 6000, 30, 2),
    "planted-20-classes": (3000, 12000, 30, 20),
    "planted-unbalanced": (2000, 9000, 30, 3),
    "planted-no-features": (1500, 4500, 1500, 4),
    "tuning-dense": (1800, 4500, 16, 4),
    "tuning-dense-noisy": (2200, 13200, 48, 7),
    "tuning-dense-sparse": (1700, 2550, 64, 3),
    "tuning-dense-few": (1900, 6650, 20, 8),
    "tuning-words": (2300, 4600, 1000, 8),
    "tuning-words-weak": (1800, 4500, 400, 6),
    "tuning-words-unbalanced": (2000, 8000, 700, 4),
    "tuning-heterophilous": (2000, 13000, 24, 3),
    "tuning-no-features": (1600, 7200, 1600, 6),
}
HETEROPHILOUS = [name for name, dataset in DATASETS.items() if dataset.splits]


def test_the_table_is_complete():
    assert DATASETS.keys() == FACTS.keys()


@pytest.mark.parametrize("name", FACTS)
def test_facts(name, mirror):
    dataset = DATASETS[name]
    if isinstance(dataset.source, Source):
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
    assert load_dataset("Planted_Weak").name == "planted-weak"


def test_names_of_earlier_versions():
    assert find_dataset("chameleon_filtered") is DATASETS["chameleon"]
    assert find_dataset("squirrel-filtered") is DATASETS["squirrel"]


def test_the_page_lists_every_dataset():
    text = (Path(__file__).parents[2] / "docs" / "datasets.md").read_text()
    rows = [[cell.strip(" `").replace(",", "") for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    listed = {row[0]: row[1:] for row in rows if row and row[0] in DATASETS}
    assert listed.keys() == DATASETS.keys()
    for name, (nodes, edges, features, classes) in FACTS.items():
        dataset = DATASETS[name]
        if name not in PLANTED:
            assert listed[name][:4] == [str(number) for number in (nodes, edges, features, classes)]
            assert listed[name][5] == dataset.metric
            assert listed[name][4].startswith(
                ("10 published", "published", "random")[(10, 1, 0).index(count_published(name))]
            )
            continue
        one, (_, shown, degree, false, kind, columns, train) = PLANTED[name], listed[name]
        assert shown.count("/") == (0 if isinstance(one.classes, int) else classes - 1)
        assert [float(degree), float(false.rstrip(" %")), int(columns)] == [
            one.degree,
            round(100 * one.false_edges, 9),
            features,
        ]
        assert one.features is None or kind.endswith(f" {one.features.signal:g}")
        assert train == (f"{100 * one.rule.train:g} %" if one.rule.train else f"{one.rule.train_per_class} per class")


def test_metrics_and_rules():
    assert {name for name, one in DATASETS.items() if one.metric == "roc_auc"} == {"minesweeper", "tolokers"}
    assert {one.metric for one in DATASETS.values()} == {"accuracy", "roc_auc"}
    assert {name: str(one.rule) for name, one in DATASETS.items() if one.rule != SplitRule()} == {
        "planted-one-percent": "1/10/89 % train/validation/test",
        "planted-five-per-class": "5 nodes per class for training, 10 % for validation",
        "tuning-dense-few": "8 nodes per class for training, 10 % for validation",
    }


@pytest.mark.parametrize("name", HETEROPHILOUS)
def test_heterophilous_graphs_are_those_of_the_files(name, mirror):
    folder = mirror(DATASETS[name].source)
    data = load_dataset(name)
    with np.load(DATASETS[name].source.within(folder), allow_pickle=False) as file:
        # Nothing is dropped: each edge is stored once, in one direction, and no edge is a self-loop.
        wanted = sp.coo_array((np.ones(len(file["edges"])), file["edges"].T), shape=(data.num_nodes,) * 2)
        wanted = (wanted + wanted.T).tocsr()
        assert abs(wanted - to_scipy(data)).nnz == 0
        assert wanted.max() == 1
        assert np.array_equal(data.x.numpy(), file["node_features"])
        assert np.array_equal(data.y.numpy(), file["node_labels"])
        for part in ("train", "val", "test"):
            assert np.array_equal(data[f"{part}_mask"].numpy(), file[f"{part}_masks"].T)
            for number in range(10):
                nodes = getattr(published_split(name, number=number), part)
                assert np.array_equal(nodes.numpy(), file[f"{part}_masks"][number].nonzero()[0])


def test_digits_are_those_of_scikit_learn():
    wanted = load_digits()
    data = load_dataset("digits")
    assert available("digits") == "installed"
    assert np.array_equal(data.x.numpy() * 16, wanted.data)
    assert np.array_equal(data.y.numpy(), wanted.target)
    assert data.edge_index.shape == (2, 0)
    validate(data)


def test_digits_without_scikit_learn(monkeypatch):
    source = DATASETS["digits"].source
    content = source.installed().read_bytes()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    copy = cache_folder() / "scikit-learn" / "digits.csv.gz"
    assert available("digits") == "missing"
    with pytest.raises(DataUnavailable, match=r"digits\.csv\.gz is part of scikit-learn, .* pip install") as caught:
        load_dataset("digits")
    assert str(copy) in str(caught.value)
    copy.parent.mkdir(parents=True)
    copy.write_bytes(content)
    assert available("digits") == "cached"
    assert load_dataset("digits").num_nodes == 1797
    text = gzip.decompress(content)
    for damaged in (b"", content[:-100], text, gzip.compress(b"1,2\n3"), gzip.compress(b"a,b"), gzip.compress(b"1,2"),
                    gzip.compress(text.replace(b"1", b"2"))):  # fmt: skip
        copy.write_bytes(damaged)
        with pytest.raises(DataCorrupt, match="digits"):
            load_dataset("digits")


@pytest.mark.parametrize("model", ["asgnn", "gcn", "mlp"])
def test_a_graph_without_edges_is_trained_on(model):
    data = load_dataset("digits").subgraph(torch.arange(200))
    assert data.num_edges == 0
    chosen = recipe(model, epochs=5)
    (fit,) = fit_many([chosen.trial(data, random_split(data, 0), seed=0)], data)
    assert torch.isfinite(fit.logits[0]).all()
    assert not fit.diverged


def test_a_dataset_needs_a_reader_or_a_generator(monkeypatch):
    monkeypatch.setitem(DATASETS, "empty", Dataset("empty", "nothing", 1, 0, 1, 1, None))
    with pytest.raises(ConfigError, match="empty has neither a file nor a generator"):
        load_dataset("empty")


@pytest.mark.parametrize(("name", "nearest"), [("citesear", "citeseer"), ("planted_wek", "planted-weak")])
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
