"""Libraries of a script, made to work without data workers, downloads, or other ranks."""

from __future__ import annotations

import importlib
import json
import os
from typing import Any, Callable, Dict, List

import torch

from gputop_tracer.model import hf, state_space

from .after_import import after_import
from .fake import Fakes
from .hub import in_words
from .tokenizer import stand_in

Note = Callable[..., Any]
_OF_THE_HUB = (
    "cache_dir force_download proxies token local_files_only revision trust_remote_code subfolder "
    "user_agent code_revision _from_auto _from_pipeline _commit_hash gguf_file resume_download "
    "use_auth_token adapter_kwargs"
).split()


class Absent(dict):
    """Stands for a checkpoint file that is not here; whatever is asked of it is absent too."""

    def __missing__(self, _key: Any) -> Any:
        return Absent()

    def get(self, _key: Any, default: Any = None) -> Any:
        return Absent()


def replace(fakes: Fakes, note: Note, configs: Dict[str, Any]) -> None:
    """Replace what of torch reads files and starts processes; the others when the script imports
    them.

    Args:
        configs: by name, for models that are not in the local cache: configurations of
            transformers, or shapes.
    """
    _load_data_here()
    _load_no_weights(fakes, note)
    wanted = {
        "transformers.modeling_utils": lambda module: _from_configuration(module, fakes, note),
        "transformers.utils.import_utils": _real_masks,
        "transformers.masking_utils": _real_masks,
        "transformers.tokenization_utils_base": lambda module: stand_in(
            module.PreTrainedTokenizerBase, note
        ),
        "transformers.models.auto.tokenization_auto": lambda module: stand_in(
            module.AutoTokenizer, note
        ),
        "transformers.configuration_utils": lambda module: _known_configurations(module, configs),
        "lightning.pytorch.trainer.trainer": _plain_trainer,
        "pytorch_lightning.trainer.trainer": _plain_trainer,
        "pyarrow": _map_where_it_lies,
    }
    for name in state_space.FAMILIES:
        wanted[f"transformers.models.{name}.modeling_{name}"] = _by_kernels(note)
    after_import(wanted)


def _by_kernels(note: Note) -> Callable[[Any], Any]:
    def replace(module: Any) -> None:
        if state_space.replace(module):
            note(state_space.NOTE)

    return replace


def _load_data_here() -> None:
    """Batches are made in this process: fake tensors do not travel between processes."""
    loader = torch.utils.data.DataLoader
    original = loader.__init__

    def init(self: Any, *arguments: Any, **options: Any) -> None:
        arguments = arguments[:5]  # the sixth is num_workers, all after it may be named only
        options.update(num_workers=0, persistent_workers=False, pin_memory=False)
        for name in ("prefetch_factor", "timeout", "multiprocessing_context", "pin_memory_device"):
            options.pop(name, None)
        original(self, *arguments, **options)

    loader.__init__ = init  # type: ignore[method-assign]


def _map_where_it_lies(pyarrow: Any) -> None:
    """Arrow opens files past Python, which alone knows where the script's own files lie."""
    original = pyarrow.memory_map

    def memory_map(path: Any, *arguments: Any, **options: Any) -> Any:
        try:
            with open(path, "rb") as file:
                path = file.name
        except (OSError, TypeError):  # Arrow says itself what is wrong
            pass
        return original(path, *arguments, **options)

    pyarrow.memory_map = memory_map


def _load_no_weights(fakes: Fakes, note: Note) -> None:
    load, load_state = torch.load, torch.nn.Module.load_state_dict
    load_optimizer = torch.optim.Optimizer.load_state_dict

    def loaded(source: Any, *_arguments: Any, **options: Any) -> Any:
        if isinstance(source, (str, os.PathLike)) and not os.path.exists(source):
            note(
                "%s is not here: the weights of the model's own initialisation were kept."
                % os.fspath(source)
            )
            return Absent()
        options.pop("map_location", None)
        with fakes.mode:
            return load(source, map_location="cpu", **options)

    def state(module: Any, values: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(values, Absent):
            return None
        return load_state(module, values, *arguments, **options)

    def optimizer_state(optimizer: Any, values: Any) -> Any:
        if isinstance(values, Absent):
            return None
        return load_optimizer(optimizer, values)

    torch.load = loaded
    torch.save = lambda *_arguments, **_options: None  # what fake tensors hold is not worth a file
    torch.nn.Module.load_state_dict = state  # type: ignore[method-assign,assignment]
    torch.optim.Optimizer.load_state_dict = optimizer_state  # type: ignore[method-assign,assignment]


def _from_configuration(module: Any, fakes: Fakes, note: Note) -> None:
    """``from_pretrained`` builds the model from its configuration alone."""

    def from_pretrained(cls: Any, name: Any, *arguments: Any, **options: Any) -> Any:
        config = options.get("config")
        if not hasattr(config, "to_dict"):
            config = cls.config_class.from_pretrained(config or name)
        if config is not None:  # trainers ask it which tokenizer belongs to the model
            config.name_or_path = str(name)
        dtype = options.get("dtype", options.get("torch_dtype"))
        if dtype is None and _loads_as_stored():
            dtype = "auto"
        if dtype == "auto":
            dtype = getattr(config, "dtype", None)
        if isinstance(dtype, str):
            dtype = getattr(torch, dtype)
        if options.get("quantization_config") is not None:
            raise NotImplementedError(
                "quantised weights in a script are not traced; give the model by --model instead"
            )
        chosen = {"dtype": dtype, "attn_implementation": options.get("attn_implementation")}
        model = cls._from_config(
            config, **{key: value for key, value in chosen.items() if value is not None}
        )
        model.eval()
        if options.get("device_map") not in (None, "cpu"):
            model.to("cuda")
        note("Weights of %s were not loaded: the model was built from its configuration." % name)
        return model

    module.PreTrainedModel.from_pretrained = classmethod(from_pretrained)
    adjust = getattr(module.PreTrainedModel, "_check_and_adjust_attn_implementation", None)
    if adjust is not None:

        def adjusted(model: Any, attention: Any, *arguments: Any, **more: Any) -> Any:
            return adjust(model, _without_package(attention), *arguments, **more)

        module.PreTrainedModel._check_and_adjust_attn_implementation = adjusted


def _loads_as_stored() -> bool:
    """Whether weights keep their checkpoint's dtype unless told otherwise: since transformers 5."""
    import transformers

    return int(transformers.__version__.partition(".")[0]) >= 5


def _without_package(attention: Any) -> Any:
    """FlashAttention as the trace knows it, for the packages that need a GPU to be imported."""
    if not isinstance(attention, str) or "flash" not in attention or attention == hf.FLASH:
        return attention
    return hf.FLASH if hf.register_flash() else "sdpa"


def _real_masks(module: Any) -> None:
    """transformers takes fake tensors for a compiler's; here they stand for a run's."""
    if hasattr(module, "is_fake_tensor"):
        module.is_fake_tensor = lambda _value: False
    if hasattr(module, "find_packed_sequence_indices"):
        module.find_packed_sequence_indices = lambda _positions: None


def _known_configurations(module: Any, configs: Dict[str, Any]) -> None:
    """Names that are not in the local cache are looked up among those that gputop brought."""
    config_class = getattr(module, "PreTrainedConfig", None) or module.PretrainedConfig
    original = config_class.get_config_dict.__func__

    def get_config_dict(cls: Any, name: Any, **options: Any) -> Any:
        try:
            return original(cls, name, **options)
        except (OSError, ValueError) as problem:
            if str(name) not in configs:
                raise in_words(problem, name) from None
            local_options = {key: value for key, value in options.items() if key not in _OF_THE_HUB}
            return _as_config(configs[str(name)]), local_options

    config_class.get_config_dict = classmethod(get_config_dict)


def _as_config(given: Dict[str, Any]) -> Dict[str, Any]:
    """A configuration as it is, or that of a model's shape."""
    if "model_type" in given:
        return dict(given)
    from gputop_tracer.model.configs import config_from_shape

    return dict(config_from_shape(given).to_dict())


def _plain_trainer(module: Any) -> None:
    """Lightning's trainer without validation first, and with a logger that writes nothing."""
    original, library = module.Trainer.__init__, module.__name__.partition(".trainer")[0]

    def init(self: Any, *arguments: Any, **options: Any) -> None:
        options.update(
            num_sanity_val_steps=0, enable_checkpointing=False, enable_progress_bar=False
        )
        options["logger"] = importlib.import_module(library + ".loggers.logger").DummyLogger()
        options["callbacks"] = [
            callback
            for callback in _listed(options.get("callbacks"))
            if "Checkpoint" not in type(callback).__name__
        ]
        original(self, *arguments, **options)

    module.Trainer.__init__ = init


def _listed(callbacks: Any) -> List[Any]:
    if isinstance(callbacks, (list, tuple)):
        return list(callbacks)
    if callbacks:
        return [callbacks]
    return []


def read_configs(path: str) -> Dict[str, Any]:
    """The configurations of a JSON file, by name; none without a file."""
    if not path:
        return {}
    with open(path, encoding="utf-8") as text:
        return dict(json.load(text))
