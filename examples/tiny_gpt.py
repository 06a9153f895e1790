"""A small GPT that learns to write like Python's own documentation. Runs on a CPU in about half a
minute.

    gputop run python examples/tiny_gpt.py
    gputop run torchrun --nproc-per-node 2 examples/tiny_gpt.py
    gputop run python examples/tiny_gpt.py --slow-data 20      # what an input-bound run looks like
    gputop run torchrun --nproc-per-node 4 examples/tiny_gpt.py --slow-data 80 --slow-rank 2

Nothing in it knows of gputop.
"""

import argparse
import math
import os
import pydoc
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--eval-every", type=int, default=100)
    parser.add_argument(
        "--slow-data",
        type=float,
        default=0,
        metavar="MS",
        help="pretend that a batch takes this long to load",
    )
    parser.add_argument(
        "--slow-rank",
        type=int,
        metavar="RANK",
        help="pretend so on this rank alone, as if its shard lay on a slow disk",
    )
    return parser.parse_args()


class Text(Dataset):
    """Windows of characters out of the documentation of a few standard modules."""

    def __init__(self, context, slow_ms=0.0, batch=1):
        names = (
            "argparse",
            "collections",
            "functools",
            "itertools",
            "json",
            "logging",
            "pathlib",
            "random",
            "string",
        )
        text = "".join(pydoc.plain(pydoc.render_doc(name)) for name in names)
        letters = sorted(set(text))
        index = {letter: i for i, letter in enumerate(letters)}
        self.data = torch.tensor([index[letter] for letter in text])
        self.vocabulary = len(letters)
        self.context = context
        self.pause_s = slow_ms / 1e3 / batch

    def __len__(self):
        return len(self.data) - self.context - 1

    def __getitem__(self, i):
        if self.pause_s:
            time.sleep(self.pause_s)
        window = self.data[i : i + self.context + 1]
        return {"input_ids": window[:-1], "labels": window[1:]}


class Block(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        batch, length, width = x.shape
        heads = (
            self.qkv(self.norm1(x))
            .view(batch, length, 3, self.heads, width // self.heads)
            .permute(2, 0, 3, 1, 4)
        )
        attended = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class TinyGPT(nn.Module):
    def __init__(self, vocabulary, context, width, layers):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, input_ids, labels):
        x = self.tokens(input_ids) + self.positions.weight[: input_ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def forever(loader):
    epoch = 0
    while True:
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


@torch.no_grad()
def evaluate(model, loader, device, batches=5):
    model.eval()
    losses = []
    for _, batch in zip(range(batches), loader):
        losses.append(model(**{k: v.to(device) for k, v in batch.items()}).item())
    model.train()
    return sum(losses) / len(losses)


def main():
    options = arguments()
    torch.manual_seed(0)
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    rank = int(os.environ.get("RANK", 0))
    device = (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        if torch.cuda.is_available()
        else torch.device("cpu")
    )
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if ranks > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    slow_here = options.slow_rank in (None, rank)
    data = Text(options.context, options.slow_data if slow_here else 0, options.batch)
    sampler = DistributedSampler(data) if ranks > 1 else None
    loader = DataLoader(
        data, options.batch, shuffle=sampler is None, sampler=sampler, num_workers=options.workers
    )
    held_out = DataLoader(data, options.batch)

    plain = TinyGPT(data.vocabulary, options.context, options.width, options.layers).to(device)
    model = DistributedDataParallel(plain) if ranks > 1 else plain
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 50))
    if rank == 0:
        parameters = sum(p.numel() for p in plain.parameters())
        print(f"{parameters:,} parameters, {len(data):,} windows, {ranks} rank(s) on {device.type}")

    batches = forever(loader)
    for step in range(1, options.steps + 1):
        batch = {k: v.to(device, non_blocking=True) for k, v in next(batches).items()}
        loss = model(**batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warm_up.step()
        optimizer.zero_grad()
        if step % 50 == 0 and rank == 0:
            print(
                f"step {step:5d}  loss {loss.item():.3f}  perplexity {math.exp(loss.item()):7.2f}"
            )
        if options.eval_every and step % options.eval_every == 0:
            held_out_loss = evaluate(plain, held_out, device)
            if rank == 0:
                print(f"            held-out loss {held_out_loss:.3f}")
    if rank == 0:
        with tempfile.TemporaryDirectory() as folder:
            torch.save(
                {"model": plain.state_dict(), "optimizer": optimizer.state_dict()},
                os.path.join(folder, "tiny_gpt.pt"),
            )
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
