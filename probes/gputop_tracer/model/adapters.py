"""LoRA adapters (Hu et al. 2021), and peft's other ones, by peft, where it is found."""

from __future__ import annotations

import copy
import json
from typing import Any, Dict, List

import torch
from torch import nn

from . import losses, quantized
from .build import DTYPES, compute_dtype, quiet

_QKV = ["c_attn", "query_key_value", "qkv_proj", "Wqkv", "qkv"]
_PEERS = {
    "q_proj": [*_QKV, "query", "q", "q_b_proj"],
    "k_proj": [*_QKV, "key", "k", "kv_b_proj"],
    "v_proj": [*_QKV, "value", "v", "kv_b_proj"],
    "o_proj": ["dense", "out_proj"],
    "gate_proj": ["gate_up_proj"],
    "up_proj": ["gate_up_proj", "fc1", "c_fc", "dense_h_to_4h"],
    "down_proj": ["fc2", "dense_4h_to_h"],
}
"""What other families call the layers that LoRA's usual targets name: as ``FUSED`` of
``gputop_analysis/vram/adapters.py``, which a guest in the user's interpreter cannot import."""


def adapt(model: Any, setup: Dict[str, Any], tracker: Any, notes: List[str]) -> Any:
    """Quantise and add adapters as the setup says; on the meta device.

    Raises:
        ValueError: no layer has a name that the adapters are for.
    """
    lora, quantization = setup.get("lora"), setup.get("quantized") or ""
    if lora and lora.get("peft"):  # over weights that are not quantised
        model = add_adapter(model, lora)
        train_whole(model, list(setup.get("modules_to_save") or ()))
        return model
    if lora:
        lora = dict(
            lora, targets=targets_in(model, list(lora.get("targets") or ["q_proj", "v_proj"]))
        )
    if quantization:
        with torch.device("meta"):
            _quantize(model, quantization, setup, tracker)
            if lora:
                quantized.adapt(model, lora, DTYPES[lora.get("dtype") or "fp32"])
                if setup["model"].get("experts") and lora["targets"] == ["all-linear"]:
                    notes.append(
                        "adapters that peft puts on the tensor of a layer's experts are left out"
                    )
        notes.append(
            "%s weights and their matrix products as in bitsandbytes, by hand" % quantization
        )
    elif lora:
        model = add_lora(model, lora)
    if lora:
        train_whole(model, list(setup.get("modules_to_save") or ()))
    return model


class TrainedWhole(nn.Module):
    """A frozen module beside the copy of it that is trained instead, as peft's
    ``ModulesToSaveWrapper`` has it (``peft/utils/other.py``).
    """

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        self.original, self.trained = original, copy.deepcopy(original)
        for parameter in self.trained.parameters():
            parameter.requires_grad_(True)

    @property
    def weight(self) -> Any:
        return self.trained.weight

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.trained(*args, **kwargs)


def train_whole(model: Any, names: List[str]) -> None:
    """Train the embedding or the head in full beside the adapters."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    if "embeddings" in names:
        base.set_input_embeddings(TrainedWhole(base.get_input_embeddings()))
    if "head" in names and not getattr(base.config, "tie_word_embeddings", False):
        base.set_output_embeddings(TrainedWhole(base.get_output_embeddings()))


KEEPS_NO_INPUTS = (0, 43, 2)
"""The bitsandbytes from which on 4-bit layers keep nothing of their input."""


def _quantize(model: Any, kind: str, setup: Dict[str, Any], tracker: Any) -> None:
    """As bitsandbytes of the setup's release does; Fabric leaves the head no exception."""
    litgpt = setup.get("recipe") == "litgpt"
    habits = quantized.QuantizerHabits(
        keeps_inputs=_keeps_inputs(setup.get("bitsandbytes") or ""),
        double=setup.get("double_quant", True),
        casts=litgpt,
    )
    compute = compute_dtype(setup)
    quantized.quantize(model, kind, compute, tracker.operator, habits)
    if litgpt and kind == "nf4" and isinstance(model.loss_function, losses.Litgpt):
        head = quantized.Linear4bit(
            model.get_output_embeddings(), compute, tracker.operator, habits
        )
        model.set_output_embeddings(head)
        model.loss_function.take(head)


def _keeps_inputs(release: str) -> bool:
    """Whether that bitsandbytes does; 0.43 alone is the last of its kind."""
    numbers = losses.version(release, 3)
    return bool(numbers) and (*numbers, *(99,) * (3 - len(numbers))) < KEEPS_NO_INPUTS


def targets_in(model: nn.Module, asked: List[str]) -> List[str]:
    """The targets that ``model`` has layers for; where it has none of these, what its family calls
    them.

    Raises:
        ValueError: it has neither.
    """
    paths = [path for path, module in model.named_modules() if not list(module.children())]

    def there(name: str) -> bool:
        return any(path == name or path.endswith("." + name) for path in paths)

    if asked == ["all-linear"] or any(there(name) for name in asked):
        return asked
    peers = list(
        dict.fromkeys(peer for name in asked for peer in _PEERS.get(name, []) if there(peer))
    )
    if not peers:
        raise ValueError(
            "no layer of %s is called %s: LoRA needs other targets"
            % (type(model).__name__, ", ".join(asked))
        )
    return peers


def add_lora(model: nn.Module, lora: Dict[str, Any]) -> nn.Module:
    """The model with adapters on the layers of ``lora``, the rest frozen; on the meta device."""
    from peft import LoraConfig, get_peft_model

    targets = list(lora["targets"])
    config = LoraConfig(
        r=int(lora.get("rank") or 16),
        lora_alpha=16,
        lora_dropout=float(lora.get("dropout") or 0.0),
        target_modules="all-linear" if targets == ["all-linear"] else targets,
        use_dora=bool(lora.get("dora")),
    )
    with quiet(), torch.device("meta"):
        adapted = get_peft_model(model, config)
    _cast_trained(adapted, DTYPES[lora.get("dtype") or "fp32"])
    return adapted


def _cast_trained(adapted: Any, dtype: Any) -> None:
    """Peft leaves adapters in fp32 on the meta device."""
    for weight in adapted.parameters():
        if weight.requires_grad:
            weight.data = weight.data.to(dtype)


_OF_PROMPTS = ("PROMPT_TUNING", "PREFIX_TUNING", "P_TUNING")
"""Kinds whose modules peft makes for a task only."""
_OF_SOME_LAYERS = ("adapter_layers", "layers_to_transform", "layer_replication", "rank_pattern")


def tells_layers_apart(setup: Dict[str, Any]) -> bool:
    """Whether the adapter sits on some layers, or is one tensor for all: four do not stand for all
    then.
    """
    config = _config_of(setup.get("lora") or {})
    pattern = config.get("target_modules")
    return (
        config.get("peft_type") == "PREFIX_TUNING"
        or any(config.get(name) for name in _OF_SOME_LAYERS)
        or (isinstance(pattern, str) and any(letter.isdigit() for letter in pattern))
    )


def _config_of(lora: Dict[str, Any]) -> Dict[str, Any]:
    return dict(json.loads(lora["peft"])) if lora.get("peft") else {}


def add_adapter(model: Any, lora: Dict[str, Any]) -> nn.Module:
    """The model with an adapter of any kind by its configuration, the rest frozen; on the meta
    device.

    Raises:
        ValueError: peft does not know the kind, or cannot make it of this model.
    """
    import peft

    fields = _config_of(lora)
    if fields["peft_type"] in _OF_PROMPTS:
        fields = dict({"task_type": "CAUSAL_LM", "num_virtual_tokens": 20}, **fields)
    elif fields["peft_type"] == "ADAPTION_PROMPT":
        layers = model.config.get_text_config().num_hidden_layers
        fields = dict({"adapter_len": 10, "adapter_layers": layers}, **fields)
    try:
        config = peft.PeftConfig.from_peft_type(**fields)
        with quiet(), torch.device("meta"):
            adapted = peft.get_peft_model(model, config)
    except KeyError as error:
        raise ValueError(
            "peft %s knows no adapter %s" % (peft.__version__, fields["peft_type"])
        ) from error
    except (ImportError, NotImplementedError, TypeError, ValueError) as error:
        raise ValueError(
            "peft %s makes no %s of this: %s" % (peft.__version__, fields["peft_type"], error)
        ) from error
    dtype = DTYPES[lora.get("dtype") or "fp32"]
    if dtype != torch.float32:  # a copy of a norm stays in the type of the model
        _cast_trained(adapted, dtype)
    return adapted
