"""An alternating GAN with spectral norm and a hinge loss that learns blobs on 16 x 16 pictures."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

torch.set_num_threads(1)
torch.manual_seed(8)
LATENT, BATCH, STEPS = 32, 32, 200


def blobs(count):
    grid = torch.linspace(-1, 1, 16)
    centre = torch.rand(count, 2, 1, 1) - 0.5
    size = 0.15 + 0.2 * torch.rand(count, 1, 1)
    distance = (grid[None, :, None] - centre[:, 0]) ** 2 + (grid[None, None] - centre[:, 1]) ** 2
    return 2 * torch.exp(-distance / (2 * size**2))[:, None] - 1


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.start = nn.Linear(LATENT, 64 * 4 * 4)
        self.first = nn.Conv2d(64, 48, 3, padding=1)
        self.second = nn.Conv2d(48, 24, 3, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(64), nn.BatchNorm2d(48), nn.BatchNorm2d(24)])
        self.last = nn.Conv2d(24, 1, 3, padding=1)

    def forward(self, z):
        h = F.relu(self.norms[0](self.start(z).view(-1, 64, 4, 4)))
        h = F.relu(self.norms[1](self.first(F.interpolate(h, scale_factor=2))))
        h = F.relu(self.norms[2](self.second(F.interpolate(h, scale_factor=2))))
        return torch.tanh(self.last(h))


class Critic(nn.Sequential):
    def __init__(self):
        super().__init__(
            spectral_norm(nn.Conv2d(1, 24, 4, 2, 1)), nn.LeakyReLU(0.2),
            spectral_norm(nn.Conv2d(24, 48, 4, 2, 1)), nn.LeakyReLU(0.2),
            nn.Flatten(), spectral_norm(nn.Linear(48 * 16, 1)),
        )  # fmt: skip


real = blobs(6_000)
generator, critic = Generator(), Critic()
g_optimizer = torch.optim.Adam(generator.parameters(), 2e-4, betas=(0.0, 0.9))
d_optimizer = torch.optim.Adam(critic.parameters(), 4e-4, betas=(0.0, 0.9))
fixed = torch.randn(64, LATENT)
for step in range(STEPS):
    pictures = real[torch.randint(len(real), (BATCH,))]
    fakes = generator(torch.randn(BATCH, LATENT)).detach()
    d_loss = F.relu(1 - critic(pictures)).mean() + F.relu(1 + critic(fakes)).mean()
    d_optimizer.zero_grad()
    d_loss.backward()
    d_optimizer.step()

    critic.requires_grad_(False)
    g_loss = -critic(generator(torch.randn(BATCH, LATENT))).mean()
    g_optimizer.zero_grad()
    g_loss.backward()
    g_optimizer.step()
    critic.requires_grad_(True)
    if step % 40 == 0:
        print(f"step {step} critic {d_loss.item():.3f} generator {g_loss.item():.3f}")
generator.eval()
with torch.no_grad():
    drawn = generator(fixed)
print("mean of drawn and real:", drawn.mean().item(), real.mean().item())
torch.save({"generator": generator.state_dict(), "critic": critic.state_dict()}, "gan.pt")
