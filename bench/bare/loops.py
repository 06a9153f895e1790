"""Training loops of many kinds; each prints its losses as hexadecimal floats, so that one bit's
difference shows.
"""

PRELUDE = """
import copy, io, os, sys, hashlib
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
torch.set_num_threads(1)
def net(width=16):
    return nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Dropout(0.1), nn.Linear(width, 1))
x, y = torch.randn(32, 8), torch.randn(32, 1)
def show(*values):
    print(*[v.hex() if isinstance(v, float) else v for v in values])
def digest(model):
    whole = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    print(hashlib.sha256(whole).hexdigest())
def train(model, optimizer, steps=40):
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        show(loss.item())
    digest(model)
"""

SCRIPTS = {
    "sgd": "m = net(); train(m, torch.optim.SGD(m.parameters(), 0.1))",
    "momentum": "m = net(); train(m, torch.optim.SGD(m.parameters(), 0.1, momentum=0.9, nesterov=True))",
    "adam": "m = net(); train(m, torch.optim.Adam(m.parameters(), 1e-2, amsgrad=True))",
    "adamw_foreach": "m = net(); train(m, torch.optim.AdamW(m.parameters(), 1e-2, foreach=True))",
    "adamw_fused": "m = net(); train(m, torch.optim.AdamW(m.parameters(), 1e-2, fused=True))",
    "rmsprop": "m = net(); train(m, torch.optim.RMSprop(m.parameters(), 1e-2))",
    "long_run": "m = net(); train(m, torch.optim.SGD(m.parameters(), 0.01), steps=3000)",
    "lbfgs": """
m = net(); m.eval(); optimizer = torch.optim.LBFGS(m.parameters(), 0.1, max_iter=4)
def closure():
    optimizer.zero_grad(); loss = F.mse_loss(m(x), y); loss.backward(); return loss
for _ in range(15):
    show(float(optimizer.step(closure)))
digest(m)
""",
    "closure_sgd": """
m = net(); optimizer = torch.optim.SGD(m.parameters(), 0.1)
def closure():
    optimizer.zero_grad(); loss = F.mse_loss(m(x), y); loss.backward(); return loss
for _ in range(40):
    show(float(optimizer.step(closure)))
""",
    "accumulation": """
m = net(); optimizer = torch.optim.Adam(m.parameters(), 1e-2)
for step in range(60):
    loss = F.mse_loss(m(x), y) / 4; loss.backward()
    if step % 4 == 3:
        nn.utils.clip_grad_norm_(m.parameters(), 0.5); optimizer.step(); optimizer.zero_grad(set_to_none=False)
    show(loss.item())
digest(m)
""",
    "gan": """
g, d = net(), net(); a = torch.optim.Adam(g.parameters(), 1e-3); b = torch.optim.Adam(d.parameters(), 1e-3)
for _ in range(40):
    b.zero_grad(); loss_d = d(x).mean() - d(x * g(x).detach()).mean(); loss_d.backward(); b.step()
    a.zero_grad(); loss_g = -d(x * g(x)).mean(); loss_g.backward(); a.step()
    show(loss_d.item(), loss_g.item())
digest(g); digest(d)
""",
    "alternating": """
m = net(); optimizers = [torch.optim.SGD([p], 0.05) for p in m.parameters()]
for step in range(60):
    chosen = optimizers[step % len(optimizers)]
    m.zero_grad(); loss = F.mse_loss(m(x), y); loss.backward(); chosen.step(); show(loss.item())
""",
    "by_hand": """
m = net()
for _ in range(40):
    loss = F.mse_loss(m(x), y); loss.backward()
    with torch.no_grad():
        for p in m.parameters():
            p -= 0.1 * p.grad; p.grad = None
    show(loss.item())
""",
    "autograd_grad": """
m = net(); parameters = list(m.parameters())
for _ in range(40):
    loss = F.mse_loss(m(x), y); gradients = torch.autograd.grad(loss, parameters)
    with torch.no_grad():
        for p, g in zip(parameters, gradients): p.sub_(0.1 * g)
    show(loss.item())
""",
    "functional": """
from torch.func import functional_call, grad, vmap
m = nn.Linear(8, 1); parameters = {k: v.detach() for k, v in m.named_parameters()}
def loss_of(p): return F.mse_loss(functional_call(m, p, (x,)), y)
for _ in range(40):
    g = grad(loss_of)(parameters); parameters = {k: v - 0.1 * g[k] for k, v in parameters.items()}
    show(loss_of(parameters).item())
print(vmap(lambda row: m(row))(x).sum().item().hex())
""",
    "double_backward": """
m = net(); optimizer = torch.optim.SGD(m.parameters(), 0.01)
for _ in range(30):
    optimizer.zero_grad(); inputs = x.clone().requires_grad_()
    out = m(inputs).sum(); (g,) = torch.autograd.grad(out, inputs, create_graph=True)
    loss = g.pow(2).mean() + out.pow(2).mean(); loss.backward(); optimizer.step(); show(loss.item())
""",
    "retain_graph": """
m = net(); optimizer = torch.optim.SGD(m.parameters(), 0.01)
for _ in range(30):
    optimizer.zero_grad(); out = m(x); out.mean().backward(retain_graph=True); F.mse_loss(out, y).backward()
    optimizer.step(); show(out.sum().item())
""",
    "autocast_bf16": """
m = net(); optimizer = torch.optim.AdamW(m.parameters(), 1e-2)
for _ in range(40):
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16): loss = F.mse_loss(m(x), y)
    loss.backward(); optimizer.step(); show(loss.item())
""",
    "grad_scaler": """
m = net(); optimizer = torch.optim.SGD(m.parameters(), 0.1); scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
for _ in range(40):
    optimizer.zero_grad(); loss = F.mse_loss(m(x), y); scaler.scale(loss).backward()
    scaler.unscale_(optimizer); scaler.step(optimizer); scaler.update(); show(loss.item(), scaler.get_scale())
""",
    "checkpointed": """
from torch.utils.checkpoint import checkpoint
m = net(); optimizer = torch.optim.SGD(m.parameters(), 0.1)
for i in range(40):
    optimizer.zero_grad(); loss = F.mse_loss(checkpoint(m, x, use_reentrant=bool(i % 2)) if i % 2 == 0 else m(x), y)
    loss.backward(); optimizer.step(); show(loss.item())
""",
    "tensor_hooks": """
m = net(); optimizer = torch.optim.SGD(m.parameters(), 0.1); seen = []
for p in m.parameters(): p.register_hook(lambda g: seen.append(float(g.sum())) or g * 0.5)
train(m, optimizer); print(len(seen), sum(seen).hex())
""",
    "module_hooks": """
m = net(); calls = []
m.register_forward_pre_hook(lambda *a: calls.append("pre")); m.register_forward_hook(lambda *a: calls.append("post"))
m.register_full_backward_hook(lambda *a: calls.append("back"))
train(m, torch.optim.SGD(m.parameters(), 0.1)); print(len(calls), calls[:6])
""",
    "global_hooks": """
calls = []
handle = nn.modules.module.register_module_forward_hook(lambda module, i, o: calls.append(type(module).__name__))
m = net(); train(m, torch.optim.SGD(m.parameters(), 0.1)); handle.remove(); print(len(calls))
""",
    "optimizer_hooks": """
m = net(); optimizer = torch.optim.SGD(m.parameters(), 0.1); calls = []
optimizer.register_step_pre_hook(lambda *a: calls.append("pre")); optimizer.register_step_post_hook(lambda *a: calls.append("post"))
train(m, optimizer); print(len(calls), calls[:3])
""",
    "in_backward": """
m = net(); optimizers = {p: torch.optim.SGD([p], 0.1) for p in m.parameters()}
def step(p): optimizers[p].step(); optimizers[p].zero_grad()
for p in m.parameters(): p.register_post_accumulate_grad_hook(step)
for _ in range(40):
    loss = F.mse_loss(m(x), y); loss.backward(); show(loss.item())
digest(m)
""",
    "custom_function": """
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a): ctx.save_for_backward(a); return a * a
    @staticmethod
    def backward(ctx, g): (a,) = ctx.saved_tensors; return 2 * a * g
m = net(); optimizer = torch.optim.SGD(m.parameters(), 0.01)
for _ in range(40):
    optimizer.zero_grad(); loss = Square.apply(m(x)).mean(); loss.backward(); optimizer.step(); show(loss.item())
""",
    "saved_tensors_hooks": """
m = net(); optimizer = torch.optim.SGD(m.parameters(), 0.1); counts = [0, 0]
def pack(t): counts[0] += 1; return t.clone()
def unpack(t): counts[1] += 1; return t
with torch.autograd.graph.saved_tensors_hooks(pack, unpack): train(m, optimizer)
print(counts)
""",
    "function_mode": """
from torch.overrides import TorchFunctionMode
class Count(TorchFunctionMode):
    n = 0
    def __torch_function__(self, f, types, args=(), kwargs=None): Count.n += 1; return f(*args, **(kwargs or {}))
m = net()
with Count(): train(m, torch.optim.SGD(m.parameters(), 0.1), steps=300)
print(Count.n)
""",
    "dispatch_mode": """
from torch.utils._python_dispatch import TorchDispatchMode
class Count(TorchDispatchMode):
    n = 0
    def __torch_dispatch__(self, f, types, args=(), kwargs=None): Count.n += 1; return f(*args, **(kwargs or {}))
m = net()
with Count(): train(m, torch.optim.Adam(m.parameters(), 1e-2), steps=100)
print(Count.n)
""",
    "inference_and_training": """
m = net(); optimizer = torch.optim.SGD(m.parameters(), 0.1)
for step in range(40):
    m.eval()
    with torch.inference_mode(): show(m(x).sum().item())
    m.train(); optimizer.zero_grad(); loss = F.mse_loss(m(x), y); loss.backward(); optimizer.step(); show(loss.item())
""",
    "schedulers": """
m = net(); optimizer = torch.optim.SGD(m.parameters(), 0.1)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=50)
for _ in range(50):
    optimizer.zero_grad(); loss = F.mse_loss(m(x), y); loss.backward(); optimizer.step(); schedule.step()
    show(loss.item(), schedule.get_last_lr()[0])
""",
    "random_states": """
import random, numpy
random.seed(1); numpy.random.seed(2); m = net(); train(m, torch.optim.SGD(m.parameters(), 0.1), 80)
print(random.random().hex(), float(numpy.random.rand()).hex(), torch.rand(1).item().hex())
print(hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest())
""",
    "rnn": """
m = nn.LSTM(8, 16); head = nn.Linear(16, 1); optimizer = torch.optim.Adam([*m.parameters(), *head.parameters()], 1e-2)
for _ in range(30):
    optimizer.zero_grad(); out, _ = m(torch.randn(12, 5, 8)); loss = head(out).pow(2).mean(); loss.backward()
    optimizer.step(); show(loss.item())
""",
    "transformer": """
m = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)
optimizer = torch.optim.AdamW(m.parameters(), 1e-3)
for _ in range(20):
    optimizer.zero_grad(); loss = m(torch.randn(4, 6, 16)).pow(2).mean(); loss.backward(); optimizer.step(); show(loss.item())
""",
    "convolution": """
m = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 2))
optimizer = torch.optim.SGD(m.parameters(), 0.05)
for _ in range(30):
    optimizer.zero_grad(); loss = F.cross_entropy(m(torch.randn(4, 3, 8, 8)), torch.tensor([0, 1, 0, 1]))
    loss.backward(); optimizer.step(); show(loss.item())
print(m[1].num_batches_tracked.item(), m[1].running_mean.sum().item().hex())
""",
    "weight_norm": """
from torch.nn.utils.parametrizations import weight_norm
m = nn.Sequential(weight_norm(nn.Linear(8, 8)), nn.Tanh(), nn.Linear(8, 1)); train(m, torch.optim.SGD(m.parameters(), 0.1))
""",
    "scripted": "m = torch.jit.script(nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 1))); "
    "train(m, torch.optim.SGD(m.parameters(), 0.1))",
    "data_parallel_module": "m = nn.DataParallel(net()); train(m, torch.optim.SGD(m.parameters(), 0.1))",
    "method_model": """
class Model(nn.Module):
    def __init__(self): super().__init__(); self.inner = net()
    def training_loss(self, a, b): return F.mse_loss(self.inner(a), b)
m = Model(); optimizer = torch.optim.SGD(m.parameters(), 0.1)
for _ in range(40):
    optimizer.zero_grad(); loss = m.training_loss(x, y); loss.backward(); optimizer.step(); show(loss.item())
""",
    "called_by_class": """
m = net(); optimizer = torch.optim.SGD(m.parameters(), 0.1)
for _ in range(40):
    optimizer.zero_grad(); loss = F.mse_loss(nn.Sequential.forward(m, x), y); torch.autograd.backward([loss], [torch.tensor(1.0)])
    torch.optim.SGD.step(optimizer); show(loss.item())
""",
    "deepcopied": """
m = net(); ema = copy.deepcopy(m); optimizer = torch.optim.SGD(m.parameters(), 0.1)
for _ in range(40):
    optimizer.zero_grad(); loss = F.mse_loss(m(x), y); loss.backward(); optimizer.step()
    with torch.no_grad():
        for a, b in zip(ema.parameters(), m.parameters()): a.lerp_(b, 0.1)
    show(loss.item())
digest(copy.deepcopy(m)); digest(ema)
""",
    "pickled": """
import pickle
class Model(nn.Module):
    def __init__(self): super().__init__(); self.a = nn.Linear(8, 1)
    def forward(self, i): return self.a(i)
    def __getstate__(self): return self.__dict__
m = Model(); train(m, torch.optim.SGD(m.parameters(), 0.1))
open("model.pickle", "wb").write(pickle.dumps(m)); print(sorted(vars(m))); print(len(pickle.dumps(m)))
whole = io.BytesIO(); torch.save(m.state_dict(), whole); open("state.pt", "wb").write(whole.getvalue())
""",
    "attributes": """
class Odd(nn.Module):
    def __init__(self): super().__init__(); self.layer = nn.Linear(8, 1); self.reads = 0
    def __getattr__(self, name):
        if name == "nothing": raise AttributeError(name)
        return super().__getattr__(name)
    def __setattr__(self, name, value): super().__setattr__(name, value)
    def forward(self, i): self.reads += 1; return self.layer(i)
m = Odd(); train(m, torch.optim.SGD(m.parameters(), 0.1)); print(m.reads, sorted(k for k in m.__dict__))
""",
    "exception_in_forward": """
class Model(nn.Module):
    def __init__(self): super().__init__(); self.a = nn.Linear(8, 1); self.n = 0
    def forward(self, i):
        self.n += 1
        if self.n == 20: raise ValueError("too far")
        return self.a(i)
m = Model(); train(m, torch.optim.SGD(m.parameters(), 0.1))
""",
    "exception_in_backward": """
class Bad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a): return a.clone()
    @staticmethod
    def backward(ctx, g): raise RuntimeError("no gradient today")
m = net(); optimizer = torch.optim.SGD(m.parameters(), 0.1)
for step in range(20):
    optimizer.zero_grad(); out = m(x); loss = (Bad.apply(out) if step == 15 else out).mean(); loss.backward(); optimizer.step()
    show(loss.item())
""",
    "exception_in_closure": """
m = net(); optimizer = torch.optim.SGD(m.parameters(), 0.1); count = 0
def closure():
    global count
    count += 1
    if count == 10: raise KeyError("closure")
    loss = F.mse_loss(m(x), y); loss.backward(); return loss
while True: optimizer.step(closure)
""",
    "caught_exceptions": """
m = net(); optimizer = torch.optim.SGD(m.parameters(), 0.1)
for step in range(40):
    try:
        loss = F.mse_loss(m(x if step % 5 else torch.randn(3, 3)), y)
    except RuntimeError as error: print("caught", str(error)[:40]); continue
    optimizer.zero_grad(); loss.backward(); optimizer.step(); show(loss.item())
""",
    "nan": "y[0] = float('nan'); m = net(); train(m, torch.optim.SGD(m.parameters(), 0.1))",
    "anomaly": "torch.autograd.set_detect_anomaly(True); m = net(); train(m, "
    "torch.optim.SGD(m.parameters(), 0.1), 10)",
    "deterministic": "torch.use_deterministic_algorithms(True); m = net(); train(m, "
    "torch.optim.SGD(m.parameters(), 0.1))",
    "float64": "torch.set_default_dtype(torch.float64); x, y = x.double(), y.double(); m = net(); "
    "train(m, torch.optim.SGD(m.parameters(), 0.1))",
    "sparse": """
m = nn.Embedding(50, 4, sparse=True); optimizer = torch.optim.SparseAdam(list(m.parameters()), 0.1)
for _ in range(30):
    optimizer.zero_grad(); loss = m(torch.randint(50, (8,))).pow(2).sum(); loss.backward(); optimizer.step(); show(loss.item())
""",
    "last_line_open": "m = net(); train(m, torch.optim.SGD(m.parameters(), 0.1), 5); sys.stdout.write('no "
    "newline'); sys.stderr.write('nor here')",
}
