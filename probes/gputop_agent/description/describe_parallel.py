"""How the training is spread over ranks: DDP, FSDP, DeepSpeed, device meshes."""

import sys
from typing import Any

from gputop_agent.description import describe_model
from gputop_agent.runtime import interrupts
from gputop_agent.runtime.session import session
from gputop_agent.timing import comm


def describe_parallel(roots, ddp_roots):
    """The ``parallel`` entry of the hello: a key for each kind that is in use."""
    description = {}
    backend = process_group_backend()
    if backend:
        description["backend"] = backend
    if ddp_roots:
        description["ddp"] = _attempt(comm.describe_ddp, ddp_roots[0])
    for root in roots:
        kinds = describe_model.wrappers(root)
        if "DataParallel" in kinds:
            description["data_parallel"] = True
        if "DeepSpeedEngine" in kinds:
            description["deepspeed"] = _attempt(_describe_deepspeed, root)
        units = [module for module in describe_model.modules_of(root) if _fsdp_version(module)]
        if units:
            description["fsdp"] = _attempt(_describe_fsdp, units)
        mesh = _mesh(root)
        if mesh:
            description["mesh"] = mesh
    if session.pipeline:
        description["pipeline"] = session.pipeline
    return description


def process_group_backend():
    """``"gloo"``, ``"nccl"``, ... of the default process group; None if there is none."""
    c10d = _c10d()
    return str(c10d.get_backend()) if c10d is not None else None


def rank_and_world():
    """``(rank, world_size)`` of the default process group; None if there is none."""
    c10d = _c10d()
    if c10d is not None:
        return (c10d.get_rank(), c10d.get_world_size())
    return None


def _c10d():
    module = sys.modules.get("torch.distributed.distributed_c10d")
    if module is not None and module.is_initialized():
        return module
    return None


def _attempt(describe, subject):
    """``describe(subject)``; True where the library has changed and only its use is sure."""
    try:
        return describe(subject)
    except Exception:
        interrupts.pass_on()
        return True


def _fsdp_version(module):
    names = {base.__name__ for base in type(module).__mro__}
    if "FullyShardedDataParallel" in names:
        return 1
    if "FSDPModule" in names:
        return 2
    return 0


def _describe_fsdp(units):
    root = units[0]
    version = _fsdp_version(root)
    description: "dict[str, Any]" = {"version": version, "units": len(units)}
    fields = root.__dict__
    if version == 1:
        description["sharding"] = getattr(fields.get("sharding_strategy"), "name", None)
        description["backward_prefetch"] = getattr(fields.get("backward_prefetch"), "name", None)
        description["cpu_offload"] = bool(
            getattr(fields.get("cpu_offload"), "offload_params", False)
        )
        description["mixed_precision"] = _dtypes(fields.get("mixed_precision"))
        return description
    group = root._get_fsdp_state()._fsdp_param_group
    description["reshard_after_forward"] = bool(getattr(group, "_reshard_after_forward", True))
    description["mixed_precision"] = _dtypes(getattr(group, "mp_policy", None))
    description["cpu_offload"] = (
        type(getattr(group, "offload_policy", None)).__name__ == "CPUOffloadPolicy"
    )
    return description


def _dtypes(policy):
    dtypes = {
        name: str(getattr(policy, name)).replace("torch.", "")
        for name in ("param_dtype", "reduce_dtype", "buffer_dtype", "output_dtype")
        if getattr(policy, name, None) is not None
    }
    return dtypes or None


def _describe_deepspeed(engine):
    config = engine.__dict__["_config"]
    zero = config.zero_config
    return {
        "zero_stage": int(zero.stage),
        "offload_optimizer": _leaves_the_device(zero.offload_optimizer),
        "offload_param": _leaves_the_device(zero.offload_param),
        "reduce_bucket_size": int(zero.reduce_bucket_size),
        "overlap_comm": bool(zero.overlap_comm),
        "accumulation": config.gradient_accumulation_steps,
        "micro_batch": config.train_micro_batch_size_per_gpu,
    }


def _leaves_the_device(offload):
    """Whether a section of the configuration is there and names a place (``none`` is allowed)."""
    return offload is not None and getattr(offload.device, "value", offload.device) != "none"


def _mesh(root):
    """Names and sizes of the device mesh of the first DTensor parameter, if there is one."""
    parameter = describe_model.first_parameter([root])
    mesh = getattr(parameter, "device_mesh", None)
    if mesh is None:
        return None
    return {"names": list(mesh.mesh_dim_names or ()), "shape": [int(size) for size in mesh.shape]}
