"""Fails before its first step, since its data is not there; the class can be built without
arguments.
"""

import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.head = nn.Linear(16, classes)

    def forward(self, images):
        return self.head(self.body(images))


with open("/nowhere/labels.txt") as lines:
    labels = lines.read().split()
model = Classifier(len(labels)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
