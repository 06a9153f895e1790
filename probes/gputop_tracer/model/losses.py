"""Losses of language models: older versions of transformers, chunks, one fused with the head."""

from __future__ import annotations

from typing import Any, Callable, Optional, Tuple

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

_PADS_LABELS_SINCE = (4, 49)
"""Before pull request 35646 the logits were shifted and copied; since then labels are padded."""
_FLOATS_IN_LOSS_SINCE = (4, 46)
"""Before, the model itself turned its logits to fp32 and returned those."""
_IN_16_BITS = ("bloom", "falcon", "gpt2", "gpt_bigcode", "gpt_neox", "mpt", "opt", "stablelm")
"""Families that left logits as they were in transformers 4.45, 4.48 (``modeling_FAMILY.py``)."""
Entropy = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Of logits (rows, vocabulary) and labels (rows)."""
LITGPT_PIECE = 128
"""Tokens of a row whose logits litgpt makes at a time (``lm_head_chunk_size``)."""
CHUNKS = 8
"""Of a chunked loss, as in torchtune's ``CEWithChunkedOutputLoss``."""


def version(text: str, most: int = 2) -> Tuple[int, ...]:
    """``4.48.1`` as ``most`` numbers; what is no number ends it."""
    numbers = []
    for part in text.split(".")[:most]:
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def behave_like(model: nn.Module, transformers: str) -> bool:
    """Compute the causal loss as that older transformers does; False: nothing to change."""
    release = version(transformers)
    if not release or release >= _PADS_LABELS_SINCE or not hasattr(type(model), "loss_function"):
        return False
    in_16_bits = getattr(model.config, "model_type", "") in _IN_16_BITS
    loss_class = ShiftingAsTheyAre if in_16_bits else Shifting
    model.loss_function = loss_class(nn.functional.cross_entropy)  # type: ignore[assignment]
    head = None if in_16_bits else _head(model)
    if release < _FLOATS_IN_LOSS_SINCE and head is not None:
        head.register_forward_hook(lambda _module, _inputs, output: output.float())
    return True


class Shifting:
    """The causal loss with a shifted copy of the logits."""

    def __init__(self, entropy: Entropy) -> None:
        self.entropy = entropy

    def __call__(
        self, logits: torch.Tensor, labels: torch.Tensor, vocab_size: int, **_options: Any
    ) -> torch.Tensor:
        logits = self.raised(logits)  # this one stays until the loss is there
        shifted = logits[..., :-1, :].contiguous().view(-1, vocab_size)
        return self.entropy(shifted, labels[..., 1:].contiguous().view(-1))

    def raised(self, logits: torch.Tensor) -> torch.Tensor:
        """In the type that the loss is computed in."""
        return logits.float()


class ShiftingAsTheyAre(Shifting):
    """The same without a turn to fp32."""

    def raised(self, logits: torch.Tensor) -> torch.Tensor:
        return logits


class Padding(Shifting):
    """The causal loss with padded labels instead."""

    def __call__(
        self, logits: torch.Tensor, labels: torch.Tensor, vocab_size: int, **_options: Any
    ) -> torch.Tensor:
        labels = nn.functional.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()
        return self.entropy(logits.float().view(-1, vocab_size), labels.view(-1))


def of_kernel(model: Any, entropy: Entropy) -> None:
    """Let a causal model compute its loss by another cross-entropy over the whole logits."""
    if hasattr(type(model), "loss_function"):
        if isinstance(model.loss_function, Shifting):
            loss_class = type(model.loss_function)
        else:
            loss_class = Padding
        model.loss_function = loss_class(entropy)


def fuse(model: nn.Module, kind: str, named: Callable[[str], Any], compiled: bool = False) -> bool:
    """Replace head and loss of a causal model by a ``fused`` or ``chunked`` loss; False where there
    is no such head.

    ``named`` is ``Tracker.operator``; ``compiled`` is of a chunked loss.
    """
    head = _head(model)
    if head is None:
        return False
    if kind == "chunked":
        loss = _Chunked(head, compiled)
    else:
        loss = _Fused(head, named)
    _Bypass(head, loss).into(model)
    return True


def _head(model: nn.Module) -> Optional[nn.Linear]:
    get = getattr(model, "get_output_embeddings", None)
    head = get() if get is not None else None
    return head if isinstance(head, nn.Linear) else None


class _Bypass:
    """The head passes the hidden states on, and the loss function gets them instead of logits."""

    def __init__(
        self, head: nn.Linear, loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    ) -> None:
        self.head = head
        self.loss = loss

    def into(self, model: Any) -> None:
        self.head.forward = lambda hidden: hidden  # type: ignore[method-assign]
        model.loss_function = self.from_hidden
        if hasattr(model, "config"):
            config = model.config.get_text_config()
        else:
            config = None
        if config is not None and getattr(config, "final_logit_softcapping", None):
            config.final_logit_softcapping = None  # inside the loss, not on hidden states

    def from_hidden(
        self, logits: torch.Tensor, labels: torch.Tensor, *_size: int, **_options: Any
    ) -> torch.Tensor:
        labels = nn.functional.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()
        return self.loss(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


class _Chunked:
    """Logits and fp32 softmax piece by piece; all pieces are kept for the backward. Where it is
    compiled, the softmax is not: the backward makes it again, as torch.compile's partitioner cuts
    what is elementwise.
    """

    def __init__(self, head: nn.Linear, compiled: bool) -> None:
        self.head = head
        self.compiled = compiled

    def __call__(self, hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = [
            nn.functional.linear(piece, self.head.weight, self.head.bias)
            for piece in hidden.chunk(CHUNKS)
        ]
        total = hidden.new_zeros((), dtype=torch.float32)
        for piece, target in zip(logits, labels.chunk(CHUNKS)):
            if self.compiled:
                total = total + checkpoint(_summed, piece, target, use_reentrant=False)
            else:
                total = total + _summed(piece, target)
        return total / labels.numel()


class Litgpt:
    """litgpt's: Fabric turns what its model gives back to fp32, and the loop holds that until the
    next step's is there. Logits and their log softmax piece by piece.
    """

    def __init__(self, model: Any, tokens_at_a_time: int) -> None:
        self.tokens_at_a_time = tokens_at_a_time
        self.held: Any = None
        self.take(model.get_output_embeddings())

    def take(self, head: nn.Module) -> None:
        """Let the head pass hidden states on, and make logits of them here."""
        self.head = head
        head.forward = lambda hidden: hidden  # type: ignore[method-assign]

    def __call__(
        self, logits: torch.Tensor, labels: torch.Tensor, *_size: int, **_options: Any
    ) -> torch.Tensor:
        hidden = logits  # which the head passed on
        rows = min(self.tokens_at_a_time, hidden.shape[1])
        pieces = [type(self.head).forward(self.head, piece) for piece in hidden.split(rows, dim=1)]
        raised = self.held = [piece.float() for piece in pieces]
        del pieces
        targets = nn.functional.pad(labels, (0, 1), value=-100)[..., 1:].split(rows, dim=1)
        total = hidden.new_zeros((), dtype=torch.float32)
        for piece, target in zip(raised, targets):
            total = total + _summed(piece.flatten(0, 1), target.flatten())
        return total / labels.numel()


def _summed(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.float(), labels, reduction="sum")


class _Fused:
    """Liger's fused linear cross-entropy: gradients in the forward, logits a chunk at a time."""

    def __init__(self, head: nn.Linear, named: Callable[[str], Any]) -> None:
        self.head = head
        self.named = named

    def __call__(self, hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with self.named("fused_linear_cross_entropy"):
            return _FusedFunction.apply(hidden, self.head.weight, labels)


class _FusedFunction(torch.autograd.Function):
    """Allocations of ``fused_linear_cross_entropy_forward`` in ``liger_kernel/ops``."""

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        rows, width = hidden.shape
        vocab = weight.shape[0]
        pieces = -(-vocab // width)
        chunk = 1 << (-(-rows // pieces) - 1).bit_length()
        grad_hidden = torch.zeros_like(hidden)
        if weight.requires_grad:
            grad_weight = torch.zeros_like(weight)
        else:
            grad_weight = None
        losses = hidden.new_empty(rows, dtype=torch.float32)
        for start in range(0, rows, chunk):
            piece = hidden[start : start + chunk]
            logits = piece @ weight.t()
            grad_hidden[start : start + chunk] = logits @ weight
            if grad_weight is not None:
                grad_weight += logits.t() @ piece
            del logits
        ctx.save_for_backward(grad_hidden, grad_weight)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *_grads: torch.Tensor) -> Any:
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden, grad_weight, None
