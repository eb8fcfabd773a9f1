"""An image classifier with BatchNorm in a swarm: which of ten figures is drawn?

python examples/image_classifier.py                                   makes a run and trains alone
python examples/image_classifier.py --run-id RUN --peers ADDRESS      joins it, from the same or another machine
"""

import argparse
import tempfile

import torch
from torch import nn

import murmuration

parser = argparse.ArgumentParser()
parser.add_argument("--run-id")
parser.add_argument("--peers", nargs="*", default=[])
parser.add_argument("--folder", help="for key, checkpoints and log of this peer")
parser.add_argument("--steps", type=int, default=1000)
flags = parser.parse_args()

rows, columns = torch.meshgrid(torch.linspace(-3, 3, 16), torch.linspace(-3, 3, 16), indexing="ij")
figures = torch.stack([torch.sin(0.4 * number * rows * columns + number) for number in range(10)])
labels = torch.randint(10, (3000,))
images = 3 + 2 * (figures[labels] + 0.7 * torch.randn(3000, 16, 16)).unsqueeze(1)
held_out = slice(2500, 3000)

parts = [nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, 2), nn.BatchNorm2d(16), nn.ReLU()]
model = nn.Sequential(*parts, nn.Flatten(), nn.Linear(576, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
folder = flags.folder or tempfile.mkdtemp(prefix="image-classifier-")
run_id = (
    flags.run_id or murmuration.create_custom_run("figures", model, {"averaging": {"sync_every": 20}}, folder).run_id
)


@torch.no_grad()
def validation_loss() -> float:
    return nn.functional.cross_entropy(model(images[held_out]), labels[held_out]).item()


with murmuration.join(run_id, module=model, optimizer=optimizer, peers=flags.peers, data_dir=folder) as swarm:
    print("others join with: --run-id", run_id, "--peers", *swarm.addresses, flush=True)
    print("on joining: validation loss of the anchor", swarm.evaluate(validation_loss), flush=True)
    for indices in swarm.samples(batch_size=32, num_samples=held_out.start, max_steps=flags.steps):
        loss = nn.functional.cross_entropy(model(images[indices]), labels[indices])
        optimizer.zero_grad()
        loss.backward()
        swarm.report(loss.item())
        optimizer.step()
        if swarm.inner_steps % 100 == 0:
            print(
                f"step {swarm.inner_steps}: validation loss of the anchor", swarm.evaluate(validation_loss), flush=True
            )
