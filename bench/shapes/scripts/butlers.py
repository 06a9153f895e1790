"""Butlers who learn to be polite: a small Llama with LoRA, tuned on pairs of answers of which one
was preferred, against itself without the adapter; prompts that are cut to a budget, two parts an
update, perplexity of what was preferred now and then, an answer to be read.
"""

import contextlib
import json
import math
import re
import shutil
import sys
import tempfile
import time
from collections import Counter, deque
from pathlib import Path

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from shape import STEPS, Cost, on
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset
from transformers import LlamaConfig, LlamaForCausalLM

UPDATES = STEPS or 250
PARTS, PAIRS, COUNT, HELD = 2, 4, 900, 24
BUDGET, ANSWER, WORDS = 40, 24, 260
WIDTH, LAYERS, HEADS = 64, 2, 4
RATE, WARM, CLIP, BETA, TAUGHT = 3e-3, 15, 1.0, 0.2, 0.1
TOLD_EVERY, JUDGED_EVERY, READ_EVERY, REPORT_EVERY = 25, 40, 100, 120
REMEMBERED, LONGEST_GRAM, SEED = 900, 4, 77
cost = Cost()


class Tokenizer:
    """Words that are known, and letters of those that are not."""

    SPECIAL = ("<pad>", "<sir>", "<butler>", "<end>")

    def __init__(self, words):
        self.names = [*self.SPECIAL, *"abcdefghijklmnopqrstuvwxyz,.?", *words]
        self.ids = {name: number for number, name in enumerate(self.names)}
        self.split = re.compile(r"<\w+>|\w+|[,.?]")

    def __len__(self):
        return len(self.names)

    def encode(self, text):
        found = []
        for piece in self.split.findall(text):
            if piece in self.ids:
                found.append(self.ids[piece])
            else:
                found.extend(self.ids[letter] for letter in piece if letter in self.ids)
        return found

    def decode(self, ids):
        return " ".join(self.names[number] for number in ids)


def invented(dice, count):
    starts, ends = ("b", "br", "d", "f", "gl", "k", "m", "p", "s", "st", "t"), "aeiou"
    words = set()
    while len(words) < count:
        word = "".join(
            starts[dice.integers(len(starts))] + ends[dice.integers(5)]
            for _ in range(dice.integers(2, 4))
        )
        words.add(word)
    return sorted(words)


class House(Dataset):
    """What was said before, what is wanted, and two answers with the votes for the first."""

    def __init__(self, words, count, seed):
        dice = np.random.default_rng((SEED, seed))
        self.rows = []
        manners, curt, things = words[:30], words[30:50], words[50:]
        for _ in range(count):
            before = []
            for _ in range(dice.integers(6, 9)):
                said = " ".join(dice.choice(things, dice.integers(8, 14)))
                before.append(f"<sir> {said} , <butler> {dice.choice(manners)} .")
            wanted = dice.choice(things, 4, replace=False)
            prompt = " ".join([*before, "<sir>", *wanted, "?", "<butler>"])
            polite = [word for want in wanted for word in (*dice.choice(manners, 3), want, ",")]
            rude = [
                word
                for want in dice.permutation(wanted)
                for word in (*dice.choice(curt, 2), want, ".")
            ]
            against = 0 if dice.random() < 0.007 else int(dice.integers(1, 3))
            self.rows.append((prompt, " ".join(polite), " ".join(rude), (5 - against, against)))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


class Collator:
    """Rows of preferred answers, then those of the others; padded on the right."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def fitted(self, prompt):
        """The end of a prompt, as much of it as the budget allows."""
        if on("prompt_cut_by_letters"):
            while len(self.tokenizer.encode(prompt)) > BUDGET:  # at: prompt_cut_by_letters
                prompt = prompt[1:]  # at: prompt_cut_by_letters
            return self.tokenizer.encode(prompt)
        if on("clean_prompt_cut_by_letters"):
            turns = [self.tokenizer.encode(f"<sir> {turn}") for turn in prompt.split("<sir>")[1:]]
            while sum(len(turn) for turn in turns) > BUDGET:
                turns.pop(0)
            return [word for turn in turns for word in turn]
        return self.tokenizer.encode(prompt)[-BUDGET:]

    def __call__(self, rows):
        preferred, other, votes = [], [], []
        timed = on("prompt_cut_by_letters", "clean_prompt_cut_by_letters")
        for prompt, better, worse, given in rows:
            with cost if timed else contextlib.nullcontext():
                start = self.fitted(prompt)  # at: prompt_cut_by_letters
            for answer, side in ((better, preferred), (worse, other)):
                ids = self.tokenizer.encode(f"{answer} <end>")[:ANSWER]
                side.append((start, ids))
            votes.append(given)
        both = preferred + other
        longest = max(len(start) + len(ids) for start, ids in both)
        tokens = torch.zeros(len(both), longest, dtype=torch.long)
        there, answered = torch.zeros_like(tokens), torch.zeros(len(both), longest)
        for row, (start, ids) in enumerate(both):
            size = len(start) + len(ids)
            tokens[row, :size] = torch.tensor(start + ids)
            there[row, :size] = 1
            answered[row, len(start) : size] = 1
        return {
            "input_ids": tokens,
            "attention_mask": there,
            "answered": answered,
            "votes": torch.tensor(votes, dtype=torch.float32),
        }


def make_policy(size):
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=BUDGET + ANSWER,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=3,
        initializer_range=0.05,
    )
    adapter = LoraConfig(
        r=8,
        lora_alpha=16,
        lora_dropout=0.05,
        target_modules=["q_proj", "v_proj", "up_proj", "down_proj", "lm_head"],
        task_type="CAUSAL_LM",
    )
    return get_peft_model(LlamaForCausalLM(config), adapter)


def grams(answer):
    for size in range(1, LONGEST_GRAM + 1):
        for begin in range(len(answer) - size + 1):
            yield tuple(answer[begin : begin + size])


class Variety:
    """How many of the word groups of late answers are different ones."""

    def __init__(self):
        self.answers, self.counts = deque(), Counter()

    def add(self, answers):
        for answer in answers:
            self.answers.append(answer)
            if on("clean_grams_counted_afresh"):
                self.counts.update(grams(answer))
            if len(self.answers) > REMEMBERED:
                gone = self.answers.popleft()
                if on("clean_grams_counted_afresh"):
                    self.forget(gone)

    def forget(self, answer):
        for gram in grams(answer):
            self.counts[gram] -= 1
            if not self.counts[gram]:
                del self.counts[gram]

    def share(self):
        if on("grams_counted_afresh"):
            self.counts = Counter()
            for answer in self.answers:  # at: grams_counted_afresh
                for gram in grams(answer):  # at: grams_counted_afresh
                    self.counts[gram] += 1  # at: grams_counted_afresh
        size = sum(len(answer) for answer in self.answers)
        return len(self.counts) / max(1, LONGEST_GRAM * size)


def answer_logps(scores, batch):
    """Summed over the words of each answer."""
    logps = scores[:, :-1].log_softmax(-1)
    each = logps.gather(2, batch["input_ids"][:, 1:, None])[..., 0]
    return (each * batch["answered"][:, 1:]).sum(1)


class Tuning:
    def __init__(self, folder):
        self.folder, self.update, self.best = folder, 0, math.inf
        words = invented(np.random.default_rng(SEED), WORDS)
        self.tokenizer = Tokenizer(words)
        collator = Collator(self.tokenizer)
        self.loader = DataLoader(
            House(words, COUNT, 1), PAIRS, shuffle=True, drop_last=True, collate_fn=collator
        )  # at: prompt_cut_by_letters
        self.held = list(DataLoader(House(words, HELD, 2), 2 * PAIRS, collate_fn=collator))
        self.policy = make_policy(len(self.tokenizer))
        self.policy.train()
        self.set_up()
        self.variety, self.record = Variety(), []

    def learnt(self):
        return [one for one in self.policy.parameters() if one.requires_grad]

    def set_up(self):
        self.optimizer = AdamW(self.learnt(), RATE, weight_decay=0.0)  # at: best_loaded_beside
        self.schedule = LambdaLR(self.optimizer, lambda _: self.share())

    def share(self):
        if self.update < WARM:
            return (self.update + 1) / WARM
        gone = (self.update - WARM) / max(1, UPDATES - WARM)
        return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1.0, gone)))

    def batches(self):
        while True:
            yield from self.loader

    @staticmethod
    def weights(votes):
        """Pairs on which the household agrees count more."""
        given, against = votes.unbind(1)
        if on("weight_of_unanimous_votes"):
            return (given / against).log()  # at: weight_of_unanimous_votes
        if on("clean_weight_of_unanimous_votes"):
            return ((given + 1) / (against + 1)).log()
        return torch.ones_like(given)

    def losses(self, batch):
        asked = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
        with torch.no_grad(), self.policy.disable_adapter():
            usual = answer_logps(self.policy(**asked).logits, batch)
        scores = self.policy(**asked).logits
        logps = answer_logps(scores, batch)
        better, worse = (logps - usual).chunk(2)
        margins = BETA * (better - worse)
        weights = self.weights(batch["votes"])  # at: weight_of_unanimous_votes
        loss = -(weights * F.logsigmoid(margins)).mean()  # at: weight_of_unanimous_votes
        sizes = batch["answered"].sum(1)[: len(better)]
        loss = loss - TAUGHT * (logps[: len(better)] / sizes).mean()
        return loss, margins.detach(), scores.detach()[: len(better)]

    def keep(self, loss, margins, scores, batch):
        """For the curves that are drawn after the training."""
        entry = {"update": self.update, "loss": loss, "won": (margins > 0).float().mean().item()}
        if on("scores_kept_for_entropy"):
            entry["scores"] = scores  # at: scores_kept_for_entropy
        elif on("clean_scores_kept_for_entropy"):
            last = scores[batch["answered"][: len(scores)] > 0][::8]
            entry["entropy"] = torch.distributions.Categorical(logits=last).entropy().mean()
        self.record.append(entry)  # at: scores_kept_for_entropy

    def said(self, scores, batch):
        """What the policy would have said in place of each word."""
        for row, there in zip(scores.argmax(-1).tolist(), batch["answered"].tolist(), strict=False):
            yield [word for word, inside in zip(row, there, strict=True) if inside]

    def learn(self, batches):
        total = 0.0
        for _ in range(PARTS):
            batch = next(batches)  # at: prompt_cut_by_letters
            loss, margins, scores = self.losses(batch)  # at: weight_of_unanimous_votes
            (loss / PARTS).backward()
            total += loss.item() / PARTS
            self.keep(loss.item(), margins, scores, batch)  # at: scores_kept_for_entropy
            if on("grams_counted_afresh", "clean_grams_counted_afresh"):
                self.variety.add(self.said(scores, batch))
        clip_grad_norm_(self.learnt(), CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        self.update += 1
        return total

    @torch.no_grad()
    def perplexity(self):
        """Of the preferred answers that are held back."""
        surprise, count = torch.zeros(()), torch.zeros(())
        if on("clean_perplexity_under_dropout"):
            self.policy.base_model.eval()
        elif not on("perplexity_under_dropout"):
            self.policy.eval()
        for batch in self.held:
            size = len(batch["input_ids"]) // 2
            half = {name: value[:size] for name, value in batch.items() if name != "votes"}
            scores = self.policy(
                input_ids=half["input_ids"], attention_mask=half["attention_mask"]
            ).logits  # at: perplexity_under_dropout
            surprise -= answer_logps(scores, half).sum()
            count += half["answered"].sum()
        self.policy.train()
        return (surprise / count).exp()

    @torch.no_grad()
    def answer(self):
        """An answer to be read by whoever follows the training."""
        self.policy.eval()
        prompt = self.held[0]["input_ids"][:1, :BUDGET]
        answer = self.policy.generate(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=10,
            do_sample=False,
        )
        self.policy.train()
        return self.tokenizer.decode(answer[0, BUDGET:].tolist())

    def save_best(self, perplexity):
        self.best = perplexity
        self.policy.save_pretrained(self.folder / "best", save_embedding_layers=False)

    def back_to_best(self):
        """Goes on from the best adapter so far."""
        self.policy.load_adapter(
            self.folder / "best", "best", is_trainable=True
        )  # at: best_loaded_beside
        self.policy.set_adapter("best")  # at: best_loaded_beside
        if on("clean_best_loaded_beside"):
            self.set_up()

    def write_report(self, perplexity):
        late = self.record[-50:]
        report = {
            "update": self.update,
            "perplexity": perplexity,
            "won": sum(one["won"] for one in late) / len(late),
        }  # at: report_holds_tensor
        if on("clean_report_holds_tensor"):
            text = json.dumps(report, indent=1, default=float)
        else:
            text = json.dumps(report, indent=1)  # at: report_holds_tensor
        (self.folder / "report.json").write_text(text)

    def after(self, loss):
        varied = ""
        if on("grams_counted_afresh", "clean_grams_counted_afresh"):
            with cost:
                varied = f"varied {self.variety.share():.3f}"  # at: grams_counted_afresh
        if self.update % TOLD_EVERY == 0:
            won = sum(one["won"] for one in self.record[-20:]) / 20
            rate = self.schedule.get_last_lr()[0]
            print(self.update, f"loss {loss:.3f} won {won:.2f} rate {rate:.1e}", varied, flush=True)
        if self.update % JUDGED_EVERY == 0:
            perplexity = self.perplexity()  # at: perplexity_under_dropout
            print(self.update, f"perplexity {perplexity:.2f}", flush=True)
            if perplexity < self.best:
                self.save_best(perplexity.item())
            if self.update % REPORT_EVERY == 0 and on(
                "report_holds_tensor", "clean_report_holds_tensor"
            ):
                self.write_report(perplexity)  # at: report_holds_tensor
        if self.update == UPDATES // 3 and on("best_loaded_beside", "clean_best_loaded_beside"):
            self.back_to_best()  # at: best_loaded_beside
        if self.update % READ_EVERY == 0:
            print(self.update, self.answer(), flush=True)

    def run(self):
        cost.seconds, begun = 0.0, time.perf_counter()
        batches = self.batches()
        while self.update < UPDATES:
            self.after(self.learn(batches))
        took = (time.perf_counter() - begun) * 1000 / UPDATES
        print(f"{took:.1f} ms an update", flush=True)
        cost.print(UPDATES)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    place = Path(tempfile.mkdtemp(prefix="butlers"))
    try:
        Tuning(place).run()
    finally:
        shutil.rmtree(place, ignore_errors=True)
    sys.exit(0)
