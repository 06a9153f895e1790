"""Training loops of every shape, each with a clock of its own. ``scenarios.py OUT NAME...`` forks
one child a name.

A child writes ``{"pid", "steps", "ms": {phase: time}}`` as one line of OUT. It is a script, not a
test module.
"""

import atexit
import contextlib
import gc
import json
import os
import sys
import tempfile
import threading
import time

import eager  # noqa: F401
import torch
import torch.utils.data
from torch import nn

N = 12
spent = {}
SCENARIOS = {}


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


open_parts = []


@contextlib.contextmanager
def timed(phase):
    """Adds the time of a call, less that of timed calls inside it: the truth that the guest is held
    against.

    The guest's own one-off work (finding the modules, the hello) happens inside some of these calls
    and is left out.
    """
    open_parts.append(0.0)
    start = time.perf_counter() - agent_s()
    try:
        yield
    finally:
        took = (time.perf_counter() - agent_s() - start) * 1e3
        spent[phase] = spent.get(phase, 0.0) + took - open_parts.pop()
        if open_parts:
            open_parts[-1] += took


def agent_s():
    clock = sys.modules.get("gputop_agent.timing.clock")
    return clock.totals[clock.AGENT_NS] / 1e9 if clock else 0.0


def sleep(ms):
    time.sleep(ms / 1e3)


def fetch(source):
    with timed("data"):
        return next(source)


def forward(model, x):
    with timed("forward"):
        return model(x).pow(2).mean()


def backward(loss):
    with timed("backward"):
        loss.backward()


def update(*optimizers):
    for optimizer in optimizers:
        with timed("optimizer"):
            optimizer.step()
        optimizer.zero_grad()


def first_forward_unseen(i):
    """Without a loader nothing tells of training before the first backward, so the forward before
    it is not seen.
    """
    if i == 0:
        spent.pop("forward")


def train(model, x, *optimizers):
    backward(forward(model, x))
    update(*optimizers)


class SlowGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, ms):
        ctx.ms = ms
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        sleep(ctx.ms)
        return gradient, None


class Net(nn.Module):
    """Spends ``forward_ms`` in its forward and ``backward_ms`` in its backward."""

    def __init__(self, forward_ms=4, backward_ms=6):
        super().__init__()
        self.first, self.last = nn.Linear(16, 24), nn.Linear(24, 16)
        self.forward_ms, self.backward_ms = forward_ms, backward_ms

    def forward(self, x):
        sleep(self.forward_ms)
        return self.last(SlowGradient.apply(torch.relu(self.first(x)), self.backward_ms))


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 24), nn.Linear(24, 16)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


class Numbers(torch.utils.data.Dataset):
    def __init__(self, size=100_000, ms=1.0):
        self.size, self.ms = size, ms

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        sleep(self.ms)
        return torch.randn(16)


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        while True:
            sleep(1.0)
            yield torch.randn(16)


class SlowAdamW(torch.optim.AdamW):
    ms = 3.0

    def step(self, closure=None):
        sleep(self.ms)
        return super().step(closure)


def batches(size=4, **options):
    return torch.utils.data.DataLoader(Numbers(), size, **options)


def loop(model, optimizer, loader, steps=N, after=lambda i: None):
    source = iter(loader)
    for i in range(steps):
        train(model, fetch(source), optimizer)
        with timed("other"):
            sleep(2)
        after(i)


@scenario
def plain():
    net = Net()
    loop(net, SlowAdamW(net.parameters()), batches())


@scenario
def clipped():
    net = Net()
    optimizer, source = SlowAdamW(net.parameters()), iter(batches())
    for _ in range(N):
        backward(forward(net, fetch(source)))
        with timed("optimizer"):
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        update(optimizer)


@scenario
def accumulated():
    net = Net()
    optimizer, source = SlowAdamW(net.parameters()), iter(batches())
    for _ in range(N // 2):
        for _ in range(4):
            backward(forward(net, fetch(source)) / 4)
        update(optimizer)
    return N // 2


@scenario
def scaler_skips():
    net = Net()
    optimizer, source = SlowAdamW(net.parameters()), iter(batches())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024)
    for i in range(N):
        x = fetch(source) * (float("inf") if i % 4 == 0 else 1.0)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = forward(net, x)
        backward(scaler.scale(loss))
        with timed("optimizer"):
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.blocks = nn.ModuleList(Net(1, 2) for _ in range(3))
        self.reentrant = reentrant

    def forward(self, x):
        from torch.utils.checkpoint import checkpoint

        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return x


@scenario
def checkpointed():
    net = Checkpointed(False)
    loop(net, SlowAdamW(net.parameters()), batches())


@scenario
def checkpointed_reentrant():
    net = Checkpointed(True)
    loop(net, SlowAdamW(net.parameters()), batches())


def gan_step(generator, critic, step_generator, step_critic, x, detached):
    with timed("forward"):
        with torch.no_grad() if detached else contextlib.nullcontext():
            fake = generator(x)
        loss = critic(fake.detach()).mean() - critic(x).mean()
    step_critic.zero_grad()
    backward(loss)
    update(step_critic)
    with timed("forward"):
        loss = -critic(generator(x)).mean()
    step_generator.zero_grad()
    backward(loss)
    update(step_generator)


@scenario
def gan():
    generator, critic = Net(2, 2), Net(1, 1)
    first, second = SlowAdamW(generator.parameters()), SlowAdamW(critic.parameters())
    source = iter(batches())
    for _ in range(N):
        gan_step(generator, critic, first, second, fetch(source), False)


@scenario
def gan_without_loader():
    generator, critic = Net(2, 2), Net(1, 1)
    first, second = SlowAdamW(generator.parameters()), SlowAdamW(critic.parameters())
    for i in range(N):
        gan_step(generator, critic, first, second, torch.randn(4, 16), False)
        first_forward_unseen(i)


@scenario
def gan_no_grad_generator():
    generator, critic = Net(2, 2), Net(1, 1)
    first, second = SlowAdamW(generator.parameters()), SlowAdamW(critic.parameters())
    source = iter(batches())
    for _ in range(N):
        gan_step(generator, critic, first, second, fetch(source), True)


@scenario
def gan_no_grad_generator_without_loader():
    generator, critic = Net(2, 2), Net(1, 1)
    first, second = SlowAdamW(generator.parameters()), SlowAdamW(critic.parameters())
    for i in range(N):
        gan_step(generator, critic, first, second, torch.randn(4, 16), True)
        first_forward_unseen(i)


def critic_step(generator, critic, optimizer):
    with timed("forward"):
        loss = critic(generator(torch.randn(4, 16)).detach()).mean()
    backward(loss)
    update(optimizer)


@scenario
def critic_updated_twice():
    generator, critic = Net(2, 2), Net(1, 1)
    first, second = SlowAdamW(generator.parameters()), SlowAdamW(critic.parameters())
    source = iter(batches())
    for _ in range(N):
        fetch(source)
        critic_step(generator, critic, second)
        critic_step(generator, critic, second)
        train(lambda x: critic(generator(x)), torch.randn(4, 16), first)


@scenario
def generator_in_each_fifth_step():
    generator, critic = Net(2, 2), Net(1, 1)
    first, second = SlowAdamW(generator.parameters()), SlowAdamW(critic.parameters())
    source = iter(batches())
    for i in range(N):
        fetch(source)
        critic_step(generator, critic, second)
        if i % 5 == 4:
            train(lambda x: critic(generator(x)), torch.randn(4, 16), first)


@scenario
def sharpness_aware():
    net = Net(2, 2)
    optimizer = SlowAdamW(net.parameters())
    for i in range(N):
        x = torch.randn(4, 16)
        backward(forward(net, x))
        moves = [0.05 * parameter.grad for parameter in net.parameters()]
        with torch.no_grad():
            for parameter, move in zip(net.parameters(), moves):
                parameter += move
        optimizer.zero_grad()
        backward(forward(net, x))
        with torch.no_grad():
            for parameter, move in zip(net.parameters(), moves):
                parameter -= move
        update(optimizer)
        if i == 0:
            spent["forward"] /= 2  # of the first step only the second forward is seen


def evaluate(net, fetch_with_gradients, change_mode=True):
    loader = torch.utils.data.DataLoader(Numbers(16), 4)
    if change_mode:
        net.eval()
    if fetch_with_gradients:
        for x in loader:
            with torch.no_grad():
                net(x)
    else:
        with torch.no_grad():
            for x in loader:
                net(x)
    net.train()


def with_eval(fetch_with_gradients, change_mode=True):
    net = Net()
    optimizer, source = SlowAdamW(net.parameters()), iter(batches())
    for i in range(N):
        train(net, fetch(source), optimizer)
        if i % 4 == 2:
            with timed("eval"):
                evaluate(net, fetch_with_gradients, change_mode)


@scenario
def eval_under_no_grad():
    with_eval(False)


@scenario
def eval_fetching_with_gradients():
    with_eval(True)


@scenario
def eval_in_train_mode():
    with_eval(True, change_mode=False)


@scenario
def samples_after_a_judgement():
    """A policy is judged in eval mode, then acts in training mode: what it acts on is a part of the
    next step.
    """
    net = Net()
    optimizer, seen = SlowAdamW(net.parameters()), fetch(iter(batches()))
    for i in range(N):
        with torch.no_grad():
            if i:
                with timed("eval"):
                    net.eval()
                    net(seen)
                    net.train()
            for _ in range(3):
                forward(net, seen)
        train(net, seen, optimizer)


@scenario
def optimizer_in_backward():
    net = Net()
    optimizers = {p: SlowAdamW([p]) for p in net.parameters()}

    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda parameter: update(optimizers[parameter])
        )
    source = iter(batches())
    for _ in range(N):
        backward(forward(net, fetch(source)))


@scenario
def two_optimizers():
    net = Net()
    first, second = SlowAdamW(net.first.parameters()), SlowAdamW(net.last.parameters())
    for i in range(N):
        train(net, torch.randn(4, 16), first, second)
        first_forward_unseen(i)


@scenario
def idle_second_optimizer():
    net, unused = Net(), Plain()
    first, second = SlowAdamW(net.parameters()), SlowAdamW(unused.parameters())
    for i in range(N):
        train(net, torch.randn(4, 16), first)
        first_forward_unseen(i)
    del second


@scenario
def lbfgs():
    net = Net(1, 2)
    optimizer, source = torch.optim.LBFGS(net.parameters(), max_iter=3), iter(batches())
    for _ in range(N):
        x = fetch(source)

        def closure(x=x):
            with timed("other"):
                optimizer.zero_grad()
                loss = forward(net, x)
                backward(loss)
            return loss

        with timed("optimizer"):
            optimizer.step(closure)


@scenario
def closure_without_loader():
    net = Net(1, 2)
    optimizer, x = torch.optim.LBFGS(net.parameters(), max_iter=2), torch.randn(4, 16)

    def closure():
        with timed("other"):
            optimizer.zero_grad()
            loss = forward(net, x)
            backward(loss)
            sleep(2)
        return loss

    for _ in range(N):
        with timed("optimizer"):
            optimizer.step(closure)


@scenario
def schedule_free():
    import schedulefree

    net = Net()
    optimizer = schedulefree.AdamWScheduleFree(net.parameters(), lr=1e-3)
    optimizer.train()
    loop(net, optimizer, batches())


def with_workers(method):
    net = Net()
    loader = torch.utils.data.DataLoader(
        Numbers(ms=0.2), 4, num_workers=2, multiprocessing_context=method
    )
    loop(net, SlowAdamW(net.parameters()), loader)


@scenario
def workers_fork():
    with_workers("fork")


@scenario
def workers_spawn():
    with_workers("spawn")


@scenario
def iterable():
    net = Net()
    loop(net, SlowAdamW(net.parameters()), torch.utils.data.DataLoader(Stream(), 4))


@scenario
def batch_fetched_by_hand():
    net = Net()
    optimizer = SlowAdamW(net.parameters())

    def get_batch():
        with timed("other"):
            sleep(5)
        return torch.randn(4, 16)

    x = get_batch()
    for i in range(N):
        loss = forward(net, x)
        x = get_batch()
        backward(loss)
        update(optimizer)
        first_forward_unseen(i)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tower = Net()

    def encode(self, x):
        return self.tower(x)


@scenario
def called_by_method():
    net = Encoder()
    optimizer, source = SlowAdamW(net.parameters()), iter(batches())
    for _ in range(N):
        train(net.encode, fetch(source), optimizer)


@scenario
def updated_by_hand():
    net, source = Net(), iter(batches())
    for _ in range(N):
        backward(forward(net, fetch(source)))
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= 1e-3 * parameter.grad
                parameter.grad = None


@scenario
def bare_tensors():
    weight, source = None, iter(batches())
    for _ in range(N):
        x = fetch(source)
        weight = torch.randn(x.shape[-1], 8, requires_grad=True) if weight is None else weight
        backward((x @ weight).pow(2).mean())
        with torch.no_grad():
            weight -= 1e-3 * weight.grad
            weight.grad.zero_()


@scenario
def updated_by_hand_late_zero():
    net, source = Net(), iter(batches())
    for _ in range(N):
        x = fetch(source)
        net.zero_grad()
        backward(forward(net, x))
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.sub_(1e-3 * parameter.grad)


@scenario
def updated_through_data():
    """As fastai's own optimizer does: no version tells it, the gradients are filled with zeros."""
    net, source = Net(), iter(batches())
    for _ in range(N):
        backward(forward(net, fetch(source)))
        for parameter in net.parameters():
            parameter.data.add_(parameter.grad.data, alpha=-1e-3)
        for parameter in net.parameters():
            parameter.grad.detach_()
            parameter.grad.zero_()


@scenario
def updated_through_data_late_zero():
    net, source = Net(), iter(batches())
    for _ in range(N):
        x = fetch(source)
        net.zero_grad(set_to_none=False)
        backward(forward(net, x))
        for parameter in net.parameters():
            parameter.data.add_(parameter.grad.data, alpha=-1e-3)


@scenario
def gradients_by_grad():
    net = Net()
    optimizer, source = SlowAdamW(net.parameters()), iter(batches())
    for _ in range(N):
        parameters = list(net.parameters())
        loss = forward(net, fetch(source))
        with timed("backward"):
            gradients = torch.autograd.grad(loss, parameters)
        for parameter, gradient in zip(parameters, gradients):
            parameter.grad = gradient
        update(optimizer)


@scenario
def updated_by_hand_from_grad():
    net, source = Net(), iter(batches())
    for _ in range(N):
        parameters = list(net.parameters())
        loss = forward(net, fetch(source))
        with timed("backward"):
            gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients):
                parameter -= 1e-3 * gradient


@scenario
def in_a_thread():
    thread = threading.Thread(target=plain)
    thread.start()
    thread.join()


@scenario
def a_thread_an_epoch():
    net = Net()
    optimizer = SlowAdamW(net.parameters())
    for _ in range(2):
        thread = threading.Thread(target=loop, args=(net, optimizer, batches(), N // 2))
        thread.start()
        thread.join()
        time.sleep(2.1)


@scenario
def saved():
    net = Net()
    optimizer, source = SlowAdamW(net.parameters()), iter(batches())
    with tempfile.TemporaryDirectory() as folder:
        for i in range(N):
            train(net, fetch(source), optimizer)
            if i % 4 == 2:
                payload = {"model": net.state_dict(), "big": torch.zeros(1000, 1000)}
                with timed("checkpoint"):
                    torch.save(payload, os.path.join(folder, "state.pt"))


@scenario
def very_fast():
    net = nn.Linear(4, 4)
    optimizer, x = torch.optim.SGD(net.parameters(), 1e-3), torch.randn(4, 4)
    for _ in range(3000):
        net(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return 3000


@scenario
def errors_in_between():
    """A forward, a backward and an optimizer step that raise and are tried again."""
    net = Net()
    optimizer, source = SlowAdamW(net.parameters()), iter(batches())
    for i in range(N):
        x = fetch(source)
        if i % 3 == 1:
            with contextlib.suppress(RuntimeError):
                net(torch.randn(4, 5))
            with contextlib.suppress(RuntimeError):
                torch.zeros(1).backward()
            optimizer.param_groups[0]["betas"] = None
            with contextlib.suppress(TypeError):
                optimizer.step()
            optimizer.param_groups[0]["betas"] = (0.9, 0.99)
        train(net, x, optimizer)
    spent.clear()  # what the failed calls took is nobody's truth


@scenario
def manual_boundary():
    gputop_api = sys.modules.get("gputop_agent.api")
    net = Net()
    optimizer, source = SlowAdamW(net.parameters()), iter(batches())
    for _ in range(N):
        for _ in range(2):
            train(net, fetch(source), optimizer)
        gputop_api.step()
    return N + 1  # one boundary was found before the first call


def run(name, out):
    torch.manual_seed(0)
    expected = SCENARIOS[name]() or N
    with open(out, "a") as file:
        file.write(
            json.dumps({"name": name, "pid": os.getpid(), "steps": expected, "ms": spent}) + "\n"
        )


def main():
    out, names = sys.argv[1], sys.argv[2:] or list(SCENARIOS)
    gc.freeze()  # a collection in a child then copies no page of the parent's objects
    for name in names:
        pid = os.fork()
        if pid == 0:
            run(name, out)
            atexit._run_exitfuncs()
            os._exit(0)  # freeing a forked torch takes seconds and shows nothing
        _, status = os.waitpid(pid, 0)
        if status:
            print(f"{name}: wait status {status}", file=sys.stderr)


if __name__ == "__main__":
    main()
