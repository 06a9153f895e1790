"""Loaders, worker processes and several ranks; the prelude is that of ``loops``."""

from bench.bare.loops import PRELUDE as LOOPS

PRELUDE = (
    LOOPS
    + """
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
class Numbers(Dataset):
    def __len__(self): return 64
    def __getitem__(self, i): return torch.full((8,), float(i)), torch.tensor([i / 64.0])
def fit(loader, epochs=2, m=None):
    m = m or net(); optimizer = torch.optim.SGD(m.parameters(), 0.001)
    for _ in range(epochs):
        for a, b in loader:
            optimizer.zero_grad(); loss = F.mse_loss(m(a), b); loss.backward(); optimizer.step(); show(loss.item())
    digest(m)
"""
)

_RANKS = """
import torch.distributed as dist, torch.multiprocessing as mp
def work(rank, port):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(0)
    {body}
    dist.destroy_process_group()
def free_port():
    import socket
    with socket.socket() as s: s.bind(("127.0.0.1", 0)); return str(s.getsockname()[1])
if __name__ == "__main__":
    import logging
    logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)  # tells process ids and the time
    mp.spawn(work, (free_port(),), 2)
"""


def _ranks(body: str) -> str:
    return _RANKS.format(body=body.strip().replace("\n", "\n    "))


SCRIPTS = {
    "loader": "fit(DataLoader(Numbers(), 8, shuffle=True))",
    "loader_workers": "if __name__ == '__main__': fit(DataLoader(Numbers(), 8, shuffle=True, num_workers=2))",
    "loader_persistent": "if __name__ == '__main__': fit(DataLoader(Numbers(), 8, num_workers=2, "
    "persistent_workers=True, prefetch_factor=3), 3)",
    "loader_spawn": "if __name__ == '__main__': fit(DataLoader(Numbers(), 8, num_workers=1, "
    "multiprocessing_context='spawn'), 1)",
    "loader_iterable": """
class Stream(IterableDataset):
    def __iter__(self):
        for i in range(40): yield torch.full((8,), float(i)), torch.tensor([1.0])
fit(DataLoader(Stream(), 8))
""",
    "loader_abandoned": """
if __name__ == "__main__":
    for _ in range(3):
        for a, b in DataLoader(Numbers(), 8, num_workers=1):
            show(a.sum().item()); break
    fit(DataLoader(Numbers(), 16))
""",
    "loader_worker_error": """
class Bad(Numbers):
    def __getitem__(self, i):
        if i == 20: raise OSError("broken file 20")
        return super().__getitem__(i)
try: fit(DataLoader(Bad(), 8))
except OSError as error: print("caught", error)
""",
    "loader_collate": """
def collate(rows): return torch.stack([r[0] for r in rows]).mul(2), torch.stack([r[1] for r in rows])
fit(DataLoader(TensorDataset(x, y), 8, collate_fn=collate, drop_last=True))
""",
    "loader_by_hand": """
m = net(); optimizer = torch.optim.SGD(m.parameters(), 0.001); batches = iter(DataLoader(Numbers(), 8))
while True:
    a, b = next(batches, (None, None))
    if a is None: break
    optimizer.zero_grad(); loss = F.mse_loss(m(a), b); loss.backward(); optimizer.step(); show(loss.item())
""",
    "threads": """
import threading
def work(): m = net(); train(m, torch.optim.SGD(m.parameters(), 0.1))
thread = threading.Thread(target=work); thread.start(); thread.join(); print(threading.active_count() >= 1)
""",
    "two_models_one_after_another": """
for width in (4, 8, 16):
    m = net(width); train(m, torch.optim.Adam(m.parameters(), 1e-2), 25); del m
""",
    "fork_and_train": """
m = net(); train(m, torch.optim.SGD(m.parameters(), 0.1), 20); sys.stdout.flush()
pid = os.fork()
if pid == 0:
    train(m, torch.optim.SGD(m.parameters(), 0.1), 20); sys.stdout.flush(); os._exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])); train(m, torch.optim.SGD(m.parameters(), 0.1), 5)
""",
    "pool": """
import multiprocessing
def square(i): return i * i
if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool: print(pool.map(square, range(10)))
    m = net(); train(m, torch.optim.SGD(m.parameters(), 0.1), 10)
""",
    "ddp": _ranks("""
m = nn.parallel.DistributedDataParallel(net()); optimizer = torch.optim.SGD(m.parameters(), 0.1)
for step in range(25):
    optimizer.zero_grad(); loss = F.mse_loss(m(x + rank), y); loss.backward(); optimizer.step()
    if rank == 0: show(loss.item())
if rank == 0: digest(m)
"""),
    "ddp_uneven": _ranks("""
from torch.distributed.algorithms.join import Join
m = nn.parallel.DistributedDataParallel(net()); optimizer = torch.optim.SGD(m.parameters(), 0.1)
with Join([m]):
    for step in range(20 + 5 * rank):
        optimizer.zero_grad(); loss = F.mse_loss(m(x), y); loss.backward(); optimizer.step()
if rank == 0: digest(m)
"""),
    "fsdp2": _ranks("""
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
m = fully_shard(net(), mesh=init_device_mesh("cpu", (2,))); optimizer = torch.optim.AdamW(m.parameters(), 1e-2)
for step in range(15):
    optimizer.zero_grad(); loss = F.mse_loss(m(x), y); loss.backward(); optimizer.step()
    if rank == 0: show(loss.item())
"""),
    "collectives": _ranks("""
for step in range(20):
    t = torch.full((4,), float(rank + step)); dist.all_reduce(t); out = [torch.zeros(4) for _ in range(2)]; dist.all_gather(out, t)
    if rank == 0: show(t.sum().item(), out[1].sum().item())
"""),
    "rank_fails": _ranks("""
m = net(); optimizer = torch.optim.SGD(m.parameters(), 0.1)
for step in range(10):
    optimizer.zero_grad(); F.mse_loss(m(x), y).backward(); optimizer.step()
if rank == 1: os._exit(5)
"""),
    "trainer": """
import logging, transformers
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
transformers.set_seed(0)
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=64, n_positions=16, bos_token_id=0, eos_token_id=0))
rows = [{"input_ids": [i % 64, 2, 3, 4], "labels": [i % 64, 2, 3, 4]} for i in range(64)]
arguments = TrainingArguments("out", max_steps=12, per_device_train_batch_size=4, logging_steps=4, save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, seed=0)
trainer = Trainer(model, arguments, train_dataset=rows)
trainer.remove_callback(transformers.trainer_callback.PrinterCallback); trainer.train()
show(*[row["loss"] for row in trainer.state.log_history if "loss" in row]); digest(model)
""",
    "lightning": """
import warnings, logging; warnings.filterwarnings("ignore"); logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
import lightning as L
L.seed_everything(0, verbose=False) if "verbose" in L.seed_everything.__code__.co_varnames else L.seed_everything(0)
class Module(L.LightningModule):
    def __init__(self): super().__init__(); self.net = net()
    def training_step(self, batch, _): loss = F.mse_loss(self.net(batch[0]), batch[1]); show(loss.item()); return loss
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), 0.01)
L.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False).fit(Module(), DataLoader(TensorDataset(x, y), 8))
""",
    "accelerate": """
from accelerate import Accelerator
a = Accelerator(cpu=True, gradient_accumulation_steps=2); m = net(); optimizer = torch.optim.AdamW(m.parameters(), 1e-2)
m, optimizer, loader = a.prepare(m, optimizer, DataLoader(TensorDataset(x, y), 4))
for _ in range(3):
    for i, t in loader:
        with a.accumulate(m):
            loss = F.mse_loss(m(i), t); a.backward(loss); optimizer.step(); optimizer.zero_grad(); show(loss.item())
""",
    "compiled": """
m = torch.compile(net(), backend="aot_eager"); train(m, torch.optim.SGD(m.parameters(), 0.1), 15)
from torch._dynamo.utils import counters
print(dict(counters["graph_break"]), counters["stats"]["unique_graphs"])
""",
    "compiled_fullgraph": """
m = net()
@torch.compile(backend="eager", fullgraph=True)
def loss_of(a, b): return F.mse_loss(m(a), b)
optimizer = torch.optim.SGD(m.parameters(), 0.1)
for _ in range(15):
    optimizer.zero_grad(); loss = loss_of(x, y); loss.backward(); optimizer.step(); show(loss.item())
""",
}
