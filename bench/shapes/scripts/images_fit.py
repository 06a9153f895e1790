"""Image classification by Lightning or the Hugging Face Trainer: slow transforms, grids of pictures
logged, metrics over all that was seen, too many validations.
"""

import warnings

import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
steps, cost = STEPS or 160, Cost()
torch.set_num_threads(1)
torch.manual_seed(116)


class Photos(Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        photo = torch.rand(3, 20, 20)
        if on("elastic"):
            with cost:
                for _ in range(2):
                    for line in range(20):
                        photo[:, line] = photo[:, line].roll(line % 5)  # at: elastic
        return {"x": photo, "labels": int(photo[0].mean() * 40) % 4}


def network():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 24, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24 * 81, 4),
    )


def by_lightning():
    import lightning as L

    class Classifier(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network()
            self.seen = []

        def training_step(self, batch, _):
            scores = self.net(batch["x"])
            loss = nn.functional.cross_entropy(scores, batch["labels"])
            if on("metric_over_all"):
                self.seen.append((scores.detach(), batch["labels"]))
                with cost:
                    everything = torch.cat([one for one, _ in self.seen])  # at: metric_over_all
                    order = everything.softmax(1).sort(dim=0)[0]  # at: metric_over_all
                    for share in range(40):
                        self.at = order.quantile(share / 40, dim=0)  # at: metric_over_all
            self.log("loss", loss)
            return loss

        def on_train_batch_end(self, outputs, batch, step):
            if on("grid_logged") or (on("clean_grid_logged") and step % 80 == 79):
                with cost:
                    grid = batch["x"].permute(0, 2, 3, 1).reshape(-1, 20, 3)
                    with open("grid.ppm", "w") as file:  # at: grid_logged
                        for row in (grid * 255).int().tolist():  # at: grid_logged
                            file.write(" ".join(str(v) for p in row for v in p))  # at: grid_logged

        def validation_step(self, batch, _):
            self.log("valid", nn.functional.cross_entropy(self.net(batch["x"]), batch["labels"]))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.02)

    often = 4 if on("validated_often") else steps
    trainer = L.Trainer(
        accelerator="cpu",
        max_steps=steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        val_check_interval=often,
        num_sanity_val_steps=0,
    )
    trainer.fit(  # at: elastic validated_often
        Classifier(),
        DataLoader(Photos(steps * 16), batch_size=16),  # at: elastic
        DataLoader(Photos(96), batch_size=16),
    )


by_lightning()
cost.print(steps)
