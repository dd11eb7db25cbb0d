"""Metattack: the meta-gradient against autograd through a dense unrolled training, the flips against brute force."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data

from asgnn.attacks import dice as random_flips
from asgnn.attacks import metattack
from asgnn.attacks.degrees import DegreeTest
from asgnn.attacks.inner import InnerTraining, train
from asgnn.attacks.meta_gradient import MetaGradient
from asgnn.errors import ConfigError, GraphError
from tests.attacks.dense_metattack import attack_loss, dense, meta_gradient
from tests.awkward import AWKWARD

QUICK = InnerTraining(steps=12, hidden=3, starts=1)
INNER = {
    "quick": QUICK,
    "no step": InnerTraining(steps=0, hidden=3, starts=1),
    "one step": InnerTraining(steps=1, hidden=2),
    "no momentum": InnerTraining(steps=8, momentum=0.0, hidden=5),
    "three starts": InnerTraining(steps=5, hidden=2, starts=3),
    "published": InnerTraining(),
}


def problem(name: str, features: int = 9, classes: int = 3) -> tuple[Data, Tensor, Tensor]:
    """Return a graph, its labelled nodes, and the labels where they are known with pseudo-labels elsewhere."""
    n, edge_index = AWKWARD[name]
    rng = torch.Generator().manual_seed(n)
    x = (torch.rand(n, features, generator=rng) < 0.4).double()
    y = torch.randint(classes, (n,), generator=rng)
    pseudo = torch.randint(classes, (n,), generator=rng)
    pseudo[-1] = classes - 1
    labelled = torch.randperm(n, generator=rng)[: max(1, n // 3)].sort().values
    pseudo[labelled] = y[labelled]
    return Data(x=x, y=y, edge_index=edge_index), labelled, pseudo


def above_diagonal(matrix: Tensor) -> Tensor:
    return matrix[torch.ones_like(matrix, dtype=torch.bool).triu(1)]


@pytest.mark.parametrize("inner", INNER.values(), ids=INNER.keys())
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", [name for name in AWKWARD if name != "one node"])
@pytest.mark.parametrize("exact", [True, False], ids=["exact", "first order"])
def test_meta_gradient_equals_autograd(name: str, share: float, inner: InnerTraining, exact: bool) -> None:
    data, labelled, pseudo = problem(name)
    if exact is False and inner.steps == 0:
        pytest.skip("the first-order gradient is a sum over steps")
    ours = MetaGradient(data, labelled, pseudo, share, inner, dtype=torch.float64)
    w1, w2 = ours.start(torch.Generator().manual_seed(1))
    a = dense(data.edge_index, int(data.num_nodes))
    settings: dict[str, Any] = {"share": share, "inner": inner, "exact": exact}
    expected = meta_gradient(a, data.x, pseudo, labelled, w1, w2, **settings)
    found = ours.gradient(w1, w2, exact=exact)
    torch.testing.assert_close(
        above_diagonal(found), above_diagonal(expected), rtol=1e-8, atol=1e-8 * float(expected.abs().max())
    )
    assert bool((found[torch.ones_like(found, dtype=torch.bool).tril()] == -torch.inf).all())


@pytest.mark.parametrize("nodes", [None, torch.tensor([2, 5, 20, 31])], ids=["all nodes", "some nodes"])
@pytest.mark.parametrize("loss", ["ce", "tanh_margin"])
@pytest.mark.parametrize("exact", [True, False], ids=["exact", "first order"])
def test_losses_and_attacked_nodes(loss: str, nodes: Tensor | None, exact: bool) -> None:
    data, labelled, pseudo = problem("random 33")
    attacked: dict[str, Any] = {"nodes": nodes, "loss": loss}
    ours = MetaGradient(data, labelled, pseudo, 0.3, INNER["three starts"], dtype=torch.float64, **attacked)
    w1, w2 = ours.start(torch.Generator().manual_seed(1))
    settings: dict[str, Any] = {"share": 0.3, "inner": INNER["three starts"], "exact": exact, **attacked}
    expected = meta_gradient(dense(data.edge_index, 33), data.x, pseudo, labelled, w1, w2, **settings)
    found = ours.gradient(w1, w2, exact=exact)
    torch.testing.assert_close(above_diagonal(found), above_diagonal(expected), rtol=1e-8, atol=1e-10)


def test_known_labels_are_used() -> None:
    """Of the nodes outside ``train``, exactly the labels of ``known`` matter."""
    data, labelled, _ = problem("random 33")
    outside = torch.tensor([node for node in range(33) if node not in labelled.tolist()])

    def flips(changed: Tensor, **options: Any) -> Tensor:
        other = data.clone()
        other.y = data.y.clone()
        other.y[changed] = (data.y[changed] + 1) % 3
        return metattack(other, 6, labelled, torch.Generator().manual_seed(0), inner=QUICK, **options).flips

    known = outside[:10]
    assert torch.equal(flips(outside[:0], known=known), flips(outside[10:], known=known))
    assert not torch.equal(flips(outside[:0], known=known), flips(known, known=known))
    with pytest.raises(ConfigError, match="All attacked nodes are training nodes"):
        flips(outside, nodes=labelled)


def test_stored_products_are_updated_by_flips() -> None:
    """After additions and removals at the same nodes, the gradient is that of the flipped graph."""
    data, labelled, pseudo = problem("random 33")
    graph = MetaGradient(data, labelled, pseudo, 0.0, QUICK, dtype=torch.float64)
    a = dense(data.edge_index, 33)
    pairs = [(0, 1), (0, 2), (1, 2), (0, 1), (5, 32), (31, 32), (4, 20)]
    pairs += [tuple(edge) for edge in data.edge_index.t().tolist()[:6:2]]
    w1, w2 = graph.start(torch.Generator().manual_seed(2))
    for u, v in pairs:
        graph.flip(u, v)
        a[u, v] = a[v, u] = 1 - a[u, v]
    torch.testing.assert_close(graph.degree, a.sum(1).long())
    expected = meta_gradient(a, data.x, pseudo, labelled, w1, w2, share=0.0, inner=QUICK)
    torch.testing.assert_close(above_diagonal(graph.gradient(w1, w2)), above_diagonal(expected), rtol=1e-8, atol=1e-10)
    assert torch.equal(torch.stack(graph.edges()), a.triu().nonzero().t())


def greedy(
    data: Data, labelled: Tensor, pseudo: Tensor, starts: list[tuple[Tensor, Tensor]], **rules: Any
) -> list[tuple[int, int]]:
    """Run the attack by brute force on the dense gradient; stop early if no flip is allowed."""
    a = dense(data.edge_index, int(data.num_nodes))
    clean, flips = a.sum(1).long(), []
    for w1, w2 in starts:
        score = meta_gradient(a, data.x, pseudo, labelled, w1, w2, share=0.0, inner=QUICK) * (1 - 2 * a)
        best, value = None, float("-inf")
        for u in range(a.size(0)):
            for v in range(u + 1, a.size(0)):
                present = bool(a[u, v])
                degree = a.sum(1).long()
                if (u, v) in flips or not rules.get("remove" if present else "add", True):
                    continue
                if present and not rules.get("allow_isolated", False) and min(degree[u], degree[v]) == 1:
                    continue
                after = degree.clone()
                after[[u, v]] += -1 if present else 1
                if rules.get("degree_test") and DegreeTest(clean).statistic(after) >= 0.004:
                    continue
                if float(score[u, v]) > value:
                    best, value = (u, v), float(score[u, v])
        if best is None:
            break
        flips.append(best)
        u, v = best
        a[u, v] = a[v, u] = 1 - a[u, v]
    return flips


@pytest.mark.parametrize(
    "rules", [{}, {"add": False}, {"remove": False}, {"allow_isolated": True}, {"degree_test": True}], ids=str
)
@pytest.mark.parametrize("name", ["random 33", "star", "isolated node"])
def test_flips_equal_brute_force(name: str, rules: dict[str, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    data, labelled, pseudo = problem(name)
    budget = 4 if name == "random 33" else 1
    starts = []
    original = MetaGradient.start

    def recorded(self: MetaGradient, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        starts.append(original(self, rng))
        return starts[-1]

    monkeypatch.setattr(MetaGradient, "start", recorded)
    monkeypatch.setattr(import_module("asgnn.attacks.metattack"), "pseudo_labels", lambda *_: pseudo)
    settings: dict[str, Any] = {"inner": QUICK, "dtype": torch.float64, **rules}
    try:
        found = metattack(data, budget, labelled, torch.Generator().manual_seed(0), **settings)
    except GraphError:
        # for example, every removal from a star isolates a leaf
        assert len(greedy(data, labelled, pseudo, starts, **rules)) < budget
        return
    assert len(starts) == budget
    assert list(zip(*found.flips.tolist(), strict=True)) == greedy(data, labelled, pseudo, starts, **rules)


def loss_after(data: Data, labelled: Tensor, truth: Tensor, share: float) -> float:
    """Return the attacker's loss after training on the graph, averaged over five initialisations."""
    a = dense(data.edge_index, int(data.num_nodes)) + torch.eye(int(data.num_nodes), dtype=torch.float64)
    root = a.sum(1).rsqrt()
    hat = root.unsqueeze(1) * a * root
    p = hat @ hat @ data.x
    total = 0.0
    for seed in range(5):
        w1, w2 = MetaGradient(data, labelled, truth, share, QUICK, dtype=torch.float64).start(
            torch.Generator().manual_seed(seed)
        )
        onehot = F.one_hot(truth, 3)[labelled].double().t().contiguous()
        start = (p[labelled] @ w1).mT.contiguous()
        trace = train(p[labelled] @ p[labelled].t(), start, w2.mT.contiguous(), onehot, QUICK)
        logits = (p @ w1 + p @ p[labelled].t() @ trace.b[-1].mT) @ trace.w2[-1].mT
        total += float(attack_loss(logits[0], truth, labelled, share)) / 5
    return total


@pytest.mark.parametrize(("variant", "share"), [("self", 0.0), ("train", 1.0), ("both", 0.5)])
def test_attack_raises_the_loss_of_its_variant(variant: Any, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    data, labelled, pseudo = problem("random 33")
    monkeypatch.setattr(import_module("asgnn.attacks.metattack"), "pseudo_labels", lambda *_: pseudo)
    rng = torch.Generator().manual_seed(0)
    found = metattack(data, 8, labelled, rng, variant=variant, inner=QUICK)
    after = loss_after(found.apply(data), labelled, pseudo, share)
    random = [
        loss_after(random_flips(data, 8, torch.Generator().manual_seed(s)).apply(data), labelled, pseudo, share)
        for s in range(10)
    ]
    assert after > max(loss_after(data, labelled, pseudo, share), *random)


def test_first_flips_equal_the_attack_with_a_smaller_budget() -> None:
    data, labelled, _ = problem("random 33")
    small, large = (metattack(data, k, labelled, torch.Generator().manual_seed(3), inner=QUICK) for k in (3, 7))
    assert torch.equal(small.flips, large.first(3).flips)


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "variant": ({"variant": "other"}, ConfigError, "variant must be one of self, train, both; it is 'other'"),
    "nothing allowed": ({"add": False, "remove": False}, ConfigError, "add and remove are both False"),
    "all labelled": ({"train": torch.arange(33)}, ConfigError, "none is left to attack"),
}


@pytest.mark.parametrize(("change", "kind", "words"), BAD.values(), ids=BAD.keys())
def test_bad_settings(change: dict[str, Any], kind: type[Exception], words: str) -> None:
    data, labelled, _ = problem("random 33")
    arguments = {"budget": 2, "train": labelled, "rng": torch.Generator(), "inner": QUICK} | change
    with pytest.raises(kind, match=words):
        metattack(data, **arguments)


def test_budget_above_the_number_of_pairs() -> None:
    data, labelled, _ = problem("isolated node")
    with pytest.raises(GraphError, match=r"found 10 allowed flips, but the budget is 11"):
        metattack(data, 11, labelled, torch.Generator(), inner=QUICK, allow_isolated=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("exact", [True, False])
def test_gpu_equals_cpu(exact: bool) -> None:
    """Repeated calls, because the inner training is a CUDA graph that must read the new weights and flips."""
    data, labelled, pseudo = problem("random 33")
    cpu, gpu = (
        MetaGradient(data, labelled, pseudo, 0.5, InnerTraining(starts=2), device, torch.float64)
        for device in ("cpu", "cuda")
    )
    for seed in range(4):
        w1, w2 = cpu.start(torch.Generator().manual_seed(seed))
        found = gpu.gradient(w1.cuda(), w2.cuda(), exact=exact).cpu()
        again = gpu.gradient(w1.cuda(), w2.cuda(), exact=exact).cpu()
        assert torch.equal(found, again)
        torch.testing.assert_close(found, cpu.gradient(w1, w2, exact=exact), rtol=1e-9, atol=1e-12)
        for graph in (cpu, gpu):
            graph.flip(seed, seed + 7)
