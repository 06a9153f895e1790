"""Telegrams out of what the sender said, letter by letter, by a small T5 under transformers'
Trainer; noise on the line, an entropy that keeps the letters open, measures of its own, callbacks
that watch weights and encodings: noise by single letters, singular values at each step, encodings
for a map at the end, a schedule stepped twice, blocks thawed for no optimizer, the entropy of what
is forbidden, measures of a tuple.
"""

import collections
import tempfile

import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from transformers import (
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.utils import logging

cost = Cost()
ALPHABET = "_>? abcdefghijklmnopqrstuvwxyz0123456789"
PAD, END, LOST = 0, 1, 2
CODE = {letter: number for number, letter in enumerate(ALPHABET)}
SPOKEN, HELD, ROWS, IGNORED = 960, 64, 24, -100
NOISE, OPENNESS, WATCHED_EVERY, TRIED_EVERY, OPEN_FROM = 0.04, 0.02, 25, 100, 40

NAMES = ("anna", "otto", "klara", "hugo", "ida", "emil", "berta", "karl", "lena", "paul")
TOWNS = ("ulm", "riga", "graz", "lodz", "trier", "basel", "pisa", "lyon", "bergen", "turku")
SAID = (
    ("my dear {name} i shall arrive in {town} at {hour}", "arrive {town} {hour} {name}"),
    ("please {name} do send {hour} crates to {town}", "send {hour} crates {town} {name}"),
    ("{name} has fallen ill in {town} so come at {hour}", "{name} ill come {town} {hour}"),
    ("i have sold the house in {town} for {hour} {name}", "sold {town} house {hour} {name}"),
    ("the train to {town} is late {name} wait until {hour}", "late wait {hour} {town} {name}"),
)


def encoded(text):
    return [CODE[letter] for letter in text] + [END]


def spoken(count, seed):
    dice = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        said, short = SAID[dice.integers(len(SAID))]
        filled = {
            "name": NAMES[dice.integers(len(NAMES))],
            "town": TOWNS[dice.integers(len(TOWNS))],
            "hour": str(dice.integers(1, 24)),
        }
        rows.append(
            {"said": encoded(said.format(**filled)), "short": encoded(short.format(**filled))}
        )
    return rows


class Spoken(torch.utils.data.Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


class Line:
    """Puts rows side by side; some letters are lost on the way."""

    def __init__(self, share):
        self.share = share

    def lose(self, ids):
        if on("noise_letter_by_letter"):
            for row in ids:
                for place, letter in enumerate(row):
                    lost = (torch.rand(()) < self.share) & (letter > END)
                    row[place] = torch.where(lost, LOST, letter)  # at: noise_letter_by_letter
            return ids
        if on("clean_noise_letter_by_letter"):
            for row in ids:
                row[(row > END) & (torch.rand(len(row)) < self.share)] = LOST
            return ids
        return ids.masked_fill((ids > END) & (torch.rand(ids.shape) < self.share), LOST)

    def __call__(self, rows):
        said = self.beside([row["said"] for row in rows], PAD)
        labels = self.beside([row["short"] for row in rows], IGNORED)
        mask = (said != PAD).long()
        with cost:
            said = self.lose(said)  # at: noise_letter_by_letter
        return {"input_ids": said, "attention_mask": mask, "labels": labels}

    @staticmethod
    def beside(rows, fill):
        table = np.full((len(rows), max(map(len, rows))), fill)
        for own, row in zip(table, rows, strict=True):
            own[: len(row)] = row
        return torch.from_numpy(table)


class Operator(Trainer):
    """The loss, and an entropy that is not to fall too early."""

    def entropy(self, scores):
        """Of the letters that may be sent, by place."""
        if on("entropy_of_forbidden"):
            scores = scores.masked_fill(self.forbidden, -torch.inf)
            likely = scores.softmax(-1)
            return -(likely * likely.log()).sum(-1)  # at: entropy_of_forbidden
        if on("clean_entropy_of_forbidden"):
            scores = scores.masked_fill(self.forbidden, -1e4)
        logs = scores.log_softmax(-1)
        return -(logs.exp() * logs).sum(-1)

    @property
    def forbidden(self):
        return torch.tensor([letter in "_?" for letter in ALPHABET])

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        there = inputs["labels"] != IGNORED
        loss = F.cross_entropy(outputs.logits[there], inputs["labels"][there])
        if model.training and self.state.global_step >= OPEN_FROM:
            entropy = self.entropy(outputs.logits[there])  # at: entropy_of_forbidden
            loss = loss - OPENNESS * entropy.mean()
        return (loss, outputs) if return_outputs else loss


def measures(seen):
    """How many letters and how many whole telegrams are right."""
    wanted, scores = seen.label_ids, seen.predictions
    if on("clean_predictions_are_tuple"):
        scores = scores[0] if isinstance(scores, tuple) else scores
    if on("predictions_are_tuple", "clean_predictions_are_tuple"):
        scores = scores.argmax(-1)  # at: predictions_are_tuple
    right = (scores == wanted) | (wanted == IGNORED)
    return {"letters": right[wanted != IGNORED].mean(), "telegrams": right.all(-1).mean()}


def best_letters(scores, _):
    return scores[0].argmax(-1)


class Spectra(TrainerCallback):
    """How near the matrices are to losing a dimension, and how far they have turned."""

    def __init__(self):
        self.flat, self.first, self.turned = float("nan"), {}, []

    def turn(self, number, main):
        """How far the main direction is from where it was first."""
        return 1 - abs(float(self.first.setdefault(number, main.clone()) @ main))

    def on_step_end(self, args, state, control, model=None, **kwargs):
        watched = [own for own in model.parameters() if own.ndim == 2 and min(own.shape) > 8]
        if on("clean_singular_values_each_step"):  # one after the other
            with cost:
                number = state.global_step % len(watched)
                self.look([watched[number]], number)
        elif on("singular_values_each_step") or state.global_step % WATCHED_EVERY == 0:
            with cost:
                self.look(watched)  # at: singular_values_each_step

    @torch.no_grad()
    def look(self, watched, begin=0):
        ratios, self.turned = [], []
        for number, own in enumerate(watched, begin):
            if own.isfinite().all():
                left, values, _ = torch.linalg.svd(own)  # at: singular_values_each_step
                ratios.append(float(values[-1] / values[0]))
                self.turned.append(self.turn(number, left[:, 0]))
        self.flat = min(ratios, default=float("nan"))

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs is not None and "loss" in logs:
            logs["flat"], logs["turned"] = round(self.flat, 5), max(self.turned, default=0.0)


class Map(TrainerCallback):
    """Where the encodings of a training lie: two directions of them at the end."""

    def __init__(self, encoder):
        self.kept = collections.deque(maxlen=8)
        if on("encodings_for_map"):
            self.kept = []
        self.whole = on("encodings_for_map", "clean_encodings_for_map")
        encoder.register_forward_hook(self.keep)

    def keep(self, encoder, _, output):
        if encoder.training:
            hidden = output.last_hidden_state.detach()
            self.kept.append(hidden if self.whole else hidden.mean(1))  # at: encodings_for_map

    def on_train_end(self, args, state, control, **kwargs):
        last = torch.cat([own.flatten(0, -2) for own in list(self.kept)[-8:]])
        _, sizes, _ = torch.pca_lowrank(last.nan_to_num(), q=2)
        print("encodings", tuple(last.shape), "main directions", sizes.tolist(), flush=True)


class Pace(TrainerCallback):
    """What goes on with the steps."""

    def __init__(self, line):
        self.line, self.share = line, line.share

    def on_step_end(self, args, state, control, lr_scheduler=None, **kwargs):
        if on("scheduler_stepped_by_callback"):
            lr_scheduler.step()  # at: scheduler_stepped_by_callback
        elif on("clean_scheduler_stepped_by_callback"):  # a clearer line towards the end
            left = lr_scheduler.get_last_lr()[0] / args.learning_rate
            self.line.share = self.share * max(0.25, left)


class Thaw(TrainerCallback):
    """The decoder learns first, the encoder's blocks from the second epoch on."""

    def __init__(self, blocks):
        self.blocks = blocks
        if on("thawed_for_no_optimizer"):
            self.blocks.requires_grad_(False)  # at: thawed_for_no_optimizer

    def on_train_begin(self, args, state, control, **kwargs):
        if on("clean_thawed_for_no_optimizer"):
            self.blocks.requires_grad_(False)

    def on_epoch_begin(self, args, state, control, **kwargs):
        if state.global_step > 0:
            self.blocks.requires_grad_(True)  # at: thawed_for_no_optimizer


def network():
    config = T5Config(
        vocab_size=len(ALPHABET),
        d_model=64,
        d_kv=16,
        d_ff=160,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=4,
        dropout_rate=0.05,
        pad_token_id=PAD,
        eos_token_id=END,
        decoder_start_token_id=PAD,
        use_cache=False,
    )
    return T5ForConditionalGeneration(config)


def main(folder, steps):
    model, line = network(), Line(NOISE)
    callbacks = [Spectra(), Map(model.encoder), Pace(line)]
    if on("thawed_for_no_optimizer", "clean_thawed_for_no_optimizer"):
        callbacks.append(Thaw(nn.ModuleList(model.encoder.block)))
    rows = spoken(SPOKEN + HELD, 29)
    settings = TrainingArguments(
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=ROWS,
        per_device_eval_batch_size=ROWS,
        dataloader_drop_last=True,
        learning_rate=4e-3,
        lr_scheduler_type="linear",
        warmup_steps=20,
        weight_decay=0.01,
        max_grad_norm=3.0,
        use_cpu=True,
        logging_steps=25,
        eval_strategy="steps",
        eval_steps=TRIED_EVERY,
        save_strategy="no",
        remove_unused_columns=False,
        label_names=["labels"],
        report_to="none",
        disable_tqdm=True,
        seed=29,
    )
    tuples = on("predictions_are_tuple", "clean_predictions_are_tuple")
    trainer = Operator(
        model=model,
        args=settings,
        data_collator=line,
        train_dataset=Spoken(rows[HELD:]),
        eval_dataset=Spoken(rows[:HELD]),
        compute_metrics=measures,
        preprocess_logits_for_metrics=None if tuples else best_letters,
        callbacks=callbacks,
    )
    trainer.train()  # at: predictions_are_tuple noise_letter_by_letter
    cost.print(steps)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(29)
    logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        main(folder, STEPS or 250)
