"""Which allergens are in a dish and what it costs, read from menus typed in haste: a small BERT
under transformers' Trainer with a loss of its own, a collator that reads words, two parts an
update, a callback that goes back to the best weights in the middle of the run.
"""

import sys
import tempfile
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR
from transformers import (
    BertConfig,
    BertModel,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

ALLERGENS = ("gluten", "milk", "egg", "nuts", "fish", "soy", "celery")
UPDATES = STEPS or 250
ROWS, PARTS, DISHES, HELD = 12, 2, 1200, 96
WORDS, WIDTH, LAYERS, LONGEST = 360, 96, 2, 32
RATE, LOOK_EVERY, TOLD_EVERY, DRAWS = 1e-3, 25, 25, 10_000
PAD, CLS, FIRST = 0, 1, 2
cost = Cost()


def spelled(dice):
    consonants, vowels = "bcdfghklmnprstvz", "aeiou"
    return "".join(
        consonants[dice.integers(len(consonants))] + vowels[dice.integers(len(vowels))]
        for _ in range(dice.integers(2, 5))
    )


def mistyped(word, dice):
    place = dice.integers(1, len(word))
    way = dice.integers(3)
    if way == 0:
        return word[:place] + word[place + 1 :]
    if way == 1:
        return word[:place] + word[place - 1] + word[place:]
    return word[: place - 1] + word[place] + word[place - 1] + word[place + 1 :]


def pieces(word):
    edged = f"<{word}>"
    return {edged[place : place + 2] for place in range(len(edged) - 1)}


class Lexicon:
    """The words that cooks know, and what is in them."""

    def __init__(self, dice):
        words = {}
        while len(words) < WORDS:
            words[spelled(dice)] = len(words) + FIRST
        self.ids = words
        self.pieces = [(pieces(word), own) for word, own in words.items()]
        self.contains = dice.random((WORDS, len(ALLERGENS))) < np.linspace(0.005, 0.06, 7)
        self.prices = dice.gamma(2.0, 1.0, WORDS)
        self.read = {}

    def closest(self, word):
        """The word of the lexicon that shares most pairs of letters with one."""
        own, best, found = pieces(word), -1.0, FIRST
        for theirs, number in self.pieces:
            shared = len(own & theirs)  # at: lexicon_searched_each_row
            likeness = shared / (len(own) + len(theirs) - shared)  # at: lexicon_searched_each_row
            if likeness > best:  # at: lexicon_searched_each_row
                best, found = likeness, number
        return found

    def looked_up(self, word):
        if word in self.ids:
            return self.ids[word]
        return self.closest(word)  # at: lexicon_searched_each_row

    def remembered(self, word):
        if word not in self.read:
            self.read[word] = self.looked_up(word)
        return self.read[word]


class Dishes(torch.utils.data.Dataset):
    def __init__(self, lexicon, count, seed):
        dice = np.random.default_rng(seed)
        words = list(lexicon.ids)
        slips = [[mistyped(word, np.random.default_rng(own + 9))] for own, word in enumerate(words)]
        self.rows = []
        for _ in range(count):
            used = dice.choice(WORDS, dice.integers(16, LONGEST - 1), replace=False)
            typed = [
                slips[own][dice.integers(len(slips[own]))] if dice.random() < 0.3 else words[own]
                for own in used
            ]
            price = lexicon.prices[used].sum() * dice.uniform(0.9, 1.1)
            self.rows.append((typed, lexicon.contains[used].any(0), price))
        self.ids = None
        if not on("lexicon_searched_each_row", "clean_lexicon_searched_each_row"):
            self.ids = [[lexicon.remembered(word) for word in typed] for typed, _, _ in self.rows]

    @cached_property
    def prices(self):
        return np.array([price for _, _, price in self.rows])

    @cached_property
    def shares(self):
        return torch.from_numpy(np.stack([within for _, within, _ in self.rows]).mean(0)).float()

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        typed, within, price = self.rows[index]
        ids = self.ids[index] if self.ids is not None else None
        return {"typed": typed, "ids": ids, "within": within, "price": price}


class Reader:
    """Collates dishes: words to numbers, prices to what is usual."""

    def __init__(self, lexicon, mean, deviation):
        self.lexicon, self.mean, self.deviation = lexicon, float(mean), float(deviation)

    def ids(self, dish):
        if dish["ids"] is not None:
            return dish["ids"]
        with cost:
            read = self.lexicon.looked_up
            if on("clean_lexicon_searched_each_row"):
                read = self.lexicon.remembered
            return [read(word) for word in dish["typed"]]  # at: lexicon_searched_each_row

    def __call__(self, dishes):
        table = np.full((len(dishes), LONGEST), PAD)
        for row, dish in zip(table, dishes, strict=True):
            ids = self.ids(dish)  # at: lexicon_searched_each_row
            row[0] = CLS
            row[1 : len(ids) + 1] = ids
        table = torch.from_numpy(table[:, : (table != PAD).sum(1).max()])
        prices = torch.tensor([dish["price"] for dish in dishes])
        return {
            "input_ids": table,
            "attention_mask": (table != PAD).long(),
            "allergens": torch.from_numpy(np.stack([dish["within"] for dish in dishes])).float(),
            "price": ((prices - self.mean) / self.deviation).float(),
        }


class Taster(nn.Module):
    def __init__(self):
        super().__init__()
        config = BertConfig(
            vocab_size=WORDS + FIRST,
            hidden_size=WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=4,
            intermediate_size=2 * WIDTH,
            max_position_embeddings=LONGEST,
            hidden_dropout_prob=0.05,
            attention_probs_dropout_prob=0.05,
        )
        self.body = BertModel(config, add_pooling_layer=False)
        self.allergens = nn.Linear(WIDTH, len(ALLERGENS))
        self.price = nn.Linear(WIDTH, 1)

    def forward(self, input_ids, attention_mask):
        out = self.body(input_ids, attention_mask, output_hidden_states=True)
        states = out.last_hidden_state
        there = attention_mask[..., None]
        mean = (states * there).sum(1) / there.sum(1)
        most = states.masked_fill(there == 0, -1e4).amax(1)
        return {
            "scores": self.allergens(most),
            "price": self.price(mean)[:, 0],
            "states": out.hidden_states,
        }


class MenuTrainer(Trainer):
    """A Trainer whose loss weighs rare allergens more."""

    part = 0

    def weights(self, allergens):
        """How much more a dish with an allergen counts than one without it."""
        if on("weight_of_absent_allergen", "clean_weight_of_absent_allergen"):
            within = allergens.sum(0)
            if on("clean_weight_of_absent_allergen"):
                within = within.clamp(min=1)
            return (len(allergens) - within) / within  # at: weight_of_absent_allergen
        shares = self.train_dataset.shares
        return (1 - shares) / shares

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        out = model(inputs["input_ids"], inputs["attention_mask"])
        allergens = inputs["allergens"]
        found = F.binary_cross_entropy_with_logits(
            out["scores"],
            allergens,
            pos_weight=self.weights(allergens),  # at: weight_of_absent_allergen
        )
        priced = F.smooth_l1_loss(out["price"], inputs["price"])
        if model.training:
            self.note(found, priced, out["states"])  # at: states_in_trainers_log
        loss = found + 0.5 * priced
        if return_outputs:
            return loss, {"loss": loss, "scores": out["scores"], "price": out["price"]}
        return loss

    def note(self, found, priced, states):
        """What the report after the training is made of."""
        entry = {"step": self.state.global_step, "found": found.detach(), "priced": priced.detach()}
        if on("states_in_trainers_log"):
            entry["states"] = [own.detach() for own in states]  # at: states_in_trainers_log
        elif on("clean_states_in_trainers_log"):
            entry["states"] = [own.detach().std() for own in states]
        self.state.log_history.append(entry)  # at: states_in_trainers_log

    def training_step(self, model, inputs, num_items_in_batch=None):
        if on("freed_before_each_part") or (
            on("clean_freed_before_each_part") and self.part % PARTS == 0
        ):
            model.zero_grad(set_to_none=True)  # at: freed_before_each_part
        self.part += 1
        return super().training_step(model, inputs, num_items_in_batch)

    def create_scheduler(self, num_training_steps, optimizer=None):
        """Down to nought in a straight line, after a short rise."""
        if self.lr_scheduler is None:
            total = num_training_steps
            each = len(self.train_dataset) // (ROWS * PARTS)
            if on("schedule_of_argument_epochs"):
                total = int(each * self.args.num_train_epochs)  # at: schedule_of_argument_epochs
            elif on("clean_schedule_of_argument_epochs"):
                total = each * -(-num_training_steps // each)

            def share(step):
                return min((step + 1) / 20, max(0.0, 1 - step / total))

            self.lr_scheduler = LambdaLR(
                optimizer or self.optimizer, share
            )  # at: schedule_of_argument_epochs
        return self.lr_scheduler


class Best(TrainerCallback):
    """Keeps the best weights, and goes on from them in the middle of the run."""

    def __init__(self, folder, mean, deviation):
        self.path, self.best = folder / "best.pt", -1.0
        self.scale = {"mean": float(mean), "deviation": float(deviation)}
        if on("best_holds_numpy_scale"):
            self.scale = {"mean": mean, "deviation": deviation}  # at: best_holds_numpy_scale

    def on_evaluate(self, args, state, control, metrics, model, **rest):
        if metrics["eval_f1"] > self.best:
            self.best = metrics["eval_f1"]
            kept = {"model": model.state_dict()}
            if on("best_holds_numpy_scale", "clean_best_holds_numpy_scale"):
                kept["scale"] = self.scale
            torch.save(kept, self.path)  # at: best_holds_numpy_scale

    def on_step_end(self, args, state, control, model, **rest):
        if state.global_step == state.max_steps // 2 and self.path.exists():
            model.load_state_dict(torch.load(self.path)["model"])  # at: best_holds_numpy_scale


class Told(TrainerCallback):
    def on_log(self, args, state, control, logs, **rest):
        print(
            state.global_step,
            *(
                f"{name} {value:.4g}"
                for name, value in logs.items()
                if name
                in ("loss", "learning_rate", "eval_loss", "eval_f1", "eval_low", "eval_high")
            ),
            flush=True,
        )


def f1(right, said, true):
    return 2 * right / np.maximum(1, said + true)


def interval(said, true):
    """Between which values the mean F1 of all allergens lies, by dishes drawn again."""
    dice = np.random.default_rng(5)
    if on("clean_interval_drawn_singly"):
        drawn = dice.multinomial(len(said), np.full(len(said), 1 / len(said)), DRAWS // 5)
        values = f1(drawn @ (said & true), drawn @ said, drawn @ true).mean(1)
        return np.quantile(values, (0.05, 0.95))
    values = []
    for _ in range(DRAWS):
        chosen = dice.integers(len(said), size=len(said))
        each = []
        for own in range(len(ALLERGENS)):
            ours, theirs = said[chosen, own], true[chosen, own]  # at: interval_drawn_singly
            each.append(
                f1((ours & theirs).sum(), ours.sum(), theirs.sum())
            )  # at: interval_drawn_singly
        values.append(np.mean(each))  # at: interval_drawn_singly
    return np.quantile(values, (0.05, 0.95))


def measured(prediction):
    scores, price = prediction.predictions
    true, paid = prediction.label_ids
    said, true = scores > 0, true > 0.5
    figures = {
        "f1": f1((said & true).sum(0), said.sum(0), true.sum(0)).mean(),
        "off": np.abs(price - paid).mean(),
    }
    if on("interval_drawn_singly", "clean_interval_drawn_singly"):
        figures["low"], figures["high"] = interval(said, true)  # at: interval_drawn_singly
    return figures


def main(folder):
    lexicon = Lexicon(np.random.default_rng(32))
    train, held = Dishes(lexicon, DISHES, 1), Dishes(lexicon, HELD, 2)
    mean, deviation = train.prices.mean(), train.prices.std()
    arguments = TrainingArguments(
        str(folder),
        max_steps=UPDATES,
        per_device_train_batch_size=ROWS,
        per_device_eval_batch_size=24,
        gradient_accumulation_steps=PARTS,
        learning_rate=RATE,
        weight_decay=0.01,
        max_grad_norm=5.0,
        logging_steps=TOLD_EVERY,
        eval_strategy="steps",
        eval_steps=LOOK_EVERY,
        save_strategy="no",
        label_names=["allergens", "price"],
        remove_unused_columns=False,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = MenuTrainer(
        Taster(),
        arguments,
        data_collator=Reader(lexicon, mean, deviation),
        train_dataset=train,
        eval_dataset=held,
        compute_metrics=measured,
        callbacks=[Best(folder, mean, deviation), Told()],
    )
    trainer.remove_callback(PrinterCallback)
    cost.seconds = 0.0
    trainer.train()
    parts = [entry for entry in trainer.state.log_history if "priced" in entry]
    late = parts[-50:]
    print("found", float(sum(entry["found"] for entry in late)) / len(late))
    print("priced", float(sum(entry["priced"] for entry in late)) / len(late), flush=True)
    cost.print(UPDATES)
    return 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    set_seed(32)
    with tempfile.TemporaryDirectory() as place:
        sys.exit(main(Path(place)))
