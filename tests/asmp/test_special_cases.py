"""ASMP with a frozen structure equals APPNP and SGC of PyG; invalid input raises."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.nn import APPNP, SGConv

from asgnn.asmp import ASMPParams, asmp
from asgnn.errors import ConfigError, GraphError
from asgnn.graphs import undirected
from tests.awkward import AWKWARD

F64 = torch.float64


@pytest.mark.parametrize("graph", AWKWARD)
@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
def test_appnp(graph: str, alpha: float) -> None:
    n, edge_index = AWKWARD[graph]
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(0), dtype=F64)
    ours = asmp(x, edge_index, ASMPParams(lam=1 / alpha - 1), layers=10, structure="frozen", normalization="sym")
    torch.testing.assert_close(ours.h, APPNP(K=10, alpha=alpha)(x, edge_index), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("graph", AWKWARD)
@pytest.mark.parametrize("layers", [1, 3])
def test_sgc(graph: str, layers: int) -> None:
    n, edge_index = AWKWARD[graph]
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(0), dtype=F64)
    ours = asmp(x, edge_index, ASMPParams(lam=1e12), layers=layers, structure="frozen", normalization="sym")
    peer = SGConv(4, 4, K=layers, bias=False).to(F64)
    with torch.no_grad():
        peer.lin.weight.copy_(torch.eye(4))
        torch.testing.assert_close(ours.h, peer(x, edge_index), rtol=1e-6, atol=1e-6)


def test_no_layers_returns_the_input() -> None:
    n, edge_index = AWKWARD["random 33"]
    x = torch.randn(n, 4)
    out = asmp(x, edge_index, ASMPParams(), layers=0)
    assert torch.equal(out.h, x)
    assert len(out.weights) == 1


def test_negative_lambda_increases_differences() -> None:
    """The difference along an edge grows for λ < 0 and shrinks for λ > 0."""
    edge_index = undirected(torch.tensor([[0], [1]]), 2)
    x = torch.tensor([[1.0], [0.0]], dtype=F64)
    gap = {
        lam: float((asmp(x, edge_index, ASMPParams(lam, 1.0, 0, 0, 0.1, 0.0), layers=5).h[0] - x[1]).abs().item())
        for lam in (-0.4, 0.4)
    }
    assert gap[-0.4] > 1 > gap[0.4]


def test_dense_support_of_the_paper_can_add_edges() -> None:
    edge_index = undirected(torch.tensor([[0, 1], [1, 2]]), 3)
    x = torch.tensor([[3.0], [0.1], [3.0]])
    params = ASMPParams(2.0, 0.01, 0.0, 0.0, 0.1, 0.5)
    out = asmp(x, edge_index, params, layers=2, objective="paper", support="dense")
    assert out.backend == "dense"
    assert out.weights[-1][0, 2] > 0  # nodes 0 and 2 are similar but have no edge
    on_edges = asmp(x, edge_index, params, layers=2, objective="paper")
    assert on_edges.backend == "edges"
    assert on_edges.weights[-1].shape == (7,)


X, EDGES = torch.randn(3, 2), undirected(torch.tensor([[0, 1], [1, 2]]), 3)
BAD = {
    "integer x": (GraphError, "float32 or float64", {"x": torch.ones(3, 2, dtype=torch.int64)}),
    "half x": (
        GraphError,
        "dtype float16; it must be float32 or float64",
        {"x": torch.ones(3, 2, dtype=torch.float16)},
    ),
    "bfloat16 x": (
        GraphError,
        "dtype bfloat16; it must be float32 or float64",
        {"x": torch.ones(3, 2, dtype=torch.bfloat16)},
    ),
    "complex x": (
        GraphError,
        "dtype complex64; it must be float32 or float64",
        {"x": torch.ones(3, 2, dtype=torch.complex64)},
    ),
    "flat x": (GraphError, r"x must have shape \(…, N, C\)", {"x": torch.ones(3)}),
    "NaN in x": (GraphError, "every feature must be finite", {"x": torch.full((3, 2), torch.nan)}),
    "infinite x": (GraphError, "every feature must be finite", {"x": torch.full((3, 2), -torch.inf)}),
    "infinite tensor": (ConfigError, "mu1 is inf", {"params": ASMPParams(mu1=torch.tensor(torch.inf))}),
    "x as a list": (GraphError, "x is a list, not a tensor", {"x": [[1.0]]}),
    "NaN tensor": (ConfigError, "lam is nan", {"params": ASMPParams(lam=torch.tensor(torch.nan))}),
    "negative depth": (ConfigError, "layers must be a whole number from 0", {"layers": -1}),
    "directed": (GraphError, "0→1 without its reverse 1→0", {"edge_index": torch.tensor([[0], [1]])}),
    "out of range": (
        GraphError,
        r"edge_index\[:, 1\] is the edge 1–3",
        {"edge_index": torch.tensor([[0, 1], [1, 3]])},
    ),
    "repeated": (GraphError, "0→1 more than once", {"edge_index": torch.tensor([[0, 0, 1], [1, 1, 0]])}),
    "int32": (GraphError, "int64", {"edge_index": EDGES.int()}),
    "weights": (GraphError, r"edge_weight\[2\] is 1.5", {"edge_weight": torch.tensor([1, 1, 1.5, 1])}),
    "NaN weight": (
        GraphError,
        r"edge_weight\[0\] is nan",
        {"edge_weight": torch.tensor([torch.nan, 1, 1, 1])},
    ),
    "too few weights": (GraphError, r"shape \(4,\)", {"edge_weight": torch.ones(3)}),
    "asymmetric": (GraphError, "symmetric weights", {"edge_weight": torch.tensor([0.1, 0.2, 0.3, 0.4])}),
    "objective": (ConfigError, "objective must be one of paper, degree", {"objective": "Paper"}),
    "exact paper": (ConfigError, "no closed-form minimiser", {"objective": "paper", "structure": "exact"}),
    "penalty": (ConfigError, "penalty must be one of quadratic, mcp", {"penalty": "cauchy"}),
    "penalty of the paper": (ConfigError, 'needs objective="degree"', {"objective": "paper", "penalty": "mcp"}),
    "sym adaptive": (ConfigError, "frozen", {"normalization": "sym"}),
    "joint steps": (ConfigError, "must both be 1", {"update": "joint", "h_steps": 2}),
    "no steps": (ConfigError, "s_steps must be a whole number from 1", {"s_steps": 0}),
    "backend": (ConfigError, "backend must be one of", {"backend": "tpu"}),
    "dense on edges": (
        ConfigError,
        "edge list cannot represent",
        {"objective": "paper", "support": "dense", "backend": "edges"},
    ),
    "shape of λ": (ConfigError, "lam has shape", {"params": ASMPParams(lam=torch.ones(3))}),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_input_raises(case: str) -> None:
    error, message, changed = BAD[case]
    arguments = {"x": X, "edge_index": EDGES, "params": ASMPParams(), "layers": 2} | changed
    with pytest.raises(error, match=message) as caught:
        asmp(**arguments)  # type: ignore[arg-type]
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e31, "1", None, 1j, (1.0,), True])
def test_invalid_scalars_raise(value: object) -> None:
    with pytest.raises(ConfigError, match=r"gamma must be a number in \[-1e\+30, 1e\+30\]; it is .*\."):
        ASMPParams(gamma=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("settings", [{"layers": 2**31}, {"layers": 1.5}, {"h_steps": "2"}, {"s_steps": 10**9}])
def test_invalid_numbers_of_steps_raise(settings: dict[str, object]) -> None:
    (name,) = settings
    with pytest.raises(ConfigError, match=f"{name} must be a whole number from"):
        asmp(torch.ones(3, 2), EDGES, ASMPParams(), **{"layers": 1, **settings})  # type: ignore[arg-type]
