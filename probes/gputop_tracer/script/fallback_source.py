"""What a training script's source says unrun: the models it names, how it trains them."""

from __future__ import annotations

import ast
from typing import Any, Dict, List, Optional

_NUMBERS = {
    "per_device_train_batch_size": "micro_batch",
    "train_batch_size": "micro_batch",
    "micro_batch_size": "micro_batch",
    "batch_size": "micro_batch",
    "gradient_accumulation_steps": "accumulation",
    "max_length": "seq",
    "max_seq_length": "seq",
    "max_seq_len": "seq",
    "seq_len": "seq",
    "block_size": "seq",
    "r": "lora_rank",
    "lora_r": "lora_rank",
}
_FLAGS = {
    "bf16": ("dtype", "bf16"),
    "fp16": ("dtype", "fp16"),
    "gradient_checkpointing": ("checkpointing", "full"),
}
_PEFT_RANK = 8
"""Of ``peft.LoraConfig`` where none is given."""
_FLAGS["load_in_4bit"] = ("quantized", "nf4")
_FLAGS["load_in_8bit"] = ("quantized", "int8")
_MODEL_NAMES = ("pretrained_model_name_or_path", "model_name", "model")
_DTYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
}
_OPTIMIZERS = {
    "AdamW": "adamw",
    "Adam": "adamw",
    "SGD": "sgd",
    "Adafactor": "adafactor",
    "Lion": "lion",
    "AdamW8bit": "adamw-8bit",
    "PagedAdamW8bit": "adamw-paged-8bit",
}


_NAMED_OPTIMIZERS = {
    "adamw_torch": "adamw",
    "adamw_torch_fused": "adamw-fused",
    "adamw_8bit": "adamw-8bit",
    "adamw_bnb_8bit": "adamw-8bit",
    "paged_adamw_8bit": "adamw-paged-8bit",
    "paged_adamw_32bit": "adamw-paged",
    "adafactor": "adafactor",
    "sgd": "sgd",
    "lion_8bit": "lion-8bit",
}
"""Values of ``optim`` of ``transformers.TrainingArguments``."""


class NothingToBuildError(ValueError):
    """A source has no module class that can be trained by itself; the message says why not."""


def read(path: str) -> Dict[str, Any]:
    """What a script's source says.

    ``pretrained``: names given to ``from_pretrained`` or to a trainer of TRL, models before others;
    ``options`` of a setup; ``classes`` of modules; ``syntax_error`` where it cannot be parsed.

    Raises:
        OSError: the file cannot be read.
    """
    with open(path, "rb") as source:
        try:
            tree = ast.parse(source.read(), path)
        except SyntaxError as error:
            return {
                "pretrained": [],
                "options": {},
                "classes": [],
                "syntax_error": "line %s: %s" % (error.lineno, error.msg),
            }
    constants = _constants(tree)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {
        "pretrained": _pretrained(calls, constants),
        "options": _options(calls, constants),
        "classes": module_classes(tree),
    }


def module_classes(tree: ast.AST) -> List[str]:
    """Classes of the source derived from a module of torch or Lightning, directly or not."""
    classes: List[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            bases = {_last_name(base) for base in node.bases}
            if bases & {"Module", "LightningModule", "PreTrainedModel", *classes}:
                classes.append(node.name)
    return classes


def _constants(tree: ast.AST) -> Dict[str, Any]:
    """Names given a constant once, and defaults of ``add_argument("--name", default=...)``."""
    values: Dict[str, Any] = {}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Assign)
            and len(node.targets) == 1
            and isinstance(node.value, ast.Constant)
        ):
            values[_last_name(node.targets[0])] = node.value.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Constant):
            values[_last_name(node.target)] = node.value.value
        elif isinstance(node, ast.Call) and _last_name(node.func) == "add_argument" and node.args:
            flag, default = (
                node.args[-1],
                [word.value for word in node.keywords if word.arg == "default"],
            )
            if isinstance(flag, ast.Constant) and default and isinstance(default[0], ast.Constant):
                values[str(flag.value).lstrip("-").replace("-", "_")] = default[0].value
    values.pop("", None)
    return values


def _pretrained(calls: List[ast.Call], constants: Dict[str, Any]) -> List[str]:
    """Names of models first, then of tokenizers and configurations, each once."""
    ranked: List[Any] = []
    for call in calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "from_pretrained":
            owner = _last_name(call.func.value)
        elif _last_name(call.func).endswith("Trainer"):  # those of TRL take a model's name
            owner = ""
        else:
            continue
        arguments = call.args[:1] + [
            word.value for word in call.keywords if word.arg in _MODEL_NAMES
        ]
        name = _value(arguments[0], constants) if arguments else None
        if isinstance(name, str) and name.strip():
            ranked.append(
                (any(word in owner for word in ("Tokenizer", "Config", "Processor")), name)
            )
    return list(dict.fromkeys(name for _, name in sorted(ranked, key=lambda pair: pair[0])))


def _options(calls: List[ast.Call], constants: Dict[str, Any]) -> Dict[str, Any]:
    options: Dict[str, Any] = {}
    stored = ""
    for call in calls:
        name = _last_name(call.func)
        if name in _OPTIMIZERS:
            options["optimizer"] = _OPTIMIZERS[name]
        for word in call.keywords:
            if word.arg != "r" or _adapts(name):
                options.update(_of_keyword(word.arg, _value(word.value, constants)))
        if name == "gradient_checkpointing_enable":
            options["checkpointing"] = "full"
        if name == "from_pretrained":
            stored = stored or _stored(call, constants)
        if name == "LoraConfig":
            options.setdefault("lora_rank", _PEFT_RANK)
        if _adapts(name):
            options.update(_targets(call, constants))
    return _with_stored(options, stored)


def _of_keyword(name: Optional[str], value: Any) -> Dict[str, Any]:
    """Options that an argument of any call says."""
    if name in _NUMBERS and isinstance(value, int) and not isinstance(value, bool):
        return {_NUMBERS[name]: value}
    if name in _FLAGS and value is True:
        option, setting = _FLAGS[name]
        if setting == "fp16":  # a gradient scaler refuses fp16 weights
            return {option: setting, "weights": "fp32"}
        return {option: setting}
    if name == "optim" and value in _NAMED_OPTIMIZERS:
        return {"optimizer": _NAMED_OPTIMIZERS[value]}
    return {}


def _adapts(name: str) -> bool:
    """Whether a call's argument ``r`` is the rank of adapters; ``get_peft_model``: Unsloth's."""
    return "Lora" in name or "LoRA" in name or name == "get_peft_model"


def _targets(call: ast.Call, constants: Dict[str, Any]) -> Dict[str, List[str]]:
    """The modules that adapters are put beside, where the call lists them."""
    for word in call.keywords:
        if word.arg == "target_modules":
            if isinstance(word.value, (ast.List, ast.Tuple, ast.Set)):
                parts = word.value.elts
            else:
                parts = [word.value]
            named = [_value(part, constants) for part in parts]
            if named and all(isinstance(target, str) for target in named):
                return {"lora_targets": named}
    return {}


def _stored(call: ast.Call, constants: Dict[str, Any]) -> str:
    """The type in which ``from_pretrained`` is told to keep the weights; empty where it is not."""
    for word in call.keywords:
        if word.arg in ("dtype", "torch_dtype"):
            named = _value(word.value, constants) or _last_name(word.value)
            return _DTYPES.get(str(named).rpartition(".")[2], "")
    return ""


def _with_stored(found: Dict[str, Any], stored: str) -> Dict[str, Any]:
    """With the type of the weights, where it is not that of the computation."""
    if stored and found.setdefault("dtype", stored) == stored:
        found.pop("weights", None)
    elif stored:
        found["weights"] = stored
    return found


def _value(node: ast.AST, constants: Dict[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    return constants.get(_last_name(node))


def _last_name(node: Any) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
