"""ASMP as a module with learned scalars, and ASGNN, an MLP followed by it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Literal

import torch
from torch import Tensor, nn

from asgnn.asmp import BACKENDS, SCALARS, ASMPParams, Propagation, Scheme, lipschitz_h, lipschitz_s, max_eta, propagate
from asgnn.asmp.params import one_of
from asgnn.asmp.propagate import Backend
from asgnn.errors import ConfigError
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features
from asgnn.models.base import NodeClassifier
from asgnn.models.layers import MLPBlock, Rng, check_depth
from asgnn.settings import PerTrial

Constraint = Literal["descent", "positive", "free"]

# A float32 sigmoid rounds to 1 from 17 on and to 0 below −104; inside this range both bounds stay open.
SHARE = (1e-30, 1 - 1e-6)


class ASMP(nn.Module):
    r"""Message passing with adaptive structure (Zhang et al., "ASGNN", 2022), its six scalars learned.

    Drops into any PyG model: ``forward(x, edge_index, edge_weight=None)`` with x of shape (…, N, C). One set of
    scalars serves all layers, so a trained module can be run deeper than it was trained.

    Args:
        num_layers: K.
        params: the six scalars to start from.
        scheme: objective, support and the other variants; see :class:`~asgnn.asmp.Scheme`.
        learn: the names of the scalars that are learned; the others stay as they are.
        constraint: "free" learns the values themselves (λ may become negative); "positive" learns their logarithms;
            "descent" also keeps the step sizes inside the bounds within which every half-step lowers the objective.
            Descent is proved for ``objective="degree"`` with alternating updates and rows as they are, and is the
            default there; elsewhere "positive" is.
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
        one_of("backend", backend, ("auto", *BACKENDS))
        self.num_layers, self.backend = num_layers, backend
        self.scheme = scheme or Scheme()
        chosen = self.scheme
        descends = chosen.objective == "degree" and chosen.update == "alternating" and not chosen.unit_norm
        self.constraint = constraint or ("descent" if descends else "positive")
        one_of("constraint", self.constraint, ("descent", "positive", "free"))
        if self.constraint == "descent" and not descends:
            raise ConfigError(
                'constraint="descent" needs objective="degree", update="alternating" and unit_norm=False: '
                "descent is proved for no other variant."
            )
        if unknown := set(learn) - set(SCALARS):
            raise ConfigError(f"The scalars are {', '.join(SCALARS)}; there is no {', '.join(sorted(unknown))}.")
        self.start = params or ASMPParams()
        self.learn = tuple(name for name in SCALARS if name in learn)
        raw = self._raw(self.start)
        for name in SCALARS:
            if name in self.learn:
                self.register_parameter(f"raw_{name}", nn.Parameter(raw[name]))
            else:
                self.register_buffer(f"raw_{name}", raw[name])

    def _raw(self, params: ASMPParams) -> dict[str, Tensor]:
        """The stored form of the six values: themselves, their logarithms, or the logits of a share of a bound."""
        values: dict[str, float] = {}
        for name, value in zip(SCALARS, params.resolved(), strict=True):
            if isinstance(value, Tensor) and value.numel() != 1:
                raise ConfigError(f"{name} has {value.numel()} values, and a module starts from one number.")
            values[name] = float(value)
            if not math.isfinite(values[name]):
                raise ConfigError(f"{name} starts at {values[name]}, which is not a finite number.")
        if self.constraint == "free":
            return {name: torch.tensor(value) for name, value in values.items()}
        for name, value in values.items():
            if value < 0 or (value == 0 and name in self.learn):
                raise ConfigError(
                    f"{name} starts at {value:g}, and a learned scalar under constraint={self.constraint!r} must start "
                    f'above 0; start it higher, leave it out of learn, or use constraint="free".'
                )
        # a fixed 0 is stored as log 0 = −inf, which exp turns back into 0
        raw = {name: torch.tensor(value).log() for name, value in values.items()}
        if self.constraint == "descent":
            if values["gamma"] + values["mu2"] == 0:
                raise ConfigError('gamma and mu2 are both 0, and descent needs their sum above 0; use "positive".')
            bounds = {
                "eta1": max_eta(lipschitz_h(values["lam"])),
                "eta2": max_eta(lipschitz_s(values["lam"], values["gamma"], values["mu2"])),
            }
            for name, bound in bounds.items():
                share = values[name] / bound
                if not 0 < share < 1:
                    raise ConfigError(
                        f"{name} starts at {values[name]:g}, and descent needs it above 0 and below {bound:g}; "
                        'start it lower, or use constraint="positive".'
                    )
                raw[name] = torch.tensor(share).logit()
        return raw

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Put the scalars back to where they started; nothing here is random."""
        del generator
        with torch.no_grad():
            for name, value in self._raw(self.start).items():
                getattr(self, f"raw_{name}").copy_(value)

    def params(self) -> ASMPParams:
        """The six scalars as they are now, differentiable."""
        raw: dict[str, Tensor] = {name: getattr(self, f"raw_{name}") for name in SCALARS}
        if self.constraint == "free":
            return ASMPParams(**raw)
        # as one tensor: on a GPU each small operation costs as much as a large one
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
    ) -> Propagation:
        """The whole result on a prepared adjacency; ``num_layers`` may differ from the number trained with."""
        layers = self.num_layers if num_layers is None else num_layers
        return propagate(
            x,
            adj,
            self.params(),
            self.scheme,
            layers=layers,
            backend=self.backend,
            weights=weights,
            trace=trace,
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
        dropout: on the input features and between the layers of the MLP.
        mlp_layers: the number of linear layers.
        params, scheme, learn, constraint, backend: see :class:`ASMP`.

    Time O(nnz(Z) H + N H C + K E C), memory O(F H + N H + K E) on edges.
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
        params: ASMPParams | None = None,
        scheme: Scheme | None = None,
        learn: Collection[str] = SCALARS,
        constraint: Constraint | None = None,
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        self.mlp = MLPBlock(in_channels, hidden_channels, out_channels, mlp_layers, dropout)
        self.asmp = ASMP(num_layers, params=params, scheme=scheme, learn=learn, constraint=constraint, backend=backend)
        self.repeatable = self.asmp.scheme.support == "edges"  # for a dense support the sign of λ is looked at

    def forward(
        self,
        x: Tensor | Features,
        edge_index: Tensor | Adjacency,
        edge_weight: Tensor | None = None,
        *,
        num_layers: int | None = None,
        rng: Rng = None,
    ) -> Tensor:
        """(N, out_channels); ``num_layers`` runs ASMP deeper, or less deep, than it was trained."""
        features = Features.of(x)
        adj = Adjacency.of(edge_index, features.num_nodes, edge_weight)
        return self.unstacked(self.logits(features, adj, rng, num_layers))

    def logits(self, features: Features, adj: Adjacency, rng: Rng, num_layers: int | None = None) -> Tensor:
        return self.asmp.run(self.mlp(features, rng), adj, num_layers).h

    @torch.no_grad()
    def structure(
        self,
        x: Tensor | Features,
        edge_index: Tensor | Adjacency,
        edge_weight: Tensor | None = None,
        *,
        num_layers: int | None = None,
    ) -> Propagation:
        """The structure as the model sees it: edge weights of every layer and the objective, without dropout."""
        features = Features.of(x)
        adj = Adjacency.of(edge_index, features.num_nodes, edge_weight)
        was_training = self.training
        self.eval()
        try:
            return self.asmp.run(self.unstacked(self.mlp(features)), adj, num_layers, weights=True, trace=True)
        finally:
            self.train(was_training)

    def scalars(self) -> Iterable[Tensor]:
        return self.asmp.parameters()

    def scalar_values(self) -> dict[str, float]:
        return {name: float(value.detach()) for name, value in vars(self.asmp.params()).items()}
