"""Ways to train after pre-training, by the names of the trainers of TRL and Sentence Transformers,
in an estimate's options.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

SERVER_SHARE = 0.3
"""What a vLLM server beside GRPO holds by default (``vllm_gpu_memory_utilization`` of TRL)."""


class Method(NamedTuple):
    """What a way to train adds to training on one text after the other."""

    sequences: int = 1
    """Of a sample: a chosen and a rejected answer are two."""
    roles: tuple[str, ...] = ()
    """Models beside the trained one."""
    reference: bool = False
    """A frozen copy of the model; with adapters it is the model without them."""
    server_share: float = 0.0
    has_logits: bool = True
    """Whether the loss is over a vocabulary."""


METHODS: Mapping[str, Method] = {
    "sft": Method(),
    "dpo": Method(sequences=2, reference=True),
    "orpo": Method(sequences=2),
    "simpo": Method(sequences=2),
    "cpo": Method(sequences=2),
    "kto": Method(reference=True),
    "classification": Method(has_logits=False),
    "reward": Method(sequences=2, has_logits=False),
    "contrastive": Method(sequences=2, has_logits=False),
    "grpo": Method(server_share=SERVER_SHARE),
    "ppo": Method(roles=("critic", "reference", "reward")),
}
"""DPO (Rafailov et al. 2023), ORPO (Hong et al. 2024), SimPO (Meng et al. 2024), CPO (Xu et al.
2024), KTO (Ethayarajh et al. 2024), a reward model on pairs (Ouyang et al. 2022), embeddings of a
question and a passage with the others of the batch as negatives (Karpukhin et al. 2020), GRPO
(Shao et al. 2024; TRL's has no reference by default), PPO (Ouyang et al. 2022).
"""


def spelled_out(name: str, micro_batch: int, adapters: bool) -> dict[str, Any]:
    """What a method is in options of an estimate. Where no loss is over a vocabulary, logits are
    never whole; a head that the model has is counted all the same.

    Args:
        name: of ``METHODS``.
        micro_batch: samples of one forward pass on one GPU, as its trainer counts them.
        adapters: whether LoRA trains it.
    """
    method = METHODS[name]
    values: dict[str, Any] = {}
    if method.sequences > 1:
        values["micro_batch"] = method.sequences * micro_batch
    roles = method.roles
    if method.reference and not adapters:
        roles += ("reference",)
    if roles:
        values["roles"] = roles
    if method.server_share:
        values["server_share"] = method.server_share
    if not method.has_logits:
        values["loss"] = "fused"
    return values
