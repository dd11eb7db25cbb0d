"""Sparse features against dense features: product, gradient and dropout."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from asgnn.errors import GraphError
from asgnn.graphs.features import SPARSE_BELOW, Features

F64 = torch.float64
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def bag_of_words(n: int, f: int, share: float = 0.06) -> Tensor:
    rng = torch.Generator().manual_seed(n)
    x = torch.rand(n, f, generator=rng, dtype=F64) * (torch.rand(n, f, generator=rng) < share)
    x[n // 2] = 0
    x[:, f // 2] = 0
    return x


def single_entry() -> Tensor:
    x = torch.zeros(1, 40, dtype=F64)
    x[0, 7] = 2.5
    return x


MATRICES = {
    "zero row and column": bag_of_words(33, 47),
    "one node": single_entry(),
    "one feature": torch.tensor([[0.0]] * 12 + [[3.0]], dtype=F64),
    "nothing": torch.zeros(4, 5, dtype=F64),
    "tall": bag_of_words(200, 3, 0.03),
}
LAYOUTS = {"strided": lambda x: x, "coo": Tensor.to_sparse_coo, "csr": Tensor.to_sparse_csr}


def as_dense(x: Tensor) -> Features:
    return Features(x.size(0), x.size(1), x, None, None, None)


def mask_of_entries(features: Features, keep: Tensor) -> Tensor:
    """Expands a mask over the stored entries (T, nnz) to the matrix (T, N, F)."""
    assert features.by_row is not None
    row = torch.repeat_interleave(torch.arange(features.num_nodes), features.by_row.crow.diff().cpu())
    mask = torch.zeros(keep.size(0), features.num_nodes, features.num_features, dtype=torch.bool)
    mask[:, row, features.by_row.col.cpu()] = keep.cpu()
    return mask


def product(features: Features, weight: Tensor, keep: Tensor | None, scale: Tensor | None) -> tuple[Tensor, Tensor]:
    weight = weight.clone().requires_grad_()
    out = features.linear(weight, keep, scale)
    probe = torch.randn(out.shape, generator=torch.Generator().manual_seed(2), dtype=F64).to(out.device)
    (grad,) = torch.autograd.grad((out * probe).sum(), weight)
    return out.detach().cpu(), grad.cpu()


@pytest.mark.parametrize("rates", [None, (0.5,), (0.0, 0.3, 0.9), (0.999, 0.0)], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("device", DEVICES)
def test_sparse_equals_dense(device: str, name: str, layout: str, rates: tuple[float, ...] | None) -> None:
    x = MATRICES[name]
    features = Features.of(LAYOUTS[layout](x)).to(device)
    assert features.dense is None
    trials = 2 if rates is None else len(rates)
    rng = torch.Generator().manual_seed(0)
    weight = torch.randn(trials, x.size(1), 4, generator=rng, dtype=F64)
    keep = scale = mask = None
    if rates is not None:
        rate = torch.tensor(rates, dtype=F64)
        keep = torch.rand(trials, *features.size_of_mask, generator=rng) >= rate.unsqueeze(1)
        scale, mask = 1 / (1 - rate), mask_of_entries(features, keep)
        keep = keep.to(device)
    ours = product(features, weight.to(device), keep, None if scale is None else scale.to(device))
    dense = product(as_dense(x), weight, mask, scale)
    torch.testing.assert_close(ours, dense, rtol=1e-12, atol=1e-12)
    by_hand = x @ weight if mask is None or scale is None else (x * mask * scale.view(-1, 1, 1)) @ weight
    torch.testing.assert_close(ours[0], by_hand, rtol=1e-12, atol=1e-12)


def test_gradcheck_of_the_sparse_product() -> None:
    features = Features.of(MATRICES["zero row and column"][:, :9])
    rng = torch.Generator().manual_seed(0)
    weight = torch.randn(2, 9, 2, generator=rng, dtype=F64, requires_grad=True)
    keep = torch.rand(2, *features.size_of_mask, generator=rng) > 0.4
    scale = torch.tensor([1.5, 3.0], dtype=F64)
    assert torch.autograd.gradcheck(lambda w: features.linear(w, None, None), (weight,))
    assert torch.autograd.gradcheck(lambda w: features.linear(w, keep, scale), (weight,))


@pytest.mark.parametrize(("entries", "sparse"), [(0, True), (99, True), (100, False), (1000, False)])
def test_stored_sparse_below_ten_percent(entries: int, sparse: bool) -> None:
    assert SPARSE_BELOW == 0.1
    x = torch.zeros(1000)
    x[torch.randperm(1000, generator=torch.Generator().manual_seed(0))[:entries]] = 1
    features = Features.of(x.view(20, 50))
    assert (features.by_row is not None) == (features.by_column is not None) == sparse
    assert (features.dense is None) == sparse
    assert features.size_of_mask == ((entries,) if sparse else (20, 50))


def test_sparse_tensor_stays_sparse_and_duplicates_add_up() -> None:
    x = torch.sparse_coo_tensor(
        torch.tensor([[0, 0, 1], [1, 1, 0]]), torch.tensor([1.0, 2.0, 5.0]), (2, 2), check_invariants=True
    )
    features = Features.of(x)
    assert features.dense is None
    assert features.linear(torch.eye(2).unsqueeze(0), None, None).tolist() == [[[0, 3], [5, 0]]]


@pytest.mark.parametrize("name", ["zero row and column", "full"])
def test_conversion_of_the_dtype(name: str) -> None:
    x = torch.rand(5, 4, dtype=F64) if name == "full" else MATRICES[name]
    features = Features.of(x)
    single = features.to("cpu", torch.float32)
    weight = torch.randn(1, x.size(1), 3, generator=torch.Generator().manual_seed(0), dtype=F64)
    assert single.linear(weight.float(), None, None).dtype == torch.float32
    torch.testing.assert_close(single.linear(weight.float(), None, None)[0], (x @ weight[0]).float())
    same = features.to("cpu")  # no dtype: no conversion
    assert torch.equal(same.linear(weight, None, None), features.linear(weight, None, None))


@pytest.mark.parametrize("share", [0.05, 0.5])
@pytest.mark.parametrize("nodes", [[], [4], [0, 3, 4, 39], list(range(40))])
def test_rows_keep_their_form(share: float, nodes: list[int]) -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(40, 30, generator=rng) * (torch.rand(40, 30, generator=rng) < share)
    whole, some = Features.of(x), Features.of(x).rows(torch.tensor(nodes, dtype=torch.int64))
    assert (some.by_row is None) == (whole.by_row is None)
    assert torch.equal(some.to_dense(), x[nodes])
    weight = torch.randn(1, 30, 2, generator=rng, requires_grad=True)
    ours, theirs = some.linear(weight, None, None), whole.linear(weight, None, None)[:, nodes]
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(out.sum(), weight)[0] for out in (ours, theirs)))


def test_features_are_returned_unchanged() -> None:
    features = Features.of(MATRICES["tall"])
    assert Features.of(features) is features
    assert (features.num_nodes, features.num_features) == (200, 3)


DTYPE, SHAPE, FINITE = "float32 or float64", r"shape \(N, F\)", "(is|contains) (nan|inf): every feature must be finite"
BAD = {
    "integers": (torch.ones(2, 2, dtype=torch.int64), DTYPE),
    "float16": (torch.ones(2, 2, dtype=torch.float16), DTYPE),
    "bfloat16": (torch.ones(2, 2, dtype=torch.bfloat16), DTYPE),
    "complex": (torch.ones(2, 2, dtype=torch.complex64), DTYPE),
    "flat": (torch.ones(3), SHAPE),
    "cube": (torch.ones(2, 2, 2), SHAPE),
    "NaN, dense": (torch.full((2, 2), torch.nan), FINITE),
    "infinite, sparse": (torch.diag(torch.full((30,), torch.inf)), FINITE),
    "NaN, sparse tensor": (torch.diag(torch.full((30,), torch.nan)).to_sparse(), FINITE),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_input_raises(case: str) -> None:
    x, message = BAD[case]
    with pytest.raises(GraphError, match=message) as caught:
        Features.of(x)
    assert str(caught.value).endswith(".")


UNFIT = {
    "other features": (r"built for 40 features, but x has 47\.", torch.ones(1, 40, 2, dtype=F64)),
    "other dtype": (r"x is float64 and the model float32; convert one of them\.", torch.ones(1, 47, 2)),
}


@pytest.mark.parametrize("case", UNFIT)
def test_weight_that_does_not_fit_raises(case: str) -> None:
    message, weight = UNFIT[case]
    for x in (MATRICES["zero row and column"], torch.ones(3, 47, dtype=F64)):
        with pytest.raises(GraphError, match=message):
            Features.of(x).linear(weight, None, None)
