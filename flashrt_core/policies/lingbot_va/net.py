"""Passes of the transformer over ops: a stream's tokens through the blocks, over the history."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ...contract import ShapeKey
from ...gemm import linear
from ...kernels.action_in import action_in
from ...kernels.attention import attention
from ...kernels.copy_rows import copy_rows
from ...kernels.grid_rope import grid_rope
from ...kernels.layer_norm import layer_norm
from ...kernels.layer_norm_attention import layer_norm_attention
from ...kernels.layer_norm_linear import layer_norm_linear
from ...kernels.layer_norm_pool_attention import layer_norm_pool_attention
from ...kernels.linear_gated_residual import linear_gated_residual
from ...kernels.op import Lane
from ...kernels.qkv_rope_kv import qkv_rope_kv
from ...kernels.rms_norm import rms_norm
from ...kernels.take_rows import take_rows
from ..dense import Dense
from .config import LingbotConfig
from .sites import dense

Buffers = Mapping[str, Tensor]
#: Rows of a step table: what a norm adds, multiplies with, and what its branch is multiplied with.
SHIFT, GAIN, GATE = 0, 1, 2


class Net:
    """Issues the passes of one stage.

    Args:
        lane: where ops go.
        buffers: of the contract.
        config: sizes.
        shape: the captured one.
        known: tokens at the start of a chunk that are no sample but known, at time 0.
    """

    def __init__(
        self, lane: Lane, buffers: Buffers, config: LingbotConfig, shape: ShapeKey, known: int = 0
    ) -> None:
        self._lane, self._buffers, self._config = lane, buffers, config
        self._known = known
        self._capacity = config.capacity(shape.views)
        self._keys = shape.prompt_tokens
        self._tokens = {"video": config.video_tokens(shape.views), "action": config.horizon}
        self._prompts = 2

    def take(self, stream: str, *, kind: int, forgotten: int | None = None) -> None:
        """Rows of the pool for all passes of a stream in this stage, and where in time it is."""
        b, count = self._buffers, 2 * self._tokens[stream]
        taken = (b["holders"], b["kinds"], b["net_rows"][:count], b["net_bias"])
        take_rows(self._lane, *taken, kind=kind, forgotten=forgotten)
        place = (b[f"net.{stream}_at"], b["net.rates"], b["net.axes"])
        grid_rope(self._lane, b["frame"], *place, b["net_rope"][:count])

    def enter(self, stream: str, sample: Tensor, *, prompts: int) -> None:
        """Tokens [M, ..] float32 -> the residual stream, once for every prompt of the pass."""
        b, count = self._buffers, self._tokens[stream]
        x = b["net_x"]
        weight, bias = (b[f"net.{stream}_in_{kind}"] for kind in ("weight", "bias"))
        action_in(self._lane, sample, weight, bias, x[:count])
        if prompts == 2:
            copy_rows(self._lane, x[:count], x[count : 2 * count])
        self._prompts = prompts

    def write(self, stream: str) -> None:
        """A pass at time 0 that only leaves keys and values."""
        last = self._config.net.depth - 1
        known, self._known = self._known, 0
        self._run(stream, self._buffers[f"net.{stream}_table"].shape[0] - 1, "net", last)
        self._known = known

    def blocks(self, stream: str, step: int, *, group: str) -> None:
        """All blocks of a step; ``group``: whose weights its products have."""
        self._run(stream, step, group, self._config.net.depth)

    def last(self, stream: str, step: int) -> Tensor:
        """What the last projection takes: normalised rows [prompts M, D]."""
        rows = self._prompts * self._tokens[stream]
        x, normal = self._buffers["net_x"], self._buffers["net_normal"]
        table = self._buffers[f"net.{stream}_last"]
        for part, at in self._parts(stream, step, table.shape[0] - 1):
            norm = (table[at, GAIN], table[at, SHIFT])
            layer_norm(self._lane, x[part], *norm, normal[part], eps=self._config.eps)
        return normal[:rows]

    def _run(self, stream: str, step: int, group: str, whole: int) -> None:
        """``whole`` blocks, and behind them the keys and values of the next one, if there is one.

        Rows of known tokens have other norms and gates: they are issued apart, in an episode's
        first decision only.
        """
        table = self._buffers[f"net.{stream}_table"]
        known = table.shape[0] - 1
        parts = [(part, table[at]) for part, at in self._parts(stream, step, known)]
        for block in range(min(whole + 1, self._config.net.depth)):
            each = [(part, rows[block]) for part, rows in parts]
            if block == whole:
                self._keys_values(stream, block, group, each)
            else:
                self._attend_history(stream, block, group, each)
                self._attend_text(stream, block, group)
                following = [rows[block + 1 : block + 2] for _, rows in parts]
                self._feed_forward(block, group, each, following)

    def _parts(self, stream: str, step: int, known: int) -> list[tuple[slice, int]]:
        """Runs of rows, and the rows of the step table that they take."""
        count = self._tokens[stream]
        if not self._known:
            return [(slice(0, self._prompts * count), step)]
        found = []
        for start in range(0, self._prompts * count, count):
            middle = start + self._known
            found += [(slice(start, middle), known), (slice(middle, start + count), step)]
        return found

    def _keys_values(
        self, stream: str, block: int, group: str, parts: list[tuple[slice, Tensor]]
    ) -> None:
        """q|k|v of all rows; keys and values to their rows of the pool."""
        b, config = self._buffers, self._config
        for part, norm in parts:
            gains = None if block and group != "step" else (norm[GAIN], norm[SHIFT])
            self._product_of("qkv", block, group, part, gains, b["net_qkv"])
        rows = self._prompts * self._tokens[stream]
        keys, values = (b["pool"][block, index].flatten(0, 1) for index in range(2))
        qkv_rope_kv(
            self._lane,
            b["net_qkv"][:rows],
            b["net_rope"][:rows],
            b["net_q"][:rows],
            keys[: self._prompts * self._capacity],
            values[: self._prompts * self._capacity],
            head_dim=config.net.head_dim,
            q_norm=b["net.q_norm"][block],
            k_norm=b["net.k_norm"][block],
            eps=config.eps,
            rows=b["net_rows"][:rows],
            kept=True,
        )

    def _attend_history(
        self, stream: str, block: int, group: str, parts: list[tuple[slice, Tensor]]
    ) -> None:
        keys = self._prompts * self._capacity
        k, v = (self._buffers["pool"][block, index].flatten(0, 1)[:keys] for index in range(2))
        bias, mixed = self._buffers["net_bias"][:keys], dense(self._buffers, group, "out", block)
        if group == "step" and len(parts) == 1:
            self._attend_pool(stream, block, k, v, bias, mixed, parts[0][1])
        else:
            self._keys_values(stream, block, group, parts)
            fresh = self._buffers["net_rows"][: self._prompts * self._tokens[stream]]
            self._attend(stream, k, v, bias, mixed, fresh)
        text = [self._buffers[f"net.text_norm_{kind}"][block] for kind in ("weight", "bias")]
        then = dense(self._buffers, group, "text_q", block)
        for part, norm in parts:
            self._gated("out", block, group, part, norm[GATE], then, (text[0], text[1]))

    def _attend_pool(
        self,
        stream: str,
        block: int,
        k: Tensor,
        v: Tensor,
        key_bias: Tensor,
        into: Dense,
        norm: Tensor,
    ) -> None:
        """q|k|v of all rows, whose norm is one, and their attention over the history as one op."""
        b, config, rows = self._buffers, self._config, self._prompts * self._tokens[stream]
        site, net = dense(b, "step", "qkv", block), config.net
        layer_norm_pool_attention(
            self._lane,
            b["net_x"][:rows],
            norm[GAIN],
            norm[SHIFT],
            site.weight,
            b["net.qkv_bias"][block],
            b["net_rope"][:rows],
            b["net_rows"][:rows],
            b["net.q_norm"][block],
            b["net.k_norm"][block],
            key_bias,
            b["net_qkv"][:rows],
            b["net_q"][:rows],
            k,
            v,
            into.source[:rows],
            head_dim=net.head_dim,
            eps=config.eps,
            scale=net.head_dim**-0.5,
            segments=self._prompts,
            kept=True,
            out_scale=into.x_scale,
            **site.scales,
        )

    def _attend_text(self, stream: str, block: int, group: str) -> None:
        b, rows = self._buffers, self._prompts * self._tokens[stream]
        q, keys = b["net_q"][:rows], self._prompts * self._keys
        found = (b["prompt_k"][block, :keys], b["prompt_v"][block, :keys], b["prompt_bias"][:keys])
        out, x = dense(b, group, "text_out", block), b["net_x"][:rows]
        if group == "step":
            self._attend_text_of(block, q, *found, out)
        else:
            self._product_of("text_q", block, group, slice(0, rows), None, b["net_q"])
            gain = b["net.text_q_norm"][block]
            rms_norm(self._lane, q, gain, q, eps=self._config.eps)
            self._attend(stream, *found, out)
        bias = b["net.text_out_bias"][block]
        linear(self._lane, out.source[:rows], out.weight, bias, x, residual=x, **out.scales)

    def _attend_text_of(
        self,
        block: int,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        key_bias: Tensor,
        into: Dense,
    ) -> None:
        """The same of rows of which no norm lies ready: product and attention as one op."""
        b, net = self._buffers, self._config.net
        site, rows = dense(b, "step", "text_q", block), len(q)
        gain, shift = (b[f"net.text_norm_{kind}"][block] for kind in ("weight", "bias"))
        each = (-1, net.heads, net.head_dim)
        layer_norm_attention(
            self._lane,
            b["net_x"][:rows],
            gain,
            shift,
            site.weight,
            b["net.text_q_bias"][block],
            q,
            keys.view(each),
            values.view(each),
            into.source[:rows],
            head_dim=net.head_dim,
            eps=self._config.eps,
            scale=net.head_dim**-0.5,
            kept=True,
            q_norm=b["net.text_q_norm"][block],
            segments=self._prompts,
            key_bias=key_bias,
            out_scale=into.x_scale,
            **site.scales,
        )

    def _attend(
        self,
        stream: str,
        keys: Tensor,
        values: Tensor,
        bias: Tensor,
        into: Dense,
        fresh: Tensor | None = None,
    ) -> None:
        """Each prompt's rows over its own keys; to the input of a product.

        ``fresh``: the keys that this pass writes.
        """
        net, rows = self._config.net, self._prompts * self._tokens[stream]
        each = (-1, net.heads, net.head_dim)
        attention(
            self._lane,
            self._buffers["net_q"][:rows].view(each),
            keys.view(each),
            values.view(each),
            into.source[:rows],
            scale=net.head_dim**-0.5,
            segments=self._prompts,
            kept=True,
            fresh=fresh,
            key_bias=bias,
            out_scale=into.x_scale,
        )

    def _feed_forward(
        self,
        block: int,
        group: str,
        parts: list[tuple[slice, Tensor]],
        following: list[Tensor],
    ) -> None:
        """``following``: of each part the next block's rows of the step table, if there is one."""
        second = dense(self._buffers, group, "fc2", block)
        for (part, norm), rows in zip(parts, following, strict=True):
            gain, shift = norm[3 + GAIN], norm[3 + SHIFT]
            into = (second.source, second.x_scale)
            self._product_of("fc1", block, group, part, (gain, shift), *into)
            gate = norm[3 + GATE]
            if not len(rows):
                self._gated("fc2", block, group, part, gate)
                continue
            then = dense(self._buffers, group, "qkv", block + 1)
            self._gated("fc2", block, group, part, gate, then, (rows[0, GAIN], rows[0, SHIFT]))

    def _product_of(
        self,
        name: str,
        block: int,
        group: str,
        part: slice,
        norm: tuple[Tensor, Tensor] | None,
        out: Tensor,
        out_scale: Tensor | None = None,
    ) -> None:
        """out = act(norm(x) W^T + b) of some rows; where they are few, as one op. Without ``norm``
        the rows lie normalised where the product reads them.
        """
        b, site = self._buffers, dense(self._buffers, group, name, block)
        x, eps, bias = b["net_x"][part], self._config.eps, b[f"net.{name}_bias"][block]
        if group == "step" and norm is not None:
            layer_norm_linear(
                self._lane,
                x,
                *norm,
                site.weight,
                bias,
                out[part],
                eps=eps,
                activation="gelu_tanh" if name == "fc1" else "none",
                out_scale=out_scale,
                **site.scales,
            )
            return
        normal = site.source[part]
        if norm is not None:
            layer_norm(self._lane, x, *norm, normal, eps=eps, out_scale=site.x_scale)
        linear(
            self._lane,
            normal,
            site.weight,
            bias,
            out[part],
            activation="gelu_tanh" if name == "fc1" else "none",
            out_scale=out_scale,
            **site.scales,
        )

    def _gated(
        self,
        name: str,
        block: int,
        group: str,
        part: slice,
        gate: Tensor,
        then: Dense | None = None,
        norm: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        """x += gate * (what a branch ends in); and its norm, for the product that follows, unless
        that has it in front.
        """
        b, site = self._buffers, dense(self._buffers, group, name, block)
        bias, x = b[f"net.{name}_bias"][block], b["net_x"][part]
        args = (self._lane, site.source[part], site.weight, gate, x)
        if then is None or norm is None or group == "step":
            linear_gated_residual(*args, bias=bias, **site.scales)
            return
        linear_gated_residual(
            *args,
            bias=bias,
            **site.scales,
            normal=then.source[part],
            norm_weight=norm[0],
            norm_bias=norm[1],
            eps=self._config.eps,
            normal_scale=then.x_scale,
        )
