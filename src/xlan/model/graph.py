"""GCN-LSTM's encoder with the spatial graph: regions learn who stands where beside them.

Every ordered pair of boxes gets a label (0: no edge), and one graph convolution with gates mixes neighbours:

    R_i = ReLU( v_i + σ(ω·v_i + β)(W v_i + b)
                + Σ_{j: l_ij > 0} σ(ω_s·v_j + β_{l_ij}) (W_s v_j + b_{l_ij})
                + Σ_{j: l_ji > 0} σ(ω_o·v_j + β_{l_ji}) (W_o v_j + b_{l_ji}) )

The gate of an edge is one number, so with G the gates `[N, N]` and S_il the sum of row i's gates with label l, one side
is `G (V Wᵀ) + S b`: nothing of size `[N, N, D]` is ever formed.

The published system has a semantic graph too, from a classifier of relations. It is not here.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from xlan.model.attention import masked_mean
from xlan.model.dropout import Dropout
from xlan.model.interface import Encoded

LABELS = 12  # no edge, the three below, and eight directions
INCLUDES, INCLUDED, OVERLAPS = 1, 2, 3
OVERLAP_AT = 0.5
FAR_AT = 0.5  # centres at least this share of the picture's diagonal apart have no edge


def spatial_labels(boxes: Tensor) -> Tensor:
    """Labels of all ordered pairs of boxes.

    Args:
        boxes: `[B, N, 4]` x0 y0 x1 y1, y downwards, in units of the picture's diagonal.

    Returns:
        `[B, N, N]` int64 for i and j: 1 where box i includes box j, 2 where j includes i, 3 where they overlap by half
        or more (intersection over union), else 4 to 11 for the direction from the centre of i to that of j in steps of
        45° (clockwise from the right), and 0 where the centres are half a diagonal or more apart, and for i = j.
    """
    x0, y0, x1, y1 = (side.unsqueeze(2) for side in boxes.unbind(-1))  # of i: [B, N, 1]
    u0, v0, u1, v1 = (side.transpose(1, 2) for side in (x0, y0, x1, y1))  # of j: [B, 1, N]
    area, other = (x1 - x0) * (y1 - y0), (u1 - u0) * (v1 - v0)
    includes = (x0 <= u0) & (y0 <= v0) & (x1 >= u1) & (y1 >= v1) & (area != other)
    width = (torch.minimum(x1, u1) - torch.maximum(x0, u0)).clamp_min(0)
    height = (torch.minimum(y1, v1) - torch.maximum(y0, v0)).clamp_min(0)
    shared = width * height
    overlaps = shared >= OVERLAP_AT * (area + other - shared)

    right = ((u0 + u1) - (x0 + x1)) / 2
    down = ((v0 + v1) - (y0 + y1)) / 2
    turn = torch.atan2(down, right) / (2 * math.pi)  # -1/2 to 1/2 of a full turn
    turn = torch.where(turn <= 0, turn + 1, turn)  # exactly to the right is a full turn, not none
    labels = (turn * 8).ceil().clamp(1, 8).to(torch.int64) + OVERLAPS
    labels = labels.masked_fill(torch.hypot(right, down) >= FAR_AT, 0)
    labels = labels.masked_fill(overlaps, OVERLAPS)
    labels = labels.masked_fill(includes.transpose(1, 2), INCLUDED).masked_fill(includes, INCLUDES)
    return labels.masked_fill(torch.eye(boxes.shape[1], dtype=torch.bool, device=boxes.device), 0)


class GraphEncoder(nn.Module):
    """One graph convolution over the regions; the image is their mean.

    Args:
        feature_dim: width of the region features, kept.
        dropout: dropout on the regions that go out.
    """

    wants_boxes = True

    def __init__(self, feature_dim: int, *, dropout: float) -> None:
        super().__init__()
        self.own = nn.Linear(feature_dim, feature_dim)
        self.own_gate = nn.Linear(feature_dim, 1)
        self.outgoing = nn.Linear(feature_dim, feature_dim, bias=False)
        self.outgoing_gate = nn.Linear(feature_dim, 1, bias=False)
        self.incoming = nn.Linear(feature_dim, feature_dim, bias=False)
        self.incoming_gate = nn.Linear(feature_dim, 1, bias=False)
        self.label_bias = nn.Parameter(torch.zeros(LABELS, feature_dim))
        self.label_gate = nn.Parameter(torch.zeros(LABELS, 1))
        self.dropout = Dropout(dropout)

    def _side(self, features: Tensor, labels: Tensor, linear: nn.Linear, gate: nn.Linear) -> Tensor:
        """Sum over the regions j with which region i has an edge `labels[i, j]`: `[B, N, D]`."""
        gates = gate(features).transpose(1, 2) + F.embedding(labels, self.label_gate).squeeze(-1)
        gates = torch.sigmoid(gates).masked_fill(labels == 0, 0.0)  # [B, N, N]
        by_label = gates.new_zeros(*labels.shape[:2], len(self.label_bias)).scatter_add(2, labels, gates)
        return torch.matmul(gates, linear(features)) + torch.matmul(by_label, self.label_bias)

    def convolve(self, features: Tensor, labels: Tensor) -> Tensor:
        """Mix regions `[B, N, D]` along the edges `[B, N, N]`."""
        own = torch.sigmoid(self.own_gate(features)) * self.own(features)
        outgoing = self._side(features, labels, self.outgoing, self.outgoing_gate)
        incoming = self._side(features, labels.transpose(1, 2), self.incoming, self.incoming_gate)
        return torch.relu(own + outgoing + incoming + features)

    def forward(self, features: Tensor, mask: Tensor | None, boxes: Tensor) -> Encoded:
        """Encode `[B, N, feature_dim]` with region mask `[B, N]` and boxes `[B, N, 4]` in units of the diagonal."""
        return self.with_labels(features, mask, spatial_labels(boxes))

    def with_labels(self, features: Tensor, mask: Tensor | None, labels: Tensor) -> Encoded:
        """Encode with a graph `[B, N, N]` from elsewhere."""
        if mask is not None:
            labels = labels.masked_fill(~(mask.unsqueeze(1) & mask.unsqueeze(2)), 0)
        regions = self.dropout(self.convolve(features, labels))
        return Encoded(masked_mean(regions, mask), regions, mask)
