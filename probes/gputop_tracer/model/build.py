"""A setup's model: built on the meta device, then given fake storages on the trace's."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional

import torch
from torch import nn

from .configs import config_from_dict, config_from_shape, load_config
from .hf import FLASH

Setup = Dict[str, Any]
"""A ``gputop_analysis.vram.setup.Setup`` as JSON."""
DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.bfloat16,
}
"""Of the weights; fp8 keeps them in bf16 (Transformer Engine, torchao), casts for matmuls."""


def compute_dtype(setup: Setup) -> torch.dtype:
    return DTYPES.get(setup.get("dtype") or "bf16", torch.bfloat16)


def weights_dtype(setup: Setup) -> torch.dtype:
    return DTYPES.get(setup.get("weights") or setup.get("dtype") or "bf16", torch.bfloat16)


_DROPOUTS = (
    *("dropout", "dropout_rate", "attention_dropout", "hidden_dropout", "embedding_dropout"),
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "resid_pdrop", "embd_pdrop"),
    *("attn_pdrop", "emb_pdrop", "resid_dropout", "embed_dropout", "residual_dropout"),
)
"""What configurations call the share that a model's own dropout drops."""


def config_of(setup: Setup, source: Optional[str]) -> Any:
    """The configuration: of ``source`` where one is given, else of the setup's own shape; with the
    setup's dropout where it has one.

    Raises:
        ValueError: the setup has a dropout, and the model none.
    """
    config = _plain_config(setup, source)
    if setup.get("dropout"):
        _set_dropout(text_config(config), setup["dropout"])
    return config


def _set_dropout(part: Any, share: float) -> None:
    rates = [name for name in _DROPOUTS if isinstance(getattr(part, name, None), (int, float))]
    if not rates:
        raise ValueError("%s has no dropout of its own: leave --dropout out" % part.model_type)
    for name in rates:
        setattr(part, name, share)


def _plain_config(setup: Setup, source: Optional[str]) -> Any:
    if source:
        return load_config(source)
    shape = setup["model"]
    if shape.get("config"):
        return config_from_dict(shape["config"])
    config = config_from_shape(shape)
    if shape.get("dropout") is False:
        _set_dropout(text_config(config), 0.0)
    return config


def text_config(config: Any) -> Any:
    """The part of a configuration that describes the language model."""
    nested = getattr(config, "text_config", None)
    return nested if nested is not None else config


def set_depth(config: Any, layers: int) -> None:
    """Cut a configuration to its first ``layers`` repeated layers."""
    part = text_config(config)
    names = getattr(part, "attribute_map", {})
    setattr(part, names.get("num_hidden_layers", "num_hidden_layers"), layers)
    for name in ("layer_types", "mlp_layer_types", "attention_window"):
        computed = isinstance(getattr(type(part), name, None), property)
        if isinstance(getattr(part, name, None), list) and not computed:
            setattr(part, name, getattr(part, name)[:layers])


def depth_of(config: Any) -> int:
    return int(getattr(text_config(config), "num_hidden_layers", 0))


def uniform(config: Any) -> bool:
    """Whether all repeated layers are alike, so that a few stand for all."""
    part = text_config(config)
    kinds = getattr(part, "layer_types", None) or []
    dense = getattr(part, "first_k_dense_replace", 0) or 0
    sparse = [
        getattr(part, name, 1) or 1 for name in ("decoder_sparse_step", "interleave_moe_layer_step")
    ]
    if getattr(part, "use_sliding_window", False):
        windows = getattr(part, "max_window_layers", None)
    else:
        windows = None
    two_stacks = bool(getattr(config, "is_encoder_decoder", False)) or config.model_type == "clip"
    return (
        len(set(kinds)) <= 1
        and not dense
        and max(sparse) == 1
        and windows is None
        and not two_stacks
    )


def build(config: Any, dtype: torch.dtype, attention: str) -> Any:
    """The model for training of a configuration, on the meta device."""
    from .heads import auto_class

    make = auto_class(config).from_config
    with quiet(), torch.device("meta"):
        model = _first_that_works(make, config, attention, dtype)
    if hasattr(model.config, "use_cache"):
        model.config.use_cache = False
    model.train()
    return model


def _first_that_works(make: Any, config: Any, attention: str, dtype: torch.dtype) -> Any:
    """Some families have no FlashAttention, some no SDPA, some experts of their own kind."""
    kinds = [attention, *(other for other in ("sdpa", "eager") if other != attention)]
    if attention == "eager":
        kinds = [attention]
    elif attention == FLASH and not _takes_any_attention(make, config):
        kinds.remove(FLASH)
    experts = getattr(config, "_experts_implementation", None)
    kinds_of_experts = [experts, None] if experts else [None]
    tries = [(kind, chosen) for kind in kinds for chosen in kinds_of_experts]
    for kind, chosen in tries:
        if experts:
            config._experts_implementation = chosen
        try:
            return make(config, attn_implementation=kind, torch_dtype=dtype)
        except (ValueError, ImportError):
            if (kind, chosen) == tries[-1]:
                raise
    raise AssertionError


def _takes_any_attention(make: Any, config: Any) -> bool:
    """Whether a family's layers look their attention up by name: Falcon and GPT-Neo have classes of
    their own for each kind, MPT and BLOOM a single one.
    """
    model_class = make.__self__._model_mapping[type(config)]
    return getattr(model_class, "_supports_attention_backend", None) is not False


def materialize(model: nn.Module) -> nn.Module:
    """Replace meta parameters and buffers by fake ones of the present mode; ties stay."""
    by_id: Dict[int, torch.Tensor] = {}
    keep_alive: List[torch.Tensor] = []
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.device.type == "meta":
                if id(parameter) not in by_id:
                    empty = torch.empty(parameter.shape, dtype=parameter.dtype, device="cpu")
                    by_id[id(parameter)] = nn.Parameter(
                        empty, requires_grad=parameter.requires_grad
                    )
                    keep_alive.append(parameter)
                module._parameters[name] = by_id[id(parameter)]  # type: ignore[assignment]
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.device.type == "meta":
                if id(buffer) not in by_id:
                    by_id[id(buffer)] = torch.empty(buffer.shape, dtype=buffer.dtype, device="cpu")
                    keep_alive.append(buffer)
                module._buffers[name] = by_id[id(buffer)]
    return model


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings and progress of the libraries: the trace's own output is data."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
