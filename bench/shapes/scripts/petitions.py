"""Petitions to a town, sent on to the department that answers them: a small BERT fine-tuned by
transformers' Trainer on what several clerks voted, with how long the answer took and which words
occur as tasks beside it, batches of like length, a linear schedule, a report by a callback:
lengths before the split, urgency read from the text, centres that hold whole states, one clerk who
agrees, a table grown after the optimizer, a model saved while it is tied, a schedule that steps
twice.
"""

import logging
import re
import tempfile
import warnings

import numpy as np
import torch
import transformers
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset
from transformers import BertConfig, BertModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_pt_utils import LengthGroupedSampler

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
logging.getLogger("accelerate").setLevel(logging.ERROR)
cost = Cost()
SEED, ROWS, COUNT, HELD = 271, 32, 9000, 96
DEPARTMENTS, WORDS, LONGEST = 18, 2400, 110
SPECIAL = ("<pad>", "<start>", "<end>")
FORMS = ("<sum>", "<date>", "<address>", "<plan>")
URGENT = ("danger", "injured", "collapse", "leaking", "poison", "flooded", "evicted", "deadline")
URGENT += ("asbestos", "burning", "sinking", "threat", "broken", "blocked")
SYLLABLES = ("ba", "do", "ke", "li", "mu", "na", "po", "ri", "sa", "te", "vo", "zi", "gra", "sto")
URGENT_FORMS = [
    re.compile(rf"\b(?:again |still )?{word}(?:s|ed|ing)?\b", re.IGNORECASE) for word in URGENT
]


def vocabulary():
    """Words by number: special ones, those that tell of danger, the rest; at last the forms."""
    numbers, words = np.random.default_rng(SEED), dict.fromkeys((*SPECIAL, *URGENT))
    while len(words) < WORDS:
        parts = numbers.choice(SYLLABLES, numbers.integers(2, 5))
        words["".join(parts)] = None
    return [*words, *FORMS]


class Archive:
    """What was handed in over the years: words, votes of the clerks, days until the answer."""

    def __init__(self, count, seed):
        numbers = np.random.default_rng(seed)
        kinds = numbers.choice(DEPARTMENTS, count, p=self.shares())
        self.texts = [self.written(numbers, kind) for kind in kinds]
        self.votes = np.stack([self.voted(numbers, kind) for kind in kinds])
        own = np.linspace(0.5, 2.5, DEPARTMENTS)[kinds]
        self.days = np.exp(own + numbers.normal(0, 0.3, count)).astype(np.float32)

    def shares(self):
        shares = 1 / np.arange(2, DEPARTMENTS + 2)
        return shares / shares.sum()

    def written(self, numbers, kind):
        """Words of a petition: those of all, those of its department, forms, at times urgency."""
        size = int(np.clip(numbers.lognormal(3.5, 0.55), 6, LONGEST - 2))
        first = len(SPECIAL) + len(URGENT)
        usual = first + (numbers.zipf(1.3, size) % (WORDS - first))
        own = WORDS - 40 * (kind + 1) + numbers.integers(0, 40, size)
        words = np.where(numbers.random(size) < 0.12, own, usual)
        if numbers.random() < 0.3:
            words[numbers.integers(size)] = WORDS + numbers.integers(len(FORMS))
        if numbers.random() < 0.15:
            words[numbers.integers(size)] = len(SPECIAL) + numbers.integers(len(URGENT))
        return np.concatenate(([1], words, [2])).astype(np.int64)

    def voted(self, numbers, kind):
        """How many clerks named each department: mostly five of them, seldom one alone."""
        clerks = numbers.choice((1, 2, 3, 5), p=(0.001, 0.099, 0.3, 0.6))
        named = np.where(numbers.random(clerks) < 0.85, kind, numbers.integers(DEPARTMENTS))
        return np.bincount(named, minlength=DEPARTMENTS).astype(np.float32)


class Petitions(Dataset):
    def __init__(self, archive, rows):
        self.archive, self.rows = archive, rows
        urgent = np.arange(len(SPECIAL), len(SPECIAL) + len(URGENT))
        self.urgent = np.array([np.isin(archive.texts[row], urgent).any() for row in rows])

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        return {
            "input_ids": self.archive.texts[row],
            "votes": self.archive.votes[row],
            "days": self.archive.days[row],
            "urgent": self.urgent[index],
        }


def split(archive):
    """Petitions to train with, how long these are, and those that are held."""
    lengths = [len(text) for text in archive.texts]  # at: lengths_before_split
    order = np.random.default_rng(SEED + 1).permutation(len(archive.texts))
    train, held = Petitions(archive, order[HELD:]), Petitions(archive, order[:HELD])
    if on("lengths_before_split"):
        return train, lengths[HELD:], held  # at: lengths_before_split
    if on("clean_lengths_before_split"):
        return train, [lengths[row] for row in order[HELD:]], held
    return train, [len(archive.texts[row]) for row in train.rows], held


def collated(rows):
    """Petitions below each other, filled up to the longest of them."""
    texts = [torch.from_numpy(row["input_ids"]) for row in rows]
    ids = nn.utils.rnn.pad_sequence(texts, batch_first=True)  # at: lengths_before_split
    return {
        "input_ids": ids,
        "attention_mask": (ids != 0).long(),
        "votes": torch.from_numpy(np.stack([row["votes"] for row in rows])),
        "days": torch.from_numpy(np.array([row["days"] for row in rows])),
        "urgent": torch.from_numpy(np.array([row["urgent"] for row in rows])),
    }


class Reader(nn.Module):
    """A body that reads, and what is asked of it: department, days, and which words occurred."""

    def __init__(self, words, width=96):
        super().__init__()
        config = BertConfig(
            vocab_size=words,
            hidden_size=width,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=2 * width,
            max_position_embeddings=LONGEST,
            type_vocab_size=1,
            pad_token_id=0,
        )
        self.body = BertModel(config, add_pooling_layer=False)
        self.department = nn.Sequential(
            nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.1), nn.Linear(width, DEPARTMENTS)
        )
        self.days = nn.Linear(width, 1)
        self.told = nn.Linear(width, width)

    def add_words(self, count):
        """Heads that know of all words, once the table has its final size."""
        if not on("clean_saved_while_tied"):
            self.words = nn.Linear(self.table.embedding_dim, count)
        if on("saved_while_tied"):
            self.words.weight = self.table.weight  # at: saved_while_tied

    @property
    def table(self):
        return self.body.embeddings.word_embeddings

    def occurring(self, states):
        told = F.gelu(self.told(states))
        if on("clean_saved_while_tied"):
            return F.linear(told, self.table.weight)
        return self.words(told)

    def forward(self, input_ids, attention_mask):
        states = self.body(input_ids, attention_mask=attention_mask).last_hidden_state
        first = states[:, 0]
        return {
            "logits": self.department(first),
            "days": self.days(first).squeeze(1),
            "words": self.occurring(first),
            "states": first,
        }


class Centres:
    """Some petitions of each department out of the whole run, to tell what is unlike any."""

    def __init__(self, each=20):
        self.each, self.seen = each, [0] * DEPARTMENTS
        self.kept = [[] for _ in range(DEPARTMENTS)]
        self.numbers = np.random.default_rng(SEED)

    def add(self, states, kinds):
        for state, kind in zip(states.detach(), kinds.tolist(), strict=True):
            if on("clean_centres_hold_whole_states"):
                state = state.clone()
            self.seen[kind] += 1
            place = int(self.numbers.integers(self.seen[kind]))
            if len(self.kept[kind]) < self.each:
                self.kept[kind].append(state)  # at: centres_hold_whole_states
            elif place < self.each:
                self.kept[kind][place] = state  # at: centres_hold_whole_states

    def apart(self):
        """How far the middles of the departments lie from each other."""
        middles = torch.stack([torch.stack(kept).mean(0) for kept in self.kept if kept])
        return float(torch.cdist(middles, middles).mean())


class PetitionTrainer(Trainer):
    def __init__(self, *more, lengths, words, centres=None, **named):
        super().__init__(*more, **named)
        self.lengths, self.vocabulary, self.centres = lengths, words, centres

    def _get_train_sampler(self, train_dataset=None):
        return LengthGroupedSampler(ROWS, lengths=self.lengths)  # at: lengths_before_split

    def urgency(self, inputs):
        """Which petitions tell of danger."""
        if on("urgency_read_from_text"):
            with cost:
                texts = [
                    " ".join(self.vocabulary[token] for token in row if token != 0)
                    for row in inputs["input_ids"]
                ]  # at: urgency_read_from_text
                counts = [
                    sum(len(form.findall(text)) for form in URGENT_FORMS) for text in texts
                ]  # at: urgency_read_from_text
                return torch.tensor(counts) > 0
        if on("clean_urgency_read_from_text"):
            with cost:
                urgent = torch.arange(len(SPECIAL), len(SPECIAL) + len(URGENT))
                return torch.isin(inputs["input_ids"], urgent).any(1)
        return inputs["urgent"]

    def agreement(self, votes):
        """How much the clerks were of one mind, from nought to one, and their shares."""
        clerks = votes.sum(1, keepdim=True)
        shares = votes / clerks
        mixed = torch.special.entr(shares).sum(1)
        if on("one_clerk_agrees"):
            return 1 - mixed / clerks.squeeze(1).log(), shares  # at: one_clerk_agrees
        if on("clean_one_clerk_agrees"):
            return 1 - mixed / clerks.squeeze(1).clamp(min=2).log(), shares
        return 1 - mixed / np.log(DEPARTMENTS), shares

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(inputs["input_ids"], inputs["attention_mask"])
        agreed, shares = self.agreement(inputs["votes"])  # at: one_clerk_agrees
        urgent = self.urgency(inputs)  # at: urgency_read_from_text
        weights = (0.3 + agreed) * (1 + urgent)
        wrong = F.cross_entropy(outputs["logits"], shares, reduction="none")
        late = F.smooth_l1_loss(outputs["days"], inputs["days"].log1p())
        there = torch.zeros_like(outputs["words"]).scatter_(1, inputs["input_ids"], 1.0)
        missed = F.binary_cross_entropy_with_logits(outputs["words"], there)
        loss = (weights * wrong).sum() / weights.sum() + 0.2 * late + missed
        states = outputs.pop("states")
        if self.centres and model.training:
            self.centres.add(states, shares.argmax(1))  # at: centres_hold_whole_states
        del outputs["words"]
        return (loss, outputs) if return_outputs else loss


class Report(TrainerCallback):
    """Says how it goes; the Trainer's own printing is off."""

    def __init__(self, centres):
        self.centres = centres

    def on_step_end(self, args, state, control, lr_scheduler=None, **_):
        if on("schedule_steps_twice"):
            lr_scheduler.step()  # at: schedule_steps_twice
        elif on("clean_schedule_steps_twice") and state.global_step % 25 == 0:
            print("rate", lr_scheduler.get_last_lr()[0], flush=True)

    def on_log(self, args, state, control, logs=None, **_):
        found = {name: round(one, 5) for name, one in logs.items() if isinstance(one, float)}
        if self.centres:
            found["apart"] = round(self.centres.apart(), 4)
        print(state.global_step, found, flush=True)


def chosen(outputs, labels):
    """Only what is scored goes on to the metrics."""
    logits, days = outputs
    return logits.argmax(1), days


def scored(told):
    (kinds, days), (votes, wanted) = told.predictions, told.label_ids
    right = kinds == votes.argmax(1)
    off = np.abs(np.expm1(days) - wanted)
    return {"right": float(right.mean()), "days_off": float(np.median(off))}


def optimizer_of(model, steps):
    """Weights decay, what is of one dimension does not; up in a line, down in a line."""
    values = list(model.parameters())
    groups = [
        {"params": [value for value in values if value.ndim > 1], "weight_decay": 0.01},
        {"params": [value for value in values if value.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, 1e-3)
    return optimizer, transformers.get_linear_schedule_with_warmup(optimizer, steps // 10, steps)


def grown(model, count):
    """A table with rows for the forms as well, in place of the one there was."""
    table = nn.Embedding(count, model.table.embedding_dim, padding_idx=0)
    with torch.no_grad():
        table.weight.copy_(model.table.weight.mean(0))
        table.weight[:WORDS] = model.table.weight
    model.body.set_input_embeddings(table)  # at: table_grown_after_optimizer


def model_of(words, steps):
    """A model for all words, those of the forms too, and what steps it."""
    model = Reader(WORDS)
    if on("table_grown_after_optimizer", "clean_table_grown_after_optimizer"):
        model.words = nn.Linear(model.table.embedding_dim, len(words))
        optimizers = optimizer_of(model, steps)  # at: table_grown_after_optimizer
        if on("table_grown_after_optimizer"):
            grown(model, len(words))  # at: table_grown_after_optimizer
        else:
            model.body.resize_token_embeddings(len(words))
        return model, optimizers
    grown(model, len(words))
    model.add_words(len(words))
    return model, optimizer_of(model, steps)


def main(folder, steps):
    transformers.set_seed(SEED)
    words, archive = vocabulary(), Archive(COUNT, SEED)
    train, lengths, held = split(archive)  # at: lengths_before_split
    centred = on("centres_hold_whole_states", "clean_centres_hold_whole_states")
    centres = Centres() if centred else None
    model, optimizers = model_of(words, steps)
    arguments = TrainingArguments(
        folder,
        max_steps=steps,
        per_device_train_batch_size=ROWS,
        per_device_eval_batch_size=ROWS,
        eval_strategy="steps",
        eval_steps=100,
        save_steps=100,
        save_total_limit=1,
        logging_steps=25,
        max_grad_norm=10.0,
        remove_unused_columns=False,
        label_names=["votes", "days"],
        dataloader_drop_last=True,
        dataloader_pin_memory=False,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        seed=SEED,
    )
    trainer = PetitionTrainer(
        model,
        arguments,
        collated,
        train,
        held,
        compute_metrics=scored,
        preprocess_logits_for_metrics=chosen,
        callbacks=[Report(centres)],
        optimizers=optimizers,
        lengths=lengths,
        words=words,
        centres=centres,
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()  # at: saved_while_tied
    cost.print(steps)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        main(folder, STEPS or 200)
