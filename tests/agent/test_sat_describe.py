"""What the hello says of real models, optimizers, loaders and processes."""

import json

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset  # noqa: E402

from gputop_agent.description import (  # noqa: E402
    describe_loader,
    describe_model,
    describe_optimizer,
    describe_parallel,
    describe_process,
    horizon,
)


class Config:
    def __init__(self, **fields):
        self.__dict__.update(fields)

    @property
    def hidden_size(self):
        raise AssertionError("ran a property of the user's")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight  # tied
        self.half = nn.Linear(4, 2).half()
        self.norm = nn.BatchNorm1d(4)
        self.embed.weight.requires_grad_(False)
        self.config = Config(
            n_embd=4, num_hidden_layers=1, vocab_size=10, model_type="net", text_config=None
        )


def test_model_counts_each_parameter_once_by_dtype():
    found = describe_model.describe_model([Net()])
    assert found["class"] == "Net" and found["roots"] == ["Net"]
    assert found["parameters"] == 40 + 10 + 8
    assert found["by_dtype"] == {"float32": 48, "float16": 10}
    assert found["trainable"] == 18 and found["trainable_by_dtype"] == {"float16": 10, "float32": 8}
    assert found["modules"]["Linear"] == 2 and found["modules"]["BatchNorm1d"] == 1
    assert found["buffer_bytes"] == 4 * 4 * 2 + 8
    assert found["config"] == {"hidden_size": 4, "layers": 1, "vocab_size": 10, "model_type": "net"}
    assert not found["truncated"] and not found["sharded"]
    json.dumps(found)


def test_wrappers_are_seen_through():
    wrapped = nn.DataParallel(Net())
    compiled = torch.compile(wrapped)
    assert describe_model.wrappers(compiled) == ["OptimizedModule", "DataParallel"]
    assert type(describe_model.unwrap(compiled)) is Net
    assert describe_model.describe_model([compiled])["class"] == "Net"


def test_a_large_model_is_cut_in_time_and_says_so():
    model = nn.Sequential(*[nn.Linear(1, 1) for _ in range(600)])
    assert describe_model.describe_model([model], budget_ns=0)["truncated"]
    assert describe_model.describe_model([model], budget_ns=10**10)["parameters"] == 1200


def test_no_roots_no_model_and_lazy_parameters_are_left_out():
    assert describe_model.describe_model([]) is None
    found = describe_model.describe_model([nn.Sequential(nn.LazyLinear(3), nn.Linear(1, 1))])
    assert found["parameters"] == 2


def test_optimizer_flags_and_state():
    model = nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=torch.tensor(0.5), betas=(0.8, 0.9), weight_decay=0.1
    )
    assert describe_optimizer.describe_optimizer([optimizer])["state"] == {}
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    found = describe_optimizer.describe_optimizer(
        [optimizer, torch.optim.SGD(model.parameters(), 1e-3)]
    )
    assert found["class"] == "AdamW" and found["lr"] == 0.5 and found["betas"] == [0.8, 0.9]
    assert found["weight_decay"] == 0.1 and found["fused"] is None and found["foreach"] is None
    assert found["parameters"] == 12 and found["groups"] == 1 and found["others"] == ["SGD"]
    assert found["state"] == {"exp_avg": "float32", "exp_avg_sq": "float32"}
    json.dumps(found)
    assert describe_optimizer.describe_optimizer([]) is None


def test_amp_is_told_by_dtype():
    assert describe_optimizer.describe_amp(False, False) == {
        "autocast": False,
        "dtype": None,
        "grad_scaler": False,
    }
    assert describe_optimizer.describe_amp(torch.bfloat16, True)["dtype"] == "bfloat16"
    assert describe_optimizer.describe_amp(True, None)["autocast"] is True


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(10))

    def __len__(self):
        raise AssertionError("asked a stream for its length")


def test_loader_settings():
    data = Subset(TensorDataset(torch.zeros(20, 2)), range(12))
    found = describe_loader.describe_loader(
        DataLoader(data, batch_size=5, shuffle=True, num_workers=2), "train.py:9"
    )
    assert found["batch_size"] == 5 and found["num_workers"] == 2 and found["prefetch_factor"] == 2
    assert (
        found["dataset"] == "Subset of TensorDataset"
        and found["dataset_length"] == 12
        and found["length"] == 3
    )
    assert (
        found["sampler"] == "RandomSampler"
        and found["site"] == "train.py:9"
        and not found["iterable"]
    )
    assert found["pin_memory"] is False and found["persistent_workers"] is False
    assert describe_loader.describe_loader(None) is None


def test_a_stream_is_not_asked_for_its_length():
    loader = DataLoader(Stream(), batch_size=2)
    found = describe_loader.describe_loader(loader)
    assert found["iterable"] and found["length"] is None and found["dataset_length"] is None
    assert not getattr(loader, "_IterableDataset_len_called", None)


def test_environment_carries_what_matters_and_no_secret():
    environ = {
        "OMP_NUM_THREADS": "4",
        "NCCL_DEBUG": "INFO",
        "NCCL_API_KEY": "hidden",
        "TORCH_HUB_TOKEN": "hidden",
        "HF_TOKEN": "hidden",
        "AWS_SECRET_ACCESS_KEY": "hidden",
        "HOME": "/home/someone",
        "PYTORCH_CUDA_ALLOC_CONF": "x" * 1000,
    }
    found = describe_process.describe_environment(environ)
    assert set(found) == {"OMP_NUM_THREADS", "NCCL_DEBUG", "PYTORCH_CUDA_ALLOC_CONF"}
    assert "hidden" not in json.dumps(found) and len(found["PYTORCH_CUDA_ALLOC_CONF"]) == 300


@pytest.mark.parametrize(
    ("names", "launcher"),
    [
        (["TORCHELASTIC_RUN_ID", "RANK"], "torchrun"),
        (["TORCHELASTIC_RUN_ID", "ACCELERATE_MIXED_PRECISION"], "accelerate"),
        (["SLURM_PROCID", "SLURM_STEP_ID", "RANK"], "srun"),
        (["OMPI_COMM_WORLD_RANK"], "mpirun"),
        (["RANK", "CROSS_RANK"], "deepspeed"),
        (["RANK", "WORLD_SIZE"], "none"),
    ],
)
def test_launcher_is_known_by_what_it_leaves_in_the_environment(names, launcher):
    assert describe_process.describe_launcher(dict.fromkeys(names, "0")) == launcher


def test_flags_and_device_do_not_initialise_cuda():
    flags = describe_process.describe_flags(torch)
    assert flags["matmul_precision"] in ("highest", "high", "medium") and flags["anomaly"] is False
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        assert describe_process.describe_flags(torch)["anomaly"] is True
    found = describe_process.describe_device(torch, nn.Linear(1, 1).weight, cuda=False)
    assert found["device"] == "cpu" and found["device_uuid"] is None
    assert not torch.cuda.is_initialized()


HF_LOOP = """
class State: max_steps = 400
class Trainer:
    state = State()
    def train(self, seen):
        batch = object()
        return seen()
"""


def test_total_steps_come_from_the_trainer_on_the_stack_without_keeping_its_locals():
    import gc
    import weakref

    class Batch:
        pass

    scope = {}
    exec(
        compile(
            HF_LOOP.replace("object()", "Batch()"),
            "/x/site-packages/transformers/trainer.py",
            "exec",
        ),
        scope,
    )
    scope["Batch"] = Batch
    alive = []

    def seen():
        alive.append(weakref.ref(next(o for o in gc.get_objects() if type(o) is Batch)))
        return horizon.total_steps()

    assert scope["Trainer"]().train(seen) == 400
    assert alive[0]() is None
    assert horizon.total_steps() is None


@pytest.fixture
def one_rank(tmp_path):
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()


def test_sharded_models_are_known_by_version_and_settings(one_rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("dp",))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    fully_shard(model[0], mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    found = describe_parallel.describe_parallel([model], [])
    assert found["backend"] == "gloo" and found["mesh"] == {"names": ["dp"], "shape": [1]}
    assert found["fsdp"]["version"] == 2 and found["fsdp"]["units"] == 2
    assert found["fsdp"]["mixed_precision"] == {"param_dtype": "bfloat16"}
    assert found["fsdp"]["reshard_after_forward"] is False and found["fsdp"]["cpu_offload"] is False
    assert describe_model.describe_model([model])["sharded"]

    first = FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu"))
    found = describe_parallel.describe_parallel([first], [])["fsdp"]
    assert found["version"] == 1 and found["units"] == 1 and found["sharding"] == "NO_SHARD"
    assert describe_model.describe_model([first])["class"] == "Linear"
    assert describe_parallel.rank_and_world() == (0, 1)


def test_one_process_has_no_parallelism():
    assert describe_parallel.describe_parallel([nn.Linear(1, 1)], []) == {}
    assert describe_parallel.rank_and_world() is None
