"""A Trainer class in a file of its own, as in many a repository."""

import copy
import time

import torch
from shape import Cost, on
from torch.nn import functional as F


class Trainer:
    def __init__(self, model, optimizer, batches, *, tokenizer, valid, every=4):
        self.model, self.optimizer, self.batches = model, optimizer, batches
        self.tokenizer, self.valid, self.every = tokenizer, valid, every
        self.ema, self.cost, self.done, self.handles = copy.deepcopy(model), Cost(), 0, []
        self.scaler = (
            torch.amp.GradScaler("cpu", init_scale=2.0**20)
            if on("skipped", "clean_skipped")
            else None
        )

    def evaluate(self):
        self.model.eval()
        with torch.no_grad():
            losses = [self.loss(batch) for batch in self.valid]
        self.model.train()
        return sum(losses) / len(losses)

    def loss(self, batch):
        logits = self.model(batch[:, :-1])
        if on("log_zero") and self.done > 40:
            odds = F.softmax(logits * 300, -1).gather(-1, batch[:, 1:, None])
            return -torch.log(odds).mean()
        if on("clean_log_zero") and self.done > 40:
            odds = F.softmax(logits * 3, -1).gather(-1, batch[:, 1:, None])
            return -torch.log(odds + 1e-6).mean()
        return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    def average(self):
        if on("deepcopy"):
            with self.cost:
                fresh = copy.deepcopy(self.model)  # at: deepcopy
                for old, new in zip(self.ema.parameters(), fresh.parameters(), strict=True):
                    new.data.mul_(0.01).add_(old.data, alpha=0.99)  # at: deepcopy
                self.ema = fresh
        elif on("clean_deepcopy"):
            with torch.no_grad():
                torch._foreach_lerp_(
                    list(self.ema.parameters()), list(self.model.parameters()), 0.01
                )

    def fit(self, steps):
        for self.done in range(steps):
            batch = self.batches[self.done % len(self.batches)]
            if on("tokenize"):
                with self.cost:
                    batch = self.tokenizer.batch(8, 48)
            if on("bad_data") and self.done == 77:
                self.model.scale.data.fill_(float("nan"))
            for part in batch.chunk(2) if on("accumulate", "clean_no_zero") else [batch]:
                with torch.autocast("cpu", torch.bfloat16, enabled=on("clean_bf16")):
                    loss = self.loss(part)
                if self.scaler:
                    loss = loss * (1e38 if on("skipped") else 1.0)
                    self.scaler.scale(loss).backward()
                else:
                    loss.backward()
            if self.scaler:
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                self.optimizer.step()
            if not on("no_zero"):
                self.optimizer.zero_grad()
            self.average()
            if on("hooks") or (on("clean_hooks") and self.done < 4):
                self.handles.append(self.model.register_forward_hook(look))
            if on("eval_often") and self.done % self.every == 0:
                with self.cost:
                    self.evaluate()  # at: eval_often
            if on("clean_eval_often") and self.done % 100 == 99:
                self.evaluate()
            if on("gc_each"):
                import gc

                with self.cost:
                    gc.collect()  # at: gc_each
            if on("print_slow"):
                with self.cost:
                    report(self.done, loss)  # at: print_slow


def look(module, arguments, output):
    """Statistics of an activation."""
    return output + 0 * output.detach().std()


def report(step, loss):
    for _ in range(8):
        print(f"{step} {loss}", flush=True)  # at: print_slow
        time.sleep(0.001)  # at: print_slow
