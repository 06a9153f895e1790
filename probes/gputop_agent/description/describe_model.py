"""What is trained: parameters by dtype, kinds of modules, the configuration of a Hugging Face
model.

Walks ``__dict__["_modules"]`` and ``__dict__["_parameters"]`` only, so that no user code runs, and
keeps no reference.
"""

from time import monotonic_ns

from gputop_agent.runtime import interrupts

_TOP_KINDS = 20
# in the training thread the walk stops here and says so: 5,000 modules or more
BUDGET_NS = 15_000_000
PATIENT_NS = 2_000_000_000  # in the agent's thread, which then finishes it
_MAX_ROOTS = 8

#: wrapper class -> where the wrapped module lies in ``_modules``
_WRAPPERS = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "OptimizedModule": "_orig_mod",
    "DeepSpeedEngine": "module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
}

#: name in the hello -> names under which configurations keep it
_CONFIG = {
    "hidden_size": ("hidden_size", "n_embd", "d_model", "dim"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "kv_heads": ("num_key_value_heads", "n_kv_heads"),
    "head_dim": ("head_dim",),
    "vocab_size": ("vocab_size",),
    "ffn_size": ("intermediate_size", "n_inner", "d_ff", "ffn_dim"),
    "max_sequence": ("max_position_embeddings", "n_positions", "block_size", "max_seq_len"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "experts_per_token": ("num_experts_per_tok",),
    "tied_embeddings": ("tie_word_embeddings",),
    "attention": ("_attn_implementation_internal", "_attn_implementation"),
    "model_type": ("model_type",),
    "name": ("_name_or_path",),
}
# modules, the outermost first, in which a configuration is looked for (peft wraps two deep)
_CONFIG_WITHIN = 8


def describe_model(roots, budget_ns=BUDGET_NS):
    """The ``model`` entry of the hello for the outermost trained modules; None without any."""
    if not roots:
        return None
    main = max(
        (unwrap(root) for root in roots[:_MAX_ROOTS]), key=lambda module: len(_children(module))
    )
    totals = _Totals(monotonic_ns() + budget_ns)
    for root in roots[:_MAX_ROOTS]:
        totals.add(root)
    description = totals.result()
    description["class"] = type(main).__name__
    description["roots"] = [type(root).__name__ for root in roots[:_MAX_ROOTS]]
    description["config"] = _config_within(main)
    if totals.adapted:
        description["lora"] = describe_lora(main)
    return description


def describe_lora(root):
    """``{"rank", "targets", "dtype", "dropout"}`` of peft's adapters below a module; else None."""
    ranks, targets, dtypes, dropouts = set(), set(), set(), set()
    for module in modules_of(root):
        for name, child in _children(module).items():
            adapters = _children(child).get("lora_A")
            if adapters is None:
                continue
            targets.add(name)
            ranks.update(
                rank for rank in (child.__dict__.get("r") or {}).values() if isinstance(rank, int)
            )
            for adapter in _children(adapters).values():
                parameters = [
                    parameter
                    for parameter in _parameters(adapter).values()
                    if parameter is not None
                ]
                dtypes.update(
                    str(parameter.dtype).replace("torch.", "") for parameter in parameters
                )
            for dropout in _children(_children(child).get("lora_dropout")).values():
                dropouts.add(float(dropout.__dict__.get("p") or 0.0))
    if not ranks:
        return None
    return {
        "rank": max(ranks),
        "targets": sorted(targets),
        "dtype": min(dtypes, default=None),
        "dropout": max(dropouts, default=0.0),
    }


def unwrap(module):
    """The user's own module inside DDP, FSDP, DeepSpeed or a compiled wrapper."""
    for _ in range(8):
        name = _inner_name(module)
        inner = _children(module).get(name) if name else None
        if inner is None:
            return module
        module = inner
    return module


def _inner_name(module):
    """The name under which a wrapper holds what it wraps; None where it is no wrapper."""
    for base in type(module).__mro__:
        if base.__name__ in _WRAPPERS:
            return _WRAPPERS[base.__name__]
    return None


def wrappers(root):
    """Class names of the wrappers around a root, outermost first."""
    wrappers_ = []
    for _ in range(8):
        name = next(
            (base.__name__ for base in type(root).__mro__ if base.__name__ in _WRAPPERS), None
        )
        inner = _children(root).get(_WRAPPERS[name]) if name else None
        if inner is None:
            return wrappers_
        wrappers_.append(name)
        root = inner
    return wrappers_


def modules_of(root):
    """Every module below ``root``, itself included, each once."""
    visited, todo = set(), [root]
    while todo:
        module = todo.pop()
        if id(module) in visited:
            continue
        visited.add(id(module))
        yield module
        todo.extend(child for child in _children(module).values() if child is not None)


def first_parameter(roots):
    """A parameter of the trained modules, to see the device; None if there is none."""
    for root in roots:
        for module in modules_of(root):
            for parameter in _parameters(module).values():
                if parameter is not None:
                    return parameter
    return None


def describe_config(config):
    """Sizes out of a model's ``config`` object (or a nested ``text_config``); else None."""
    fields = getattr(config, "__dict__", None)
    if not isinstance(fields, dict):
        return None
    text = getattr(fields.get("text_config"), "__dict__", None)
    if isinstance(text, dict):
        fields = dict(fields, **{key: value for key, value in text.items() if key != "model_type"})
    # an attribute of the class in transformers
    model_type = getattr(type(config), "model_type", None)
    if isinstance(model_type, str) and model_type:
        description = {"model_type": model_type}
    else:
        description = {}
    for name, aliases in _CONFIG.items():
        value = next(
            (fields[alias] for alias in aliases if isinstance(fields.get(alias), (int, str))), None
        )
        if value is not None:
            description[name] = value
    return description or None


def _config_within(root):
    """The first configuration among the outermost modules."""
    for _, module in zip(range(_CONFIG_WITHIN), _outermost(root)):
        description = describe_config(getattr(module, "__dict__", {}).get("config"))
        if description:
            return description
    return None


def _outermost(root):
    """Modules breadth first."""
    level = [root]
    while level:
        for module in level:
            yield module
        level = [
            child for module in level for child in _children(module).values() if child is not None
        ]


def _children(module):
    modules = getattr(module, "__dict__", {}).get("_modules")
    return modules if isinstance(modules, dict) else {}


def _parameters(module):
    parameters = getattr(module, "__dict__", {}).get("_parameters")
    return parameters if isinstance(parameters, dict) else {}


class _Totals:
    def __init__(self, deadline_ns):
        self._deadline_ns = deadline_ns
        self._seen = set()
        self._kinds = {}
        self._by_dtype = {}
        self._trainable_by_dtype = {}
        self._buffers = 0
        self._sharded = False
        self._checkpointing = False
        self._truncated = False
        self.adapted = False

    def add(self, root):
        for module in modules_of(root):
            if id(module) in self._seen:
                continue
            self._seen.add(id(module))
            self._add_module(module)
            if len(self._seen) % 256 == 0 and monotonic_ns() > self._deadline_ns:
                self._truncated = True
                return

    def result(self):
        kinds = sorted(self._kinds.items(), key=lambda item: (-item[1], item[0]))[:_TOP_KINDS]
        return {
            "parameters": sum(self._by_dtype.values()),
            "trainable": sum(self._trainable_by_dtype.values()),
            "by_dtype": self._by_dtype,
            "trainable_by_dtype": self._trainable_by_dtype,
            "buffer_bytes": self._buffers,
            "modules": dict(kinds),
            "sharded": self._sharded,
            "gradient_checkpointing": self._checkpointing,
            "truncated": self._truncated,
        }

    def _add_module(self, module):
        class_name = type(module).__name__
        self._kinds[class_name] = self._kinds.get(class_name, 0) + 1
        fields = module.__dict__
        if fields.get("gradient_checkpointing") is True or class_name == "CheckpointWrapper":
            self._checkpointing = True
        if "lora_A" in _children(module):
            self.adapted = True
        for parameter in _parameters(module).values():
            if parameter is not None and id(parameter) not in self._seen:
                self._seen.add(id(parameter))
                self._add_parameter(parameter)
        for buffer in (fields.get("_buffers") or {}).values():
            if buffer is not None:
                self._buffers += buffer.numel() * buffer.element_size()

    def _add_parameter(self, parameter):
        try:
            count, dtype = parameter.numel(), str(parameter.dtype).replace("torch.", "")
        except (RuntimeError, ValueError, TypeError):  # not initialised yet
            interrupts.pass_on()
            return
        class_name = type(parameter).__name__
        self._sharded = self._sharded or class_name in ("FlatParameter", "DTensor")
        self._by_dtype[dtype] = self._by_dtype.get(dtype, 0) + count
        if parameter.requires_grad:
            self._trainable_by_dtype[dtype] = self._trainable_by_dtype.get(dtype, 0) + count
