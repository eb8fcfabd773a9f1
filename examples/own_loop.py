"""A training loop of your own in a swarm: a small convolutional network learns to tell how stripes in an image run.

python examples/own_loop.py                                   makes a run and trains alone
python examples/own_loop.py --run-id RUN --peers ADDRESS      joins it, from the same or another machine
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
angles = torch.rand(2000, 1, 1) * torch.pi
rows, columns = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
images = torch.sin(rows * angles.cos() + columns * angles.sin()).unsqueeze(1) + 0.3 * torch.randn(2000, 1, 16, 16)
labels = (angles.flatten() * 4 / torch.pi).long()

model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
folder = flags.folder or tempfile.mkdtemp(prefix="own-loop-")
settings = {"averaging": {"sync_every": 20}}
run_id = flags.run_id or murmuration.create_custom_run("stripes", model, settings, folder).run_id
with murmuration.join(run_id, module=model, optimizer=optimizer, peers=flags.peers, data_dir=folder) as swarm:
    print("others join with: --run-id", run_id, "--peers", *swarm.addresses, flush=True)
    for indices in swarm.samples(batch_size=32, num_samples=len(images), max_steps=flags.steps):
        loss = nn.functional.cross_entropy(model(images[indices]), labels[indices])
        optimizer.zero_grad()
        loss.backward()
        swarm.report(loss.item())
        optimizer.step()
        if swarm.inner_steps % 100 == 0:
            print(f"step {swarm.inner_steps}: loss {loss.item():.3f}, anchors at versions {swarm.versions}", flush=True)
