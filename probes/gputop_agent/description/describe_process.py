"""Surroundings of the training: interpreter, launcher, device, backend flags, variables."""

import os
import platform
import sys

from gputop_agent.runtime import affinity, guard, worlds

_ENVIRONMENT = frozenset(
    """
    OMP_NUM_THREADS MKL_NUM_THREADS OPENBLAS_NUM_THREADS NUMEXPR_NUM_THREADS KMP_AFFINITY
    GOMP_CPU_AFFINITY OMP_PROC_BIND OMP_PLACES CUDA_VISIBLE_DEVICES CUDA_LAUNCH_BLOCKING
    CUDA_DEVICE_ORDER CUDA_DEVICE_MAX_CONNECTIONS CUDA_MODULE_LOADING CUBLAS_WORKSPACE_CONFIG
    NVIDIA_TF32_OVERRIDE HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES WORLD_SIZE RANK LOCAL_RANK
    LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT TORCHELASTIC_RESTART_COUNT
    TORCHELASTIC_MAX_RESTARTS PYTHONHASHSEED PYTHONUNBUFFERED PYTHONOPTIMIZE PYTHONMALLOC
    MALLOC_ARENA_MAX MALLOC_TRIM_THRESHOLD_ MALLOC_MMAP_THRESHOLD_ LD_PRELOAD TOKENIZERS_PARALLELISM
    HF_HUB_OFFLINE HF_DATASETS_OFFLINE TRANSFORMERS_OFFLINE ACCELERATE_MIXED_PRECISION
    ACCELERATE_USE_FSDP ACCELERATE_USE_DEEPSPEED SLURM_JOB_ID SLURM_NTASKS SLURM_PROCID SLURM_NNODES
    """.split()
)
_LIBRARIES = ("transformers", "accelerate", "lightning", "deepspeed", "peft", "gymnasium", "gym")
_PREFIXES = (
    "NCCL_",
    "TORCH_",
    "PYTORCH_",
    "GLOO_",
    "TORCHINDUCTOR_",
    "TORCHDYNAMO_",
    "RCCL_",
    "UCX_",
    "FI_",
)
_SECRET_WORDS = ("TOKEN", "KEY", "SECRET", "PASSW", "CREDENTIAL", "AUTH", "COOKIE")
_MAX_VALUE = 300
_UNSET_SEED = 67280421310721  # c10::detail::default_rng_seed_val

try:
    import resource
except ImportError:  # not a Unix
    resource = None


def describe_interpreter(torch):
    """Interpreter, command line and torch's build."""
    return {
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "argv": [str(word)[:_MAX_VALUE] for word in sys.argv[:64]],
        "executable": sys.executable,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda_version": torch.version.cuda,
        "hip_version": getattr(torch.version, "hip", None),
        "threads": {"torch": torch.get_num_threads(), "interop": torch.get_num_interop_threads()},
        "libraries": {name: version(name) for name in _LIBRARIES},
        "acts": worlds.are_acted_in(),
    }


def describe_limits():
    """What the system allows this process: how many open files (None: no limit, unknown)."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if resource else -1
    return {"open_files": soft if 0 < soft < 1 << 40 else None}


def version(name):
    """Version of a package that is imported already; None if it is not."""
    return getattr(sys.modules.get(name), "__version__", None)


def describe_device(torch, parameter, cuda):
    """Where the model lives: ``device`` ("cpu", "cuda", ...), and the CUDA device's index, name and
    uuid.

    ``cuda`` says that the script has initialised CUDA; nothing here does.
    """
    device = getattr(parameter, "device", None)
    device_type = getattr(device, "type", "cuda" if cuda else "cpu")
    description = {
        "device": device_type,
        "device_index": getattr(device, "index", None),
        "device_name": None,
        "device_uuid": None,
    }
    if device_type != "cuda" or not cuda:
        return description
    index = description["device_index"]
    index = torch.cuda.current_device() if index is None else index
    properties = torch.cuda.get_device_properties(index)
    uuid = getattr(properties, "uuid", None)
    description.update(
        device_index=index,
        device_name=properties.name,
        affinity=affinity.describe(properties),
        device_uuid="GPU-%s" % uuid if uuid else None,
        device_memory_bytes=properties.total_memory,
        device_capability="%d.%d" % (properties.major, properties.minor),
        allocator=str(torch.cuda.get_allocator_backend())
        if hasattr(torch.cuda, "get_allocator_backend")
        else None,
    )
    return description


def describe_launcher(environ):
    """``torchrun``, ``accelerate``, ``deepspeed``, ``srun``, ``mpirun`` or ``none``."""
    if any(name.startswith("ACCELERATE_") for name in environ):
        return "accelerate"
    if "TORCHELASTIC_RUN_ID" in environ:
        return "torchrun"
    if "RANK" in environ and "CROSS_RANK" in environ:
        return "deepspeed"
    if "SLURM_PROCID" in environ and "SLURM_STEP_ID" in environ:
        return "srun"
    if "OMPI_COMM_WORLD_RANK" in environ or "PMI_RANK" in environ:
        return "mpirun"
    return "none"


def describe_environment(environ):
    """Variables that change how a training runs, by a list of names; never a secret."""
    return {
        name: value[:_MAX_VALUE] for name, value in sorted(environ.items()) if _may_be_told(name)
    }


def _may_be_told(name):
    """Whether a variable is in the list, and its name does not say that it holds a secret."""
    if name not in _ENVIRONMENT and not name.startswith(_PREFIXES):
        return False
    return not any(word in name for word in _SECRET_WORDS)


def describe_flags(torch):
    """Backend switches that cost or win time; None for one that this torch does not have."""
    backends = torch.backends
    return {
        "cuda_matmul_tf32": guard.attempt(lambda: backends.cuda.matmul.allow_tf32),
        "cudnn_tf32": guard.attempt(lambda: backends.cudnn.allow_tf32),
        "cudnn_benchmark": guard.attempt(lambda: backends.cudnn.benchmark),
        "cudnn_deterministic": guard.attempt(lambda: backends.cudnn.deterministic),
        "deterministic": guard.attempt(torch.are_deterministic_algorithms_enabled),
        "seed": guard.attempt(lambda: _seed(torch)),
        "matmul_precision": guard.attempt(torch.get_float32_matmul_precision),
        "anomaly": guard.attempt(torch.is_anomaly_enabled),
        "profiler": guard.attempt(lambda: torch.autograd.profiler._is_profiler_enabled),
        "default_dtype": guard.attempt(
            lambda: str(torch.get_default_dtype()).replace("torch.", "")
        ),
        "sdp_flash": guard.attempt(torch.backends.cuda.flash_sdp_enabled),
        "sdp_math": guard.attempt(torch.backends.cuda.math_sdp_enabled),
    }


def _seed(torch):
    """The seed that the script set for the CPU's generator; None where it set none."""
    seed = torch.initial_seed()
    return None if seed == _UNSET_SEED else seed
