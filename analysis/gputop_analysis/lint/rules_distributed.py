"""Rules about several GPUs: data parallelism, samplers, gradient synchronisation, seeds."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gputop_analysis.lint.edits import NONE, Edits, keyword
from gputop_analysis.lint.loops import loops_of
from gputop_analysis.lint.model import Hit, rule
from gputop_analysis.lint.module import Module, constant, dotted
from gputop_analysis.lint.source import Edit
from gputop_analysis.mend import DATA_LOADER, DDP

_SAMPLER = "torch.utils.data.DistributedSampler"
_INIT = "torch.distributed.init_process_group"
_RANK_WORDS = ("rank", "local_rank", "global_rank", "world_rank", "get_rank", "RANK", "LOCAL_RANK")


@rule(
    "data-parallel",
    "CR10",
    "medium",
    "one process copies the model to every GPU in each step",
)
def data_parallel(module: Module) -> Iterator[Hit]:
    for call in module.calls_of("torch.nn.DataParallel"):
        yield Hit(
            call,
            "DataParallel",
            "DistributedDataParallel, started by torchrun --nproc-per-node=gpu",
        )


@rule("gloo-on-gpu", "CR10", "high", "gloo moves GPU tensors through the host's memory")
def gloo_on_gpu(module: Module) -> Iterator[Hit]:
    moved = module.mentions("set_device") or any(_moves_to_gpu(node) for node in module.nodes)
    for call in module.calls_of(_INIT):
        setting = keyword(call, "backend")
        if call.args:
            backend = call.args[0]
        elif setting:
            backend = setting.value
        else:
            backend = None
        if constant(backend) == "gloo" and moved and module.is_ddp and not module.mentions("nccl"):
            yield Hit(
                call, "gloo as the backend of a training on GPUs", 'init_process_group("nccl")'
            )


def _moves_to_gpu(node: ast.AST) -> bool:
    """``x.cuda(...)``, or ``x.to("cuda...")`` with the device written out."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    if node.args:
        where = constant(node.args[0])
    else:
        where = object
    return node.func.attr == "cuda" or (
        node.func.attr == "to" and isinstance(where, str) and where.startswith("cuda")
    )


@rule(
    "no-distributed-sampler",
    "IN12",
    "high",
    "every rank trains on the same samples or draws them without knowing of the others",
)
def no_sampler(module: Module) -> Iterator[Hit]:
    launchers = (
        "DistributedSampler",
        "split_dataset_by_node",
        "batch_sampler",
        "num_replicas",
        "IterableDataset",
        "shard",
    )
    if not module.is_ddp or module.uses_framework:
        return
    sharded = module.mentions(*launchers)
    for call in module.calls_of(DATA_LOADER):
        if sharded and not module.is_seen(call):
            continue
        shuffled = keyword(call, "shuffle")
        names = set()
        for node in ast.walk(call):
            if isinstance(node, ast.Name):
                names.add(node.id)
        plain = not keyword(call, "sampler") and not any(
            argument.arg is None for argument in call.keywords
        )
        if (
            plain
            and shuffled
            and constant(shuffled.value) is True
            and names.isdisjoint(_RANK_WORDS)
        ):
            fix = (
                "sampler=DistributedSampler(dataset) in place of shuffle=True, "
                "set_epoch(epoch) in each epoch"
            )
            message = "DDP without DistributedSampler: no rank gets a part of its own"
            yield Hit(call, message, fix, _sampler(module, call, shuffled))


def _sampler(module: Module, call: ast.Call, shuffled: ast.keyword) -> Edits:
    """``sampler=DistributedSampler(dataset)`` in place of ``shuffle=True``: where the process group
    is there by then, and there is one epoch, so that no ``set_epoch`` is missing.
    """
    dataset = call.args[0] if call.args else None
    spelt = _spelling_of_sampler(module)
    if not isinstance(dataset, ast.Name | ast.Attribute) or not spelt:
        return NONE
    if not _has_group_before(module, call) or _is_iterated_again(module, call):
        return NONE
    source = module.source
    text = f"sampler={spelt}({source.segment(dataset)})"
    return (Edit(source.start(shuffled), source.end(shuffled), text),)


def _spelling_of_sampler(module: Module) -> str:
    """How the file can name the class without a new import."""
    for name, meant in module.imports.items():
        if meant in (_SAMPLER, "torch.utils.data.distributed.DistributedSampler"):
            return name
    return _SAMPLER if module.imports.get("torch") == "torch" else ""


def _has_group_before(module: Module, call: ast.Call) -> bool:
    """Whether the same function has made the process group, or wrapped the model, further up."""
    function = module.function_of(call)
    return any(
        module.function_of(init) is function and init.lineno < call.lineno
        for init in module.calls_of(_INIT, DDP)
    )


def _is_iterated_again(module: Module, call: ast.Call) -> bool:
    """Whether epochs go over the loader, or that is not to be seen."""
    parent = module.parents.get(call)
    if not isinstance(parent, ast.Assign) or len(parent.targets) != 1:
        return True
    name = dotted(parent.targets[0])
    return name is None or loops_of(module).epochs_over(name)


@rule("no-set-epoch", "IN12", "medium", "every epoch visits the samples in the same order")
def no_set_epoch(module: Module) -> Iterator[Hit]:
    if module.mentions("set_epoch") or module.uses_framework:
        return
    loops = loops_of(module)
    over_epochs = any(loops.epochs_over(name) for name in module.made_by(DATA_LOADER))
    for call in module.calls_of(_SAMPLER):
        shuffled = keyword(call, "shuffle")
        if over_epochs and not (shuffled and constant(shuffled.value) is False):
            yield Hit(
                call,
                "DistributedSampler without set_epoch",
                "sampler.set_epoch(epoch) at the start of each epoch",
            )


@rule(
    "no-no-sync",
    "CR07",
    "medium",
    "gradients are reduced in every micro-batch and needed once a step",
)
def accumulates_with_sync(module: Module) -> Iterator[Hit]:
    if (
        not module.is_ddp
        or module.mentions("no_sync", "require_backward_grad_sync")
        or module.uses_framework
    ):
        return
    loops = loops_of(module)
    for loop in loops.training:
        sure = list(loops.every_step(loop))
        updates = []
        for node in loops.anywhere(loop):
            if loops.is_optimizer_step(node):
                updates.append(node)
        backwards = []
        for n in sure:
            if isinstance(n, ast.Call) and getattr(n.func, "attr", "") == "backward":
                backwards.append(n)
        if backwards and updates and all(_every_kth(module, update) for update in updates):
            fix = "with model.no_sync(): around all but the last backward of a step"
            yield Hit(backwards[0], "gradient accumulation under DDP without no_sync", fix)


def _every_kth(module: Module, node: ast.AST) -> bool:
    """Whether it stands under an ``if`` with a remainder in it."""
    outer = []
    for test in module.above(node):
        if isinstance(test, ast.If):
            outer.append(test)
    return any(isinstance(part, ast.Mod) for test in outer for part in ast.walk(test.test))


@rule("find-unused-parameters", "CR08", "info", "DDP walks the whole graph after every forward")
def finds_unused(module: Module) -> Iterator[Hit]:
    for call in module.calls_of(DDP):
        setting = keyword(call, "find_unused_parameters")
        if setting and constant(setting.value) is True:
            fix = "False if every parameter takes part in every step; a run under gputop tells"
            yield Hit(call, "find_unused_parameters=True", fix)


@rule("same-seed", "RE03", "info", "dropout and augmentation are the same on all ranks")
def same_seed(module: Module) -> Iterator[Hit]:
    if not module.is_ddp:
        return
    for call in module.calls_of("torch.manual_seed"):
        if (
            len(call.args) == 1
            and isinstance(constant(call.args[0]), int)
            and not module.is_conditional(call)
        ):
            yield Hit(
                call,
                "all ranks draw from one seed",
                "torch.manual_seed(seed + rank) after the model is built",
            )
