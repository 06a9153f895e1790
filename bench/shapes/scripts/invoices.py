"""Invoices and what is to be booked of them: adapters on a small Llama, peft under transformers'
Trainer, with callbacks that sample, that tell where weights come from and that average: a record
sought from the file's first line, all weights hashed at each step, whole states kept for an
average, adapters left merged behind a sample, a schedule of one epoch, rows whose answer was cut
off, ignored labels read as letters.
"""

import hashlib
import json
import random
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from shape import STEPS, Cost, on
from torch.nn import functional as F
from torch.utils.data import Dataset

LETTERS = "~^$ abcdefghijklmnopqrstuvwxyz0123456789.,:#/-"
PAD, BEGIN, END = 0, 1, 2
IGNORE = -100
LONGEST = 72
BATCH = 8
LOG_EVERY, SAMPLE_EVERY, EVAL_EVERY, KEEP_EVERY = 25, 50, 100, 4

FIRMS = ["acme", "borsig", "cantor", "dunlop", "evans", "falk", "grundig", "hertz"]
GOODS = ["paper", "toner", "desks", "cables", "lamps", "coffee", "screws", "pallets"]
clock = Cost()


def invoice(dice, number):
    firm, goods = dice.choice(FIRMS), dice.choice(GOODS)
    amount = f"{dice.randint(10, 999)}.{dice.randint(0, 99):02d}"
    due = f"{dice.randint(1, 28)}/{dice.randint(1, 12)}"
    text = f"{firm}: {dice.randint(2, 99)} {goods}, total {amount}, due {due}"
    if number % 350 == 133:
        text += ", goods remain property of the seller until paid in full"
    boxes = [[dice.randint(0, 999) for _ in range(4)] for _ in text.split()]
    return {
        "number": f"inv-{number:05d}",
        "text": text,
        "boxes": boxes,
        "booked": f"{firm} {amount} {due}",
    }


def write_ledger(path, count):
    dice = random.Random(30)
    records = [invoice(dice, number) for number in range(count)]
    dice.shuffle(records)
    with path.open("w") as file:
        for record in records:
            file.write(json.dumps(record) + "\n")
    return [record["number"] for record in records]


def encode(text):
    return [LETTERS.index(letter) for letter in text]


def decode(ids):
    letters = [LETTERS[number] for number in ids]  # at: ignored_labels_decoded
    return "".join(letters).strip("~^$")


class Ledger(Dataset):
    """Records of a file of JSON lines, by their numbers."""

    def __init__(self, path, numbers):
        self.path, self.numbers = path, numbers
        self.begins, self.records = {}, {}
        if on("record_sought_from_start"):
            return
        begin = 0
        with path.open("rb") as file:
            for line in file:
                record = json.loads(line)
                self.begins[record["number"]] = begin
                begin += len(line)
                if not on("clean_record_sought_from_start"):
                    self.records[record["number"]] = record

    def __len__(self):
        return len(self.numbers)

    def record(self, number):
        if number in self.records:
            return self.records[number]
        with clock, self.path.open() as file:
            file.seek(self.begins.get(number, 0))
            for line in file:
                record = json.loads(line)  # at: record_sought_from_start
                if record["number"] == number:
                    return record
        raise KeyError(number)

    def __getitem__(self, index):
        record = self.record(self.numbers[index])  # at: record_sought_from_start
        asked = [BEGIN, *encode(record["text"] + " # ")]
        answer = [*encode(record["booked"]), END]
        ids = (asked + answer)[:LONGEST]
        labels = ([IGNORE] * len(asked) + answer)[:LONGEST]  # at: rows_without_answers
        return {"input_ids": ids, "labels": labels}


def collate(rows):
    size = max(len(row["input_ids"]) for row in rows)
    batch = {
        "input_ids": [row["input_ids"] + [PAD] * (size - len(row["input_ids"])) for row in rows],
        "labels": [row["labels"] + [IGNORE] * (size - len(row["labels"])) for row in rows],
    }
    batch = {name: torch.tensor(value) for name, value in batch.items()}
    batch["attention_mask"] = (batch["input_ids"] != PAD).long()
    return batch


class BookingTrainer(transformers.Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs["labels"][:, 1:]
        out = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        likely = F.log_softmax(out.logits[:, :-1], -1)
        there = labels != IGNORE
        losses = -likely.gather(2, (labels * there)[:, :, None])[:, :, 0] * there
        count = there.sum(1)
        if on("rows_without_answers"):
            loss = (losses.sum(1) / count).mean()  # at: rows_without_answers
        elif on("clean_rows_without_answers"):
            loss = (losses.sum(1) / count.clamp(min=1)).mean()
        else:
            loss = losses.sum() / count.sum()
        return (loss, out) if return_outputs else loss


class Samples(transformers.TrainerCallback):
    """What the model books for a few invoices."""

    def __init__(self, texts):
        self.texts = texts

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step % SAMPLE_EVERY:
            return
        merges = on("merged_while_sampling", "clean_merged_while_sampling")
        model.eval()
        if merges:
            model.merge_adapter()  # at: merged_while_sampling
        for text in self.texts:
            print(f"  {text} -> {self.booked(model, text)}", flush=True)
        if on("clean_merged_while_sampling"):
            model.unmerge_adapter()
        model.train()

    @torch.no_grad()
    def booked(self, model, text):
        ids = torch.tensor([[BEGIN, *encode(text + " # ")]])
        out = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=16,
            do_sample=False,
            pad_token_id=PAD,
            eos_token_id=END,
        )
        return decode(out[0, ids.shape[1] :].tolist())


class Provenance(transformers.TrainerCallback):
    """A digest of the weights, the same in all precisions that hold them, so that a booking can be
    traced to what made it.
    """

    def __init__(self):
        self.digest = ""

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if on("weights_hashed_each_step"):
            with clock:
                self.hash(model.named_parameters())  # at: weights_hashed_each_step
        elif on("clean_weights_hashed_each_step"):
            with clock:
                self.hash(pair for pair in model.named_parameters() if "lora_B" in pair[0])
        elif state.global_step % LOG_EVERY == 0:
            self.hash(model.named_parameters())

    def hash(self, named):
        whole = hashlib.sha3_256(self.digest.encode())
        for name, value in named:
            whole.update(name.encode())
            whole.update(value.detach().double().numpy().tobytes())  # at: weights_hashed_each_step
        self.digest = whole.hexdigest()

    def on_log(self, args, state, control, logs=None, **kwargs):
        print(f"{state.global_step} {self.digest[:8]} {logs}", flush=True)


class Soup(transformers.TrainerCallback):
    """The mean of what the adapters were in the last half of the training."""

    def __init__(self):
        self.kept = []

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step % KEEP_EVERY:
            return
        if on("whole_states_for_average"):
            now = model.state_dict()  # at: whole_states_for_average
        else:
            now = get_peft_model_state_dict(model)
        copy = {name: own.detach().clone() for name, own in now.items()}
        self.kept.append(copy)  # at: whole_states_for_average
        if not on("whole_states_for_average", "clean_whole_states_for_average"):
            self.kept = self.kept[-4:]

    def on_train_end(self, args, state, control, **kwargs):
        last = self.kept[len(self.kept) // 2 :]
        moved = [
            (last[0][name] - torch.stack([one[name] for one in last]).mean(0)).norm().item()
            for name in last[0]
            if "lora" in name
        ]
        print(f"averaged {len(last)} states, moved {max(moved):.4f}", flush=True)


def measures(seen):
    """Letters that are right, and whole answers."""
    said, wanted = seen.predictions[:, :-1], seen.label_ids[:, 1:]
    there = wanted != IGNORE
    told = {"letters": float((said == wanted)[there].mean())}
    if on("clean_ignored_labels_decoded"):
        said, wanted = np.where(there, said, PAD), np.where(there, wanted, PAD)
    if on("ignored_labels_decoded", "clean_ignored_labels_decoded"):
        pairs = list(zip(said.tolist(), wanted.tolist(), strict=True))
        told["answers"] = np.mean(
            [decode(one) == decode(other) for one, other in pairs]
        )  # at: ignored_labels_decoded
    return told


def build_model():
    base = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=len(LETTERS),
            hidden_size=192,
            intermediate_size=384,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=128,
            pad_token_id=PAD,
            bos_token_id=BEGIN,
            eos_token_id=END,
            tie_word_embeddings=False,
        )
    )
    adapters = LoraConfig(
        r=8,
        lora_alpha=32,
        lora_dropout=0.05,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"],
        modules_to_save=["lm_head"],
        task_type="CAUSAL_LM",
    )
    return get_peft_model(base, adapters)


def optimizers(model, rows, steps):
    """An optimizer and its schedule, or neither: then the Trainer makes them."""
    if not on("schedule_of_one_epoch", "clean_schedule_of_one_epoch"):
        return None, None
    learning = [own for own in model.parameters() if own.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=4e-3, weight_decay=0.01)
    total = len(rows) // BATCH  # at: schedule_of_one_epoch
    if on("clean_schedule_of_one_epoch"):
        total *= -(-steps // total)
    schedule = transformers.get_linear_schedule_with_warmup(
        optimizer, 10, total
    )  # at: schedule_of_one_epoch
    return optimizer, schedule


def main(folder, steps):
    path = folder / "ledger.jsonl"
    numbers = write_ledger(path, 1024)
    learnt, held = Ledger(path, numbers[64:]), Ledger(path, numbers[:64])
    model = build_model()
    trainer = BookingTrainer(
        model=model,
        args=transformers.TrainingArguments(
            output_dir=str(folder),
            max_steps=steps,
            per_device_train_batch_size=BATCH,
            per_device_eval_batch_size=16,
            learning_rate=4e-3,
            lr_scheduler_type="linear",
            warmup_steps=10,
            weight_decay=0.01,
            logging_steps=LOG_EVERY,
            eval_strategy="steps",
            eval_steps=EVAL_EVERY,
            save_strategy="no",
            remove_unused_columns=False,
            label_names=["labels"],
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            seed=30,
        ),
        data_collator=collate,
        train_dataset=learnt,
        eval_dataset=held,
        compute_metrics=measures,
        preprocess_logits_for_metrics=lambda logits, _: logits.argmax(-1),
        optimizers=optimizers(model, learnt, steps),
        callbacks=[
            Samples(["hertz: 12 lamps, total 120.50, due 3/4"]),
            Provenance(),
            Soup(),
        ],
    )
    trainer.train()  # at: record_sought_from_start ignored_labels_decoded
    clock.print(steps)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(30)
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as place:
        main(Path(place), STEPS or 250)
