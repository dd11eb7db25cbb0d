"""The edge-list backend equals the dense reference: values, objective and every gradient."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from asgnn.asmp import SCALARS, ASMPParams, Propagation, Scheme, propagate
from asgnn.graphs.adjacency import Adjacency
from tests.awkward import AWKWARD

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-4}
START = {"lam": 1.3, "gamma": 0.6, "mu1": 0.04, "mu2": 0.1, "eta1": 0.17, "eta2": 0.35}

SCHEMES = {
    "paper": Scheme("paper"),
    "paper joint": Scheme("paper", update="joint"),
    "paper 2 H 3 S": Scheme("paper", h_steps=2, s_steps=3),
    "paper unit": Scheme("paper", unit_norm=True),
    "degree": Scheme("degree"),
    "degree dense support": Scheme("degree", support="dense"),
    "degree exact": Scheme("degree", structure="exact"),
    "degree joint": Scheme("degree", update="joint"),
    "degree 3 H 2 S": Scheme("degree", h_steps=3, s_steps=2),
    "degree unit": Scheme("degree", unit_norm=True),
    "frozen rw": Scheme("paper", structure="frozen"),
    "frozen sym": Scheme("paper", structure="frozen", normalization="sym"),
    "frozen degree": Scheme("degree", structure="frozen"),
    "mcp": Scheme(penalty="mcp"),
    "mcp exact": Scheme(penalty="mcp", structure="exact"),
    "mcp dense support": Scheme(penalty="mcp", support="dense"),
    "mcp joint unit": Scheme(penalty="mcp", update="joint", unit_norm=True),
    "mcp 2 H 2 S": Scheme(penalty="mcp", h_steps=2, s_steps=2),
}


def run(
    backend: str,
    graph: str,
    scheme: Scheme,
    dtype: torch.dtype,
    batch: tuple[int, ...],
    weighted: bool,
    device: str,
    channels: int = 3,
) -> tuple[Propagation, dict[str, Tensor]]:
    """Run ASMP and return its result and the gradients of a function of all its outputs."""
    n, edge_index = AWKWARD[graph]
    rng = torch.Generator().manual_seed(7)
    dense = torch.rand(n, n, generator=rng).to(dtype) if weighted else torch.ones(n, n, dtype=dtype)
    weights = ((dense + dense.t()) / 2).to(device).requires_grad_()
    # q is defined for symmetric S only, so the gradients in both weights of an edge are compared as a sum
    symmetric = (weights + weights.t()) / 2 if scheme.objective == "degree" else weights
    x = torch.randn(*batch, n, channels, generator=rng, dtype=torch.float64).to(dtype).requires_grad_()
    x, edge_index = x.detach().to(device).requires_grad_(), edge_index.to(device)
    per_trial = torch.linspace(0.8, 1.2, max(1, x[..., 0, 0].numel()), dtype=dtype).view(batch).to(device)
    leaves = {name: (START[name] * per_trial).requires_grad_() for name in SCALARS}
    out = propagate(
        x,
        Adjacency.of(edge_index, n, symmetric[edge_index[0], edge_index[1]]),
        ASMPParams(**leaves),
        scheme,
        layers=3,
        backend=backend,
        trace=True,
    )  # type: ignore[arg-type]
    probe = torch.randn(out.h.shape, generator=rng, dtype=torch.float64).to(device, dtype)
    value = (out.h * probe).sum() + sum(w.pow(3).sum() for w in out.weights) + out.objective[-1].total.sum()
    inputs = {"x": x, "weights": weights, **leaves}
    grads = torch.autograd.grad(value, list(inputs.values()), allow_unused=True)
    return out, {k: torch.zeros_like(inputs[k]) if g is None else g for k, g in zip(inputs, grads, strict=True)}


def close(ours: Tensor, reference: Tensor) -> None:
    tolerance = TOLERANCE[reference.dtype]
    scale = max(1.0, float(reference.detach().abs().max())) if reference.numel() else 1.0
    torch.testing.assert_close(ours, reference, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
@pytest.mark.parametrize("graph", AWKWARD)
@pytest.mark.parametrize("device", DEVICES)
def test_edges_equal_dense(device: str, graph: str, scheme: Scheme) -> None:
    settings = itertools.product((torch.float64, torch.float32), ((), (2,), (2, 2)), (False, True))
    for dtype, batch, weighted in settings:
        dense, dense_grads = run("dense", graph, scheme, dtype, batch, weighted, device)
        edges, edge_grads = run("edges", graph, scheme, dtype, batch, weighted, device)
        same(scheme, edges, edge_grads, dense, dense_grads)


def same(
    scheme: Scheme, ours: Propagation, our_grads: dict[str, Tensor], dense: Propagation, dense_grads: dict[str, Tensor]
) -> None:
    close(ours.h, dense.h)
    n = ours.h.size(-2)
    for weight, reference in zip(ours.weights, dense.weights, strict=True):
        if scheme.support == "dense":
            matrix = reference.new_zeros(*reference.shape[:-2], n, n)
            matrix[..., ours.edge_index[0], ours.edge_index[1]] = weight
            close(matrix, reference)  # also checks that S is 0 outside the edges
        else:
            close(weight, reference)
    for terms, reference_terms in zip(ours.objective, dense.objective, strict=True):
        assert (terms.after, terms.layer) == (reference_terms.after, reference_terms.layer)
        for term in ("fidelity", "smoothness", "structure", "l1", "l2", "total"):
            close(getattr(terms, term), getattr(reference_terms, term))
    for name, reference in dense_grads.items():
        close(our_grads[name], reference)


@pytest.mark.parametrize("backend", ["dense", "edges"])
@pytest.mark.parametrize(
    "name",
    ["paper", "paper joint", "degree", "degree exact", "degree unit", "frozen sym", "mcp", "mcp exact"],
)
def test_gradcheck(name: str, backend: str) -> None:
    n, edge_index = AWKWARD["isolated node"]
    adj = Adjacency.of(edge_index, n)
    rng = torch.Generator().manual_seed(3)
    x = torch.randn(2, n, 2, generator=rng, dtype=torch.float64) / 3
    scalars = [torch.full((2,), value, dtype=torch.float64) for value in START.values()]

    def function(x: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        params = ASMPParams(*values)
        out = propagate(x, adj, params, SCHEMES[name], layers=2, backend=backend, trace=True)  # type: ignore[arg-type]
        return (out.h, *out.weights[1:], out.objective[-1].total)

    inputs = [tensor.requires_grad_() for tensor in (x, *scalars)]
    assert torch.autograd.gradcheck(function, inputs)


def test_second_derivatives_of_the_edge_list() -> None:
    n, edge_index = AWKWARD["one edge"]
    adj = Adjacency.of(edge_index, n)
    x = torch.tensor([[0.3, -0.2], [0.1, 0.4]], dtype=torch.float64, requires_grad=True)
    for scheme in (Scheme("paper"), Scheme(), Scheme(penalty="mcp")):
        assert torch.autograd.gradgradcheck(
            lambda x, scheme=scheme: propagate(x, adj, ASMPParams(**START), scheme, layers=2).h, (x,)
        )


def test_batch_equals_one_by_one() -> None:
    n, edge_index = AWKWARD["random 33"]
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(4, n, 5, generator=rng, dtype=torch.float64)
    lam = torch.tensor([0.1, 1.0, 2.0, 5.0], dtype=torch.float64)
    for scheme in SCHEMES.values():
        adj = Adjacency.of(edge_index, n)
        many = propagate(x, adj, ASMPParams(lam=lam, gamma=0.7), scheme, layers=4)
        for i in range(4):
            alone = propagate(x[i], adj, ASMPParams(lam=float(lam[i]), gamma=0.7), scheme, layers=4)
            close(many.h[i], alone.h)
            for of_many, of_alone in zip(many.weights, alone.weights, strict=True):
                close(of_many[i], of_alone)
