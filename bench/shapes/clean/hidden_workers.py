"""Pictures with heavy augmentation in two persistent workers, hidden behind a heavier convnet."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Textures(Dataset):
    """Pictures of six textures, each turned, cropped, blurred and recoloured as it is asked for."""

    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        looks = torch.randn(6, 3, 12, 12, generator=torch.Generator().manual_seed(0))
        self.labels = torch.randint(6, (count,), generator=generator)
        big = F.interpolate(looks, size=36, mode="bicubic")
        noise = 1.2 * torch.randn(count, 3, 36, 36, generator=generator)
        self.pictures = big[self.labels] + noise

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, number):
        picture = self.pictures[number]
        if torch.rand(()) < 0.5:
            picture = picture.flip(-1)
        top, left = torch.randint(0, 5, (2,)).tolist()
        picture = picture[None, :, top : top + 32, left : left + 32]
        if torch.rand(()) < 0.3:
            picture = F.avg_pool2d(picture, 3, 1, 1)
        picture = picture * (0.8 + 0.4 * torch.rand(1, 3, 1, 1)) + 0.1 * torch.randn(1, 3, 1, 1)
        return picture[0], self.labels[number]


def unit(before, after, stride):
    return nn.Sequential(
        nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()
    )


def main():
    torch.set_num_threads(1)
    torch.manual_seed(9)
    loader = DataLoader(
        Textures(2_048, 1), batch_size=32, shuffle=True, drop_last=True,
        num_workers=2, persistent_workers=True, prefetch_factor=4,
    )  # fmt: skip
    model = nn.Sequential(
        unit(3, 16, 1), unit(16, 32, 2), unit(32, 32, 1), unit(32, 64, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(64, 6),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for epoch in range(5):
        model.train()
        right = seen = 0
        for pictures, labels in loader:
            scores = model(pictures)
            loss = F.cross_entropy(scores, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += (scores.argmax(1) == labels).sum().item()
            seen += len(labels)
        schedule.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {right / seen:.3f}")
    torch.save(model.state_dict(), "textures.pt")


if __name__ == "__main__":
    main()
