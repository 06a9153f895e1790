"""Rules about precision, compilation and backend switches."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gputop_analysis.lint.edits import (
    NONE,
    Edits,
    add_keywords,
    keyword,
    prepend,
    remove_keyword,
    unwrap,
)
from gputop_analysis.lint.loops import loops_of
from gputop_analysis.lint.model import Hit, rule
from gputop_analysis.lint.module import Module, constant
from gputop_analysis.lint.source import Edit

_OLD = {
    "torch.cuda.amp.autocast": "torch.amp.autocast",
    "torch.cuda.amp.GradScaler": "torch.amp.GradScaler",
}
_TRAINERS = ("lightning.Trainer", "lightning.pytorch.Trainer", "pytorch_lightning.Trainer")
SCALERS = (
    "torch.cuda.amp.GradScaler",
    "torch.amp.GradScaler",
    "torch.cuda.amp.grad_scaler.GradScaler",
)
_AUTOCAST = ("torch.cuda.amp.autocast", "torch.amp.autocast", "torch.autocast")
_MIXED = (
    "half",
    "bfloat16",
    "float16",
    "bf16",
    "fp16",
    "autocast",
    "mixed_precision",
    "float8",
    "amp",
)
_CONVOLUTIONS = ("torch.nn.Conv1d", "torch.nn.Conv2d", "torch.nn.Conv3d")


def _trains_on_gpu(module: Module) -> bool:
    return module.uses_gpu and not module.uses_framework and bool(loops_of(module).training)


def _has_cuda(module: Module) -> bool:
    """Whether it can be that what only CUDA has is there."""
    return module.device in ("cuda", "accelerator")


def _first_loop(module: Module) -> ast.stmt:
    return loops_of(module).training[0]


@rule(
    "amp-deprecated",
    None,
    "info",
    "torch.cuda.amp warns since torch 2.4; torch.amp takes the device",
)
def deprecated_amp(module: Module) -> Iterator[Hit]:
    for call in module.calls_of(*_OLD):
        name = module.resolve(call.func) or ""
        yield Hit(
            call, f"{name} is deprecated", f'{_OLD[name]}("cuda", ...)', _modern(module, call, name)
        )


def _modern(module: Module, call: ast.Call, name: str) -> Edits:
    """Only for the spelling in full; ``autocast``'s first argument by position was another one."""
    spelt_out = ast.unparse(call.func) == name and module.imports.get("torch") == "torch"
    if (
        not spelt_out
        or (name.endswith("autocast") and call.args)
        or "\n" in module.source.segment(call.func)
    ):
        return NONE
    replaced = Edit(module.source.start(call.func), module.source.end(call.func), _OLD[name])
    return (replaced, *prepend(module.source, call, '"cuda"'))


def _dtype(module: Module, call: ast.Call) -> str | None:
    argument = keyword(call, "dtype")
    if argument:
        return module.resolve(argument.value)
    return None


@rule(
    "scaler-with-bf16",
    "CE03",
    "medium",
    "bfloat16 has the range of float32: scaling only costs time",
)
def scaler_with_bf16(module: Module) -> Iterator[Hit]:
    dtypes = {_dtype(module, call) for call in module.calls_of(*_AUTOCAST)}
    if dtypes != {"torch.bfloat16"} or module.mentions("float16", "half", "fp16"):
        return
    for call in module.calls_of(*SCALERS):
        if keyword(call, "enabled") is None and not any(
            argument.arg is None for argument in call.keywords
        ):
            edits = add_keywords(module.source, call, enabled="False")
            yield Hit(
                call,
                "GradScaler beside autocast to bfloat16",
                "enabled=False, or take it out",
                edits,
            )


@rule(
    "fp16-autocast", "CE03", "info", "on GPUs from 2020 on bfloat16 is as fast and needs no scaler"
)
def fp16_autocast(module: Module) -> Iterator[Hit]:
    for call in module.calls_of(*_AUTOCAST):
        if _dtype(module, call) == "torch.float16":
            yield Hit(
                call,
                "autocast to float16",
                "dtype=torch.bfloat16 on Ampere and later, without GradScaler",
            )


@rule("no-autocast", "CE01", "info", "float32 arithmetic leaves most of the tensor cores idle")
def full_precision(module: Module) -> Iterator[Hit]:
    if _trains_on_gpu(module) and not module.mentions(*_MIXED):
        if module.device == "accelerator":
            device = "device.type"
        else:
            device = f'"{module.device}"'
        fix = f"with torch.autocast({device}, dtype=torch.bfloat16): around forward and loss"
        yield Hit(_first_loop(module), "the training runs in float32", fix)


@rule(
    "tf32-unset", "CE02", "info", "float32 matrix products do not use TF32 unless it is switched on"
)
def tf32_not_set(module: Module) -> Iterator[Hit]:
    switches = ("set_float32_matmul_precision", "allow_tf32", "fp32_precision")
    if _trains_on_gpu(module) and _has_cuda(module) and not module.mentions(*_MIXED, *switches):
        fix = 'torch.set_float32_matmul_precision("high") at the top'
        yield Hit(_first_loop(module), "TF32 is not switched on", fix)


@rule("no-compile", "HO01", "info", "small kernels are launched one by one")
def not_compiled(module: Module) -> Iterator[Hit]:
    if _trains_on_gpu(module) and not module.mentions("compile"):
        yield Hit(_first_loop(module), "the model is not compiled", "model = torch.compile(model)")


@rule("cudnn-benchmark", "CE09", "info", "cuDNN takes its first algorithm instead of the fastest")
def no_benchmark(module: Module) -> Iterator[Hit]:
    if module.mentions(
        "benchmark", "deterministic", "use_deterministic_algorithms"
    ) or not _has_cuda(module):
        return
    if _trains_on_gpu(module) and any(module.calls_of(*_CONVOLUTIONS)):
        fix = "torch.backends.cudnn.benchmark = True where input shapes are fixed"
        yield Hit(_first_loop(module), "convolutions without cudnn.benchmark", fix)


@rule("anomaly-mode", "HO16", "medium", "every operation of the forward keeps a stack trace")
def anomaly_mode(module: Module) -> Iterator[Hit]:
    for call in module.calls_of("torch.autograd.set_detect_anomaly"):
        if call.args:
            mode = call.args[0]
        else:
            mode = getattr(keyword(call, "mode"), "value", None)
        if constant(mode) is True and not module.is_conditional(call):
            if mode:
                edits = (Edit(module.source.start(mode), module.source.end(mode), "False"),)
            else:
                edits = NONE
            yield Hit(
                call, "anomaly mode is left on", "torch.autograd.set_detect_anomaly(False)", edits
            )
    for call in module.calls_of("torch.autograd.detect_anomaly"):
        if not module.is_conditional(call) and not call.args:
            edits = _without_with(module, call)
            yield Hit(call, "anomaly mode is left on", "take the `with` out", edits)
    for call in module.calls_of(*_TRAINERS):
        argument = keyword(call, "detect_anomaly")
        if argument and constant(argument.value) is True and not module.is_conditional(call):
            edits = remove_keyword(module.source, call, "detect_anomaly")
            yield Hit(
                call,
                "the Trainer detects anomalies in every step",
                "leave detect_anomaly out",
                edits,
            )


def _without_with(module: Module, call: ast.Call) -> Edits:
    """The block of a ``with`` without it, where it manages the call alone and binds no name."""
    item = module.parents.get(call)
    if isinstance(item, ast.withitem):
        statement = module.parents.get(item)
    else:
        statement = None
    if not isinstance(statement, ast.With):
        return NONE
    name = item.optional_vars  # type: ignore[union-attr]
    if name is not None and not (isinstance(name, ast.Name) and _is_only_bound(module, name.id)):
        return NONE
    return unwrap(module.source, statement)


def _is_only_bound(module: Module, name: str) -> bool:
    """Whether a name is nowhere read."""
    return not any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
        for node in module.nodes
    )


def _may_be_off(module: Module, call: ast.Call) -> bool:
    """Whether autograd's profiler is asked for by a switch, its first argument ``enabled``."""
    if module.resolve(call.func) != "torch.autograd.profiler.profile":
        return False
    given = keyword(call, "enabled")
    switch = given.value if given else next(iter(call.args), None)
    return switch is not None and not (isinstance(switch, ast.Constant) and switch.value is True)


@rule(
    "profiler-all-run",
    "HO16",
    "medium",
    "each operation is noted, and all notes stay in memory until the end",
)
def profiles_everything(module: Module) -> Iterator[Hit]:
    loops = loops_of(module)
    for call in module.calls_of("torch.profiler.profile", "torch.autograd.profiler.profile"):
        item = module.parents.get(call)
        if isinstance(item, ast.withitem):
            statement = module.parents.get(item)
        else:
            statement = None
        if not isinstance(statement, ast.With) or keyword(call, "schedule"):
            continue
        if _may_be_off(module, call):
            continue
        is_seen = module.is_seen(call)
        if is_seen or (loops.train_within(statement.body) and not module.is_conditional(statement)):
            yield Hit(
                call,
                "torch.profiler records the whole training",
                "give it a torch.profiler.schedule(wait=100, warmup=2, active=5), or take it out",
                _without_with(module, call) if is_seen else NONE,  # else it may be what is wanted
            )
