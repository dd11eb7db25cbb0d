"""ASMP as a module with learned scalars, and ASGNN, an MLP followed by ASMP."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Literal

import torch
from torch import Tensor, nn

from asgnn.asmp import BACKENDS, SCALARS, ASMPParams, Propagation, Scheme, lipschitz_h, lipschitz_s, max_eta, propagate
from asgnn.asmp.propagate import Backend
from asgnn.errors import ConfigError
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features
from asgnn.graphs.hops import with_hops
from asgnn.models.base import NodeClassifier
from asgnn.models.layers import MLPBlock, Rng, check_depth
from asgnn.models.memory import ROWS, Needed, Saving, Sizes, of_asmp, of_mlp
from asgnn.settings import PerTrial, check_choice, check_count

Constraint = Literal["descent", "positive", "free"]
MAX_HOPS = 100

# A float32 sigmoid rounds to 1 above 17 and to 0 below −104; clamping to this range keeps both bounds strict.
SHARE = (1e-30, 1 - 1e-6)


class ASMP(nn.Module):
    r"""Message passing with adaptive structure (Zhang et al., "ASGNN", 2022), with six learned scalars.

    Works in any PyG model: ``forward(x, edge_index, edge_weight=None)`` with x of shape (…, N, C). All layers share the
    scalars, so a trained module can be run with more layers than in training.

    Args:
        num_layers: K.
        params: the initial values of the six scalars.
        scheme: objective, support and the other variants; see :class:`~asgnn.asmp.Scheme`.
        learn: the names of the scalars to learn; the others stay fixed.
        constraint: "free" learns the values themselves (λ may become negative); "positive" learns their logarithms;
            "descent" also keeps the step sizes below the bounds under which no half-step increases the objective.
            Descent is proved for ``objective="degree"`` with alternating updates and without ``unit_norm``, where it
            is the default; the default elsewhere is "positive".
        backend: see :func:`~asgnn.asmp.asmp`.

    Shapes:
        - input: x (…, N, C), edge_index (2, E), edge_weight (E,)
        - output: (…, N, C)
    """

    def __init__(
        self,
        num_layers: int = 8,
        *,
        params: ASMPParams | None = None,
        scheme: Scheme | None = None,
        learn: Collection[str] = SCALARS,
        constraint: Constraint | None = None,
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        check_depth(num_layers)
        check_choice("backend", backend, ("auto", *BACKENDS))
        self.num_layers, self.backend = num_layers, backend
        self.scheme = scheme = scheme or Scheme()
        descends = scheme.objective == "degree" and scheme.update == "alternating" and not scheme.unit_norm
        self.constraint = constraint or ("descent" if descends else "positive")
        check_choice("constraint", self.constraint, ("descent", "positive", "free"))
        if self.constraint == "descent" and not descends:
            raise ConfigError(
                'constraint="descent" needs objective="degree", update="alternating" and unit_norm=False: '
                "descent is not proved for other variants."
            )
        try:
            unknown = {str(name) for name in learn} - set(SCALARS)
        except TypeError:
            raise ConfigError(f"learn must be a collection of names of scalars; it is {learn!r}.") from None
        if unknown:
            raise ConfigError(
                f"learn has unknown names: {', '.join(sorted(unknown))}; the scalars are {', '.join(SCALARS)}."
            )
        self.start = params or ASMPParams()
        self.learn = tuple(name for name in SCALARS if name in learn)
        raw = self._raw(self.start)
        for name in SCALARS:
            if name in self.learn:
                self.register_parameter(f"raw_{name}", nn.Parameter(raw[name]))
            else:
                self.register_buffer(f"raw_{name}", raw[name])

    def _raw(self, params: ASMPParams) -> dict[str, Tensor]:
        """The stored form of the scalars: values, logarithms, or the logit of the ratio of a step size to its bound."""
        values: dict[str, float] = {}
        for name, value in zip(SCALARS, params.resolved(), strict=True):
            if isinstance(value, Tensor) and value.numel() != 1:
                raise ConfigError(f"{name} has {value.numel()} values, but a module needs a single number.")
            values[name] = float(value)
            if not math.isfinite(values[name]):
                raise ConfigError(f"{name} starts at {values[name]}; it must be finite.")
        if self.constraint == "free":
            return {name: torch.tensor(value) for name, value in values.items()}
        for name, value in values.items():
            if value < 0 or (value == 0 and name in self.learn):
                raise ConfigError(
                    f"{name} starts at {value:g}, but constraint={self.constraint!r} needs learned scalars above 0 and "
                    'fixed ones of at least 0; start it higher, remove it from learn, or use constraint="free".'
                )
        # a fixed 0 is stored as log 0 = −inf, which exp turns back into 0
        raw = {name: torch.tensor(value).log() for name, value in values.items()}
        if self.constraint == "descent":
            if values["gamma"] + values["mu2"] == 0:
                raise ConfigError(
                    'gamma and mu2 are both 0, but "descent" needs a positive sum; use constraint="positive".'
                )
            bounds = {
                "eta1": max_eta(lipschitz_h(values["lam"])),
                "eta2": max_eta(lipschitz_s(values["lam"], values["gamma"], values["mu2"])),
            }
            for name, bound in bounds.items():
                share = values[name] / bound
                if not 0 < share < 1:
                    raise ConfigError(
                        f"{name} starts at {values[name]:g}, but descent needs it above 0 and below {bound:g}; "
                        'change it or use constraint="positive".'
                    )
                raw[name] = torch.tensor(share).logit()
        return raw

    @property
    def keeps_absent_edges(self) -> bool:
        """Whether an edge of weight 0 stays at 0, as if it were absent: for q with λ ≥ 0, and if S is frozen."""
        grows = self.scheme.objective == "paper" or self.constraint == "free"
        return self.scheme.support == "edges" and (self.scheme.structure == "frozen" or not grows)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Reset the scalars to their initial values; nothing is random."""
        del generator
        with torch.no_grad():
            for name, value in self._raw(self.start).items():
                getattr(self, f"raw_{name}").copy_(value)

    def params(self) -> ASMPParams:
        """The current values of the six scalars, differentiable."""
        raw: dict[str, Tensor] = {name: getattr(self, f"raw_{name}") for name in SCALARS}
        if self.constraint == "free":
            return ASMPParams(**raw)
        # stacked, because on a GPU each small operation costs a kernel launch
        value = dict(zip(raw, torch.stack(list(raw.values())).exp().unbind(0), strict=True))
        if self.constraint == "descent":
            first, second = torch.stack([raw["eta1"], raw["eta2"]]).sigmoid().clamp(*SHARE).unbind(0)
            value["eta1"], value["eta2"] = first / (1 + 2 * value["lam"]), second / (value["gamma"] + value["mu2"])
        return ASMPParams(**value)

    def run(
        self,
        x: Tensor,
        adj: Adjacency,
        num_layers: int | None = None,
        *,
        weights: bool = False,
        trace: bool = False,
        recompute: bool = False,
    ) -> Propagation:
        """Run ASMP on a prepared adjacency; ``num_layers`` may differ from the number used in training.

        ``weights``, ``trace`` and ``recompute`` are those of :func:`~asgnn.asmp.propagate`.
        """
        return propagate(
            x,
            adj,
            self.params(),
            self.scheme,
            layers=self.num_layers if num_layers is None else num_layers,
            backend=self.backend,
            weights=weights,
            trace=trace,
            recompute=recompute,
        )

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor | Adjacency,
        edge_weight: Tensor | None = None,
        num_layers: int | None = None,
    ) -> Tensor:
        return self.run(x, Adjacency.of(edge_index, x.size(-2), edge_weight), num_layers).h

    def extra_repr(self) -> str:
        return f"num_layers={self.num_layers}, {self.scheme}, learn={self.learn}, constraint={self.constraint!r}"


class ASGNN(NodeClassifier):
    r"""Graph neural network with adaptive structure: :math:`H = \mathrm{ASMP}_K(\mathrm{MLP}(Z), A)`.

    Args:
        in_channels: F, the number of input features.
        hidden_channels: the width of the MLP.
        out_channels: C, the number of classes.
        num_layers: K, the number of ASMP layers.
        dropout: dropout rate on the input features and between the layers of the MLP.
        mlp_layers: the number of linear layers of the MLP.
        hops: the MLP also sees the mean features of the neighbours up to this distance: [Z, ÂZ, …, Â^hops Z] with
            Â = D⁻¹A without self-loops. Useful where neighbours are unlike (heterophily).
        params, scheme, learn, constraint, backend: see :class:`ASMP`.

    Time O(nnz(Z) H + N H C + K E C), memory O(F H + N H + K E) with edge support.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        num_layers: int = 8,
        dropout: PerTrial = 0.8,
        mlp_layers: int = 2,
        hops: int = 0,
        params: ASMPParams | None = None,
        scheme: Scheme | None = None,
        learn: Collection[str] = SCALARS,
        constraint: Constraint | None = None,
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        check_count("hops", hops, 0, MAX_HOPS)
        self.hops = hops
        self.mlp = MLPBlock(in_channels * (1 + hops), hidden_channels, out_channels, mlp_layers, dropout)
        self.asmp = ASMP(num_layers, params=params, scheme=scheme, learn=learn, constraint=constraint, backend=backend)
        self.repeatable = self.asmp.scheme.support == "edges"  # with dense support the sign of λ is read on the CPU
        self.own_weights = hops == 0 and self.asmp.keeps_absent_edges and backend in ("auto", "edges")

    def forward(
        self,
        x: Tensor | Features,
        edge_index: Tensor | Adjacency,
        edge_weight: Tensor | None = None,
        *,
        num_layers: int | None = None,
        rng: Rng = None,
    ) -> Tensor:
        """(N, out_channels); ``num_layers`` may differ from the number used in training."""
        features = Features.of(x)
        adj = Adjacency.of(edge_index, features.num_nodes, edge_weight)
        scores = self.logits(features, self.informed(features, adj), rng, num_layers)
        return self.joined(self.unstacked(scores), features, adj)

    def logits(self, features: Features, adj: Adjacency, rng: Rng, num_layers: int | None = None) -> Tensor:
        x = self.mlp(self._inputs(features, adj), rng, self.saving.rows)
        return self.asmp.run(x, adj, num_layers, recompute=self.saving.recompute).h

    def savings(self) -> tuple[Saving, ...]:
        return Saving(), Saving(ROWS), Saving(ROWS, recompute=True)

    def activations(self, sizes: Sizes, saving: Saving) -> Needed | None:
        # propagation to neighbours makes features of its own, and other backends keep more
        if self.hops or self.asmp.backend not in ("auto", "gpu" if sizes.gpu else "cpu"):
            return None
        layers = of_asmp(self.asmp.scheme, self.asmp.num_layers, self.mlp.widths[-1], sizes, saving.recompute)
        return None if layers is None else of_mlp(self.mlp, sizes, saving.rows).then(layers)

    def _inputs(self, features: Features, adj: Adjacency) -> Features:
        return with_hops(features, adj, self.hops) if self.hops else features

    @torch.no_grad()
    def structure(
        self,
        x: Tensor | Features,
        edge_index: Tensor | Adjacency,
        edge_weight: Tensor | None = None,
        *,
        num_layers: int | None = None,
    ) -> Propagation:
        """Return the edge weights after every layer and the objective, without dropout."""
        features = Features.of(x)
        adj = self.informed(features, Adjacency.of(edge_index, features.num_nodes, edge_weight))
        was_training = self.training
        self.eval()
        try:
            return self.asmp.run(
                self.unstacked(self.mlp(self._inputs(features, adj))), adj, num_layers, weights=True, trace=True
            )
        finally:
            self.train(was_training)

    def scalars(self) -> Iterable[Tensor]:
        return self.asmp.parameters()

    def scalar_values(self) -> dict[str, float]:
        return {name: float(value.detach()) for name, value in vars(self.asmp.params()).items()}
