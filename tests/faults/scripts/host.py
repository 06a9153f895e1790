"""A small training whose Python side has one fault of choice (environment variable FAULT) or none.

The last line printed is what the fault cost: {"truth_ms_per_step": ..., "steps": ...}; without a
cost, nothing.
"""

import json
import os
import statistics
import time
import warnings

import torch
from torch import nn

warnings.simplefilter("ignore")
FAULT = os.environ.get("FAULT", "none")
COMPILED = FAULT in ("recompiles", "graph_breaks", "clean_compile")
DYNAMO = COMPILED or FAULT == "profiler"  # torch.profiler imports it, too
STEPS = int(os.environ.get("STEPS", "200"))
SETTLED = 50
PERIOD = 20
torch.set_num_threads(1)
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self, layers, width):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        for layer in self.layers:  # what comes out of 120 layers is as large as what goes in
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")

    def forward(self, x):
        x = torch.relu(self.layers[0](x))
        if FAULT == "graph_breaks":
            print(end="")
        for layer in self.layers[1:]:
            x = torch.relu(layer(x))
        return x


def draw_histogram():
    time.sleep(0.06)


def make_model():
    many = FAULT in ("foreach", "clean_fused")
    net = Net(120, 24) if many else Net(4, 192)
    if COMPILED:
        return net, torch.compile(net, backend="eager", dynamic=False)
    return net, net


def rows(step):
    """Samples of a batch: of other sizes from step 60 on where the fault is recompilation."""
    return 64 + 3 * (step - 59) if FAULT == "recompiles" and 60 <= step < 67 else 64


def fused_ms(parameters):
    """What the same update takes when it is fused, by the function below the optimizer."""
    from torch.optim.adamw import adamw

    tensors = [p.detach().clone() for p in parameters]
    zeros = [[torch.zeros_like(p) for p in tensors] for _ in range(3)]
    steps = [torch.tensor(1.0) for _ in tensors]
    took = []
    for _ in range(20):
        begin = time.perf_counter()
        adamw(tensors, *zeros, [], steps, fused=True, amsgrad=False, beta1=0.9, beta2=0.999,
              lr=1e-3, weight_decay=0.01, eps=1e-8, maximize=False)  # fmt: skip
        took.append(time.perf_counter() - begin)
    return statistics.median(took) * 1e3


def train(net, model, optimizer):
    """Times of forward and of the update of each step, in ms, and what the periodic work took in
    all.
    """
    forwards, updates, lost_ms = [], [], 0.0
    width = net.layers[0].in_features
    for step in range(STEPS):
        inputs = torch.randn(rows(step), width)
        begin = time.perf_counter()
        outputs = model(inputs)
        forwards.append((time.perf_counter() - begin) * 1e3)
        loss = nn.functional.mse_loss(outputs, inputs)
        loss.backward()
        begin = time.perf_counter()
        optimizer.step()
        updates.append((time.perf_counter() - begin) * 1e3)
        optimizer.zero_grad()
        if FAULT == "periodic" and step % PERIOD == PERIOD - 1:
            begin = time.perf_counter()
            draw_histogram()
            lost_ms += (time.perf_counter() - begin) * 1e3
    return forwards, updates, lost_ms


def main():
    if not DYNAMO:
        import eager  # noqa: F401
    net, model = make_model()
    if FAULT == "foreach":
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, foreach=False)
    else:
        fused = True if FAULT == "clean_fused" else None
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=fused)
    if FAULT == "anomaly":
        torch.autograd.set_detect_anomaly(True)
    if FAULT == "profiler":
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            train(net, model, optimizer)
        return
    forwards, updates, lost_ms = train(net, model, optimizer)
    truth = {}
    if FAULT == "periodic":
        truth = lost_ms / STEPS
    elif FAULT == "recompiles":
        settled = forwards[SETTLED:]
        truth = sum(ms - statistics.median(settled) for ms in settled[10:17]) / len(settled)
    elif FAULT == "foreach":
        truth = statistics.median(updates) - fused_ms(net.parameters())
    if truth:
        print(json.dumps({"truth_ms_per_step": truth, "steps": STEPS}))


if __name__ == "__main__":
    main()
