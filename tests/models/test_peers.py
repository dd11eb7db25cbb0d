"""GCN, GAT, SGC, APPNP and MLP equal those of PyG and torch with the same weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import APPNP as PyGAPPNP
from torch_geometric.nn import GATConv, GCNConv, SGConv

from asgnn import models
from asgnn.asmp import ASMPParams, Scheme
from asgnn.errors import ConfigError
from asgnn.models.layers import Linear, MLPBlock, Streams
from tests.awkward import AWKWARD

F64 = torch.float64
CLOSE = {"rtol": 1e-6, "atol": 1e-6}


def problem(graph: str, weighted: bool, dense: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    n, edge_index = AWKWARD[graph]
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(n, 50, generator=rng, dtype=F64)
    if not dense:
        x = x * (torch.rand(n, 50, generator=rng) < 0.05)
    matrix = torch.rand(n, n, generator=rng, dtype=F64)
    weight = ((matrix + matrix.t()) / 2)[edge_index[0], edge_index[1]]
    return x, edge_index, weight if weighted else None


def of_torch(layer: Linear) -> nn.Linear:
    peer = nn.Linear(layer.in_channels, layer.out_channels, dtype=F64)
    with torch.no_grad():
        peer.weight.copy_(layer.weight.t())
        peer.bias.copy_(layer.bias)
    return peer


def perceptron(block: MLPBlock) -> nn.Sequential:
    first, *rest = (of_torch(layer) for layer in block.layers if isinstance(layer, Linear))
    return nn.Sequential(first, *(part for layer in rest for part in (nn.ReLU(), layer)))


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("graph", AWKWARD)
class TestPeers:
    def test_gcn(self, graph: str, weighted: bool, dense: bool) -> None:
        x, edge_index, weight = problem(graph, weighted, dense)
        for depth in (2, 4):
            ours = models.GCN(50, 8, 3, num_layers=depth).to(F64).eval()
            layers = [ours.first, *ours.between, ours.last]
            peers = [GCNConv(layer.in_channels, layer.out_channels).to(F64) for layer in layers]
            assert len(peers) == depth
            with torch.no_grad():
                for peer, layer in zip(peers, layers, strict=True):
                    peer.lin.weight.copy_(layer.weight.t())
                    peer.bias.copy_(layer.bias)
            expected = x
            for peer in peers:
                expected = peer(expected if peer is peers[0] else expected.relu(), edge_index, weight)
            out = ours(x, edge_index, weight)
            torch.testing.assert_close(out, expected, **CLOSE)
            probe = torch.randn(out.shape, generator=torch.Generator().manual_seed(0), dtype=F64)
            (out * probe).sum().backward()
            (expected * probe).sum().backward()
            for peer, layer in zip(peers, layers, strict=True):
                torch.testing.assert_close(layer.weight.grad, peer.lin.weight.grad.t(), **CLOSE)
                torch.testing.assert_close(layer.bias.grad, peer.bias.grad, **CLOSE)

    def test_sgc(self, graph: str, weighted: bool, dense: bool) -> None:
        x, edge_index, weight = problem(graph, weighted, dense)
        for steps in (1, 2, 5):
            ours, peer = models.SGC(50, 3, num_layers=steps).to(F64), SGConv(50, 3, K=steps).to(F64)
            peer.lin = of_torch(ours.linear)
            torch.testing.assert_close(ours(x, edge_index, weight), peer(x, edge_index, weight), **CLOSE)

    def test_gat(self, graph: str, weighted: bool, dense: bool) -> None:
        """PyG's GAT has no edge weights, so weights of 0 are compared with missing edges."""
        x, edge_index, weight = problem(graph, weighted, dense)
        if weight is not None:
            weight = (weight > 0.4).to(F64)
        edges = edge_index if weight is None else edge_index[:, weight > 0]
        ours = models.GAT(50, 4, 3, heads=5).to(F64).eval()
        first, second = GATConv(50, 4, heads=5).to(F64), GATConv(20, 3).to(F64)
        with torch.no_grad():
            for peer, layer in ((first, ours.first), (second, ours.second)):
                layer.bias.uniform_(-1, 1)
                peer.lin.weight.copy_(layer.weight.t())
                peer.att_dst.copy_(layer.of_row.unsqueeze(0))
                peer.att_src.copy_(layer.of_col.unsqueeze(0))
                peer.bias.copy_(layer.bias)
        expected = second(nn.functional.elu(first(x, edges)), edges)
        out = ours(x, edge_index, weight)
        torch.testing.assert_close(out, expected, **CLOSE)
        probe = torch.randn(out.shape, generator=torch.Generator().manual_seed(0), dtype=F64)
        (out * probe).sum().backward()
        (expected * probe).sum().backward()
        for peer, layer in ((first, ours.first), (second, ours.second)):
            torch.testing.assert_close(layer.weight.grad, peer.lin.weight.grad.t(), **CLOSE)
            torch.testing.assert_close(layer.of_row.grad, peer.att_dst.grad[0], **CLOSE)
            torch.testing.assert_close(layer.of_col.grad, peer.att_src.grad[0], **CLOSE)
            torch.testing.assert_close(layer.bias.grad, peer.bias.grad, **CLOSE)

    def test_appnp(self, graph: str, weighted: bool, dense: bool) -> None:
        x, edge_index, weight = problem(graph, weighted, dense)
        ours = models.APPNP(50, 8, 3, num_layers=7, alpha=0.2, mlp_layers=3).to(F64).eval()
        expected = PyGAPPNP(K=7, alpha=0.2)(perceptron(ours.mlp)(x), edge_index, weight)
        torch.testing.assert_close(ours(x, edge_index, weight), expected, **CLOSE)

    def test_mlp(self, graph: str, weighted: bool, dense: bool) -> None:
        x, edge_index, weight = problem(graph, weighted, dense)
        for layers in (1, 2, 4):
            ours = models.MLP(50, 8, 3, num_layers=layers).to(F64).eval()
            torch.testing.assert_close(ours(x, edge_index, weight), perceptron(ours.mlp)(x), **CLOSE)

    def test_appnp_is_asgnn_frozen(self, graph: str, weighted: bool, dense: bool) -> None:
        """With λ = 1/α − 1, symmetric normalisation and the same MLP."""
        x, edge_index, weight = problem(graph, weighted, dense)
        alpha = 0.15
        scheme = Scheme(structure="frozen", normalization="sym")
        frozen = models.ASGNN(
            50, 8, 3, num_layers=10, params=ASMPParams(lam=1 / alpha - 1), scheme=scheme, constraint="free"
        ).to(F64)
        ours = models.APPNP(50, 8, 3, alpha=alpha).to(F64)
        ours.mlp.load_state_dict(frozen.mlp.state_dict())
        torch.testing.assert_close(ours.eval()(x, edge_index, weight), frozen.eval()(x, edge_index, weight), **CLOSE)


MODELS = {
    "gcn": models.GCN,
    "gcn-jaccard": models.GCNJaccard,
    "gcn-svd": models.GCNSVD,
    "gat": models.GAT,
    "appnp": models.APPNP,
    "mlp": models.MLP,
    "asgnn": models.ASGNN,
    "elastic": models.ElasticGNN,
    "airgnn": models.AirGNN,
    "softmedian": models.SoftMedianGCN,
    "gnnguard": models.GNNGuard,
    "rung": models.RUNG,
    "prognn": models.ProGNN,
}


@pytest.mark.parametrize("name", MODELS)
def test_initial_weights_depend_on_the_seed(name: str) -> None:
    def start(seed: int) -> dict[str, Tensor]:
        model = MODELS[name](9, 4, 3)
        model.reset_parameters(torch.Generator().manual_seed(seed))
        return model.state_dict()

    first, again, other = start(0), start(0), start(1)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize("name", MODELS)
def test_sparse_and_dense_features_agree(name: str) -> None:
    x, edge_index, _ = problem("random 33", False, False)
    assert (x != 0).double().mean() < 0.1
    model = MODELS[name](50, 8, 3).to(F64).eval()
    out = model(x, edge_index)
    # tiny entries force the dense product
    filled = torch.where(x == 0, torch.full_like(x, 1e-14), x)
    torch.testing.assert_close(model(filled, edge_index), out, rtol=1e-10, atol=1e-10)
    for layout in (x.to_sparse_coo(), x.to_sparse_csr()):
        assert torch.equal(model(layout, edge_index), out)


@pytest.mark.parametrize("name", MODELS)
def test_dropout_depends_on_the_stream(name: str) -> None:
    x, edge_index, _ = problem("random 33", False, False)
    model = MODELS[name](50, 8, 3, dropout=0.5).to(F64)

    def run(seed: int) -> Tensor:
        return model(x, edge_index, rng=Streams([seed]))

    assert torch.equal(run(0), run(0))
    assert not torch.equal(run(0), run(1))


BAD = {
    "alpha 0": (r"\(0, 1\]; it is 0", lambda: models.APPNP(3, 3, 3, alpha=0)),
    "alpha NaN": (r"\(0, 1\]; it is nan", lambda: models.APPNP(3, 3, 3, alpha=float("nan"))),
    "depth of APPNP": (
        "num_layers must be .* from 0 to .*; it is -1",
        lambda: models.APPNP(3, 3, 3, num_layers=-1),
    ),
    "depth of ASGNN": (
        "num_layers must be .* from 0 to .*; it is -1",
        lambda: models.ASGNN(3, 3, 3, num_layers=-1),
    ),
    "dropout": ("dropout rate", lambda: models.GCN(3, 3, 3, dropout=1.5)),
    "depth of SGC": ("num_layers must be .* from 0 to .*; it is -1", lambda: models.SGC(3, 3, num_layers=-1)),
    "heads": ("heads must be a whole number from 1", lambda: models.GAT(3, 3, 3, heads=0)),
    "rank": ("rank must be a whole number from 1 to .*; it is 0", lambda: models.GCNSVD(3, 3, 3, rank=0)),
    "threshold": (
        r"threshold must be a number in \[-1, 1\]; it is nan",
        lambda: models.GCNJaccard(3, 3, 3, threshold=float("nan")),
    ),
    "MLP without layers": ("num_layers must be a whole number from 1", lambda: models.MLP(3, 3, 3, num_layers=0)),
    "no features": ("channels must be a whole number from 1", lambda: models.GCN(0, 3, 3)),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_settings_raise(case: str) -> None:
    message, build = BAD[case]
    with pytest.raises(ConfigError, match=message) as caught:
        build()
    assert str(caught.value).endswith(".")


def test_a_model_without_logits_raises() -> None:
    class Empty(models.NodeClassifier):
        pass

    with pytest.raises(TypeError, match="Empty must define the method logits"):
        Empty()(torch.ones(2, 2), torch.empty(2, 0, dtype=torch.int64))
