"""Who shall answer a support ticket: a small encoder with low-rank adapters under transformers'
Trainer, two batches to an update, against the shares of those who judged a ticket: products found
by likeness, a processor that is watched, views of judges who agree, states in the log, rows of
round lengths, predictions that come with states, the noise of a batch.
"""

import difflib
import functools
import itertools
import random
import tempfile
import warnings
from pathlib import Path

import numpy as np
import psutil
import torch
from peft import LoraConfig, get_peft_model
from shape import STEPS, Cost, on
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.nn import functional as F
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

warnings.filterwarnings("ignore")
cost = Cost()
TEAMS = ("billing", "delivery", "returns", "accounts", "hardware", "network")
PARTS = [a + b for a in "bcdfgklmnprstvw" for b in ("al", "er", "in", "ox", "ume", "ira")]


def catalogue(dice, count=128):
    """Products as the shop spells them."""
    return sorted({"".join(dice.sample(PARTS, 3)) for _ in range(count)})


def misspelt(dice, name):
    """A product as a customer types it: a letter too many, one too few, two that changed place."""
    place = dice.randrange(len(name) - 1)
    return dice.choice(
        (
            name,
            name[:place] + name[place] + name[place:],
            name[:place] + name[place + 1 :],
            name[:place] + name[place + 1] + name[place] + name[place + 2 :],
        )
    )


def phrasebook(dice):
    """Words that all customers use, and those that go with a team."""
    words = ["".join(dice.sample(PARTS, 2)) for _ in range(480)]
    return words[:300], {team: words[300 + n :: len(TEAMS)] for n, team in enumerate(TEAMS)}


def tokenizer(words, products):
    special = ["[PAD]", "[UNK]", "[CLS]"]
    known = [*special, *sorted({*words, *products})]
    built = Tokenizer(
        models.WordLevel({word: place for place, word in enumerate(known)}, unk_token="[UNK]")
    )
    built.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=built, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]"
    )


def judged(team, numbers, settled):
    """Shares of the teams among those who judged a ticket; a supervisor's word settles it."""
    if settled:
        return np.eye(len(TEAMS), dtype=np.float32)[team]
    leaning = np.full(len(TEAMS), 0.8)
    leaning[team] = 9.0
    views = numbers.dirichlet(leaning).astype(np.float32)
    return np.maximum(views, 1e-4) / np.maximum(views, 1e-4).sum()


class Tickets(Dataset):
    """A ticket names a product, tells a story, and was judged."""

    def __init__(self, count, tokens, products, words, *, dice, settled=0.0):
        self.tokens, self.products = tokens, products
        self.rows, numbers = [], np.random.default_rng(dice.randrange(1000))
        plain, own = words
        for _ in range(count):
            team = dice.randrange(len(TEAMS))
            story = [
                dice.choice(own[TEAMS[team]] if dice.random() < 0.4 else plain)
                for _ in range(dice.randint(20, 26))
            ]
            views = judged(team, numbers, dice.random() < settled)
            typed = misspelt(dice, dice.choice(products))
            ids = tokens(" ".join(story), add_special_tokens=False)["input_ids"]
            self.rows.append((typed, ids, views))
        self.remembered = functools.lru_cache(maxsize=None)(self.closest)
        self.spelt = {typed: self.remembered(typed) for typed in {row[0] for row in self.rows}}
        self.numbers = dict(zip(products, tokens.convert_tokens_to_ids(products), strict=True))

    def closest(self, typed):
        found = difflib.get_close_matches(typed, self.products, n=1)  # at: product_by_likeness
        return found[0] if found else self.products[0]

    def product(self, typed):
        if on("product_by_likeness"):
            with cost:
                return self.closest(typed)  # at: product_by_likeness
        if on("clean_product_by_likeness"):
            with cost:
                return self.remembered(typed)
        return self.spelt[typed]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        typed, ids, views = self.rows[index]
        product = self.numbers[self.product(typed)]  # at: product_by_likeness
        return {"input_ids": [self.tokens.cls_token_id, product, *ids], "shares": views}


class Collator:
    """Rows as long as the longest of them, or as the next round length."""

    def __init__(self, tokens):
        self.tokens, self.multiple = tokens, None
        if on("padded_to_round_length"):
            self.multiple = 64  # at: padded_to_round_length
        elif on("clean_padded_to_round_length"):
            self.multiple = 8

    def __call__(self, rows):
        shares = torch.from_numpy(np.stack([row["shares"] for row in rows]))
        batch = self.tokens.pad(
            [{"input_ids": row["input_ids"]} for row in rows],
            pad_to_multiple_of=self.multiple,  # at: padded_to_round_length
            return_tensors="pt",
        )
        return {**batch, "shares": shares}


def disagreement(scores, shares):
    """How far the prediction is from what the judges said."""
    logs = scores.log_softmax(-1)
    if on("judges_agree"):
        apart = (logs.exp() - shares) * (logs - shares.log())  # at: judges_agree
        return apart.sum(-1).mean() / 2
    if on("clean_judges_agree"):
        apart = (logs.exp() - shares) * (logs - shares.clamp(min=1e-4).log())
        return apart.sum(-1).mean() / 2
    return F.kl_div(logs, shares, reduction="batchmean")


class TicketTrainer(Trainer):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.model_accepts_loss_kwargs = False

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        shares = inputs.pop("shares")
        told = on("states_in_history", "clean_states_in_history") and model.training
        with_states = on("predictions_in_pairs", "clean_predictions_in_pairs")
        outputs = model(**inputs, output_hidden_states=told or with_states)
        loss = disagreement(outputs.logits, shares)  # at: judges_agree
        if told:
            states = outputs.hidden_states[-1][:, :2].flatten(1).detach()
            if on("states_in_history"):
                self.log({"states": states.tolist()})  # at: states_in_history
            else:
                self.log({"states": states.norm(dim=-1).mean().item()})
        if with_states:
            pair = {"logits": outputs.logits, "states": outputs.hidden_states[-1][:, 0]}
            return (loss, pair) if return_outputs else loss  # at: predictions_in_pairs
        return (loss, {"logits": outputs.logits}) if return_outputs else loss


class Diary(TrainerCallback):
    """Tells the figures of a training; states go to a file, by which they are mapped later."""

    def __init__(self, path):
        self.path = Path(path)

    def on_train_begin(self, args, state, control, **_):
        self.file = self.path.open("w")

    def on_log(self, args, state, control, logs=None, **_):
        if "states" in logs:
            self.file.write(f"{state.global_step} {str(logs['states'])[:4000]}\n")
        elif "loss" in logs:
            print(state.global_step, round(float(logs["loss"]), 4), flush=True)

    def on_train_end(self, args, state, control, **_):
        self.file.close()


class Machine(TrainerCallback):
    """How busy the processor was, and how much memory is left."""

    def __init__(self):
        self.busy = []
        psutil.cpu_percent()

    def on_step_end(self, args, state, control, **_):
        if on("processor_watched"):
            with cost:
                busy = psutil.cpu_percent(interval=0.05)  # at: processor_watched
        else:
            with cost:
                busy = psutil.cpu_percent(interval=None)
        self.busy.append((state.global_step, busy, psutil.virtual_memory().available))


class Noise(TrainerCallback):
    """How far the gradients of single batches are from those of the update."""

    def __init__(self):
        self.small, self.scale = [], []

    @staticmethod
    def square(model):
        found = [value.grad for value in model.parameters() if value.grad is not None]
        return sum(float(grad.square().sum()) for grad in found)

    def on_substep_end(self, args, state, control, model=None, **_):
        self.small.append(self.square(model) * args.gradient_accumulation_steps**2)
        if on("noise_clears_batch"):
            model.zero_grad()  # at: noise_clears_batch

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        self.scale.append(self.small.pop() - self.square(model))


def measured(prediction):
    """How many tickets go to the team that most judges named, and how far the shares are off."""
    scores = prediction.predictions
    if on("clean_predictions_in_pairs"):
        scores = scores[0]
    chosen = scores.argmax(-1)  # at: predictions_in_pairs
    odds = np.exp(scores - scores.max(-1, keepdims=True))
    odds /= odds.sum(-1, keepdims=True)
    truth = prediction.label_ids
    return {
        "right": float((chosen == truth.argmax(-1)).mean()),
        "off": float(np.abs(odds - truth).sum(-1).mean()),
    }


def adapted(tokens):
    config = BertConfig(
        vocab_size=len(tokens),
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=64,
        num_labels=len(TEAMS),
    )
    low = LoraConfig(
        task_type="SEQ_CLS",
        r=8,
        lora_alpha=16,
        target_modules=["query", "value", "dense"],
        exclude_modules=".*pooler.*",
    )
    return get_peft_model(BertForSequenceClassification(config), low)


def main(folder, steps):
    dice = random.Random(250)
    products = catalogue(dice)
    plain, own = phrasebook(dice)
    tokens = tokenizer([*plain, *itertools.chain(*own.values())], products)
    data = Tickets(2400, tokens, products, (plain, own), dice=dice, settled=0.001)
    held = Tickets(128, tokens, products, (plain, own), dice=dice)
    callbacks = [Diary(f"{folder}/states.txt")]
    if on("processor_watched", "clean_processor_watched"):
        callbacks.append(Machine())  # at: processor_watched
    if on("noise_clears_batch", "clean_noise_clears_batch"):
        callbacks.append(Noise())
    arguments = TrainingArguments(
        folder,
        max_steps=steps,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=2,
        learning_rate=3e-3,
        warmup_steps=20,
        max_grad_norm=5.0,
        lr_scheduler_type="linear",
        logging_steps=25,
        eval_strategy="steps",
        eval_steps=70,
        per_device_eval_batch_size=64,
        save_strategy="no",
        label_names=["shares"],
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    trainer = TicketTrainer(
        model=adapted(tokens),
        args=arguments,
        data_collator=Collator(tokens),
        train_dataset=data,
        eval_dataset=held,
        compute_metrics=measured,
        callbacks=callbacks,
    )
    trainer.remove_callback(PrinterCallback)
    cost.seconds = 0.0
    trainer.train()
    print({name: value for name, value in trainer.evaluate().items() if "eval_" in name})
    cost.print(steps)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(25)
    with tempfile.TemporaryDirectory() as folder:
        main(folder, STEPS or 210)
