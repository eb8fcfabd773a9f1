"""`transformers.Trainer` in a swarm: a small Llama learns Python's own source, as bytes.

python examples/trainer.py                                   makes a run and trains alone
python examples/trainer.py --run-id RUN --peers ADDRESS      joins it, from the same or another machine
"""

import argparse
import tempfile
from pathlib import Path

import torch

import murmuration

try:
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
except ImportError as error:
    raise SystemExit(f"{error}; this example needs transformers: pip install '.[hf]' in the clone") from error

from murmuration.integrations.transformers import SwarmCallback

parser = argparse.ArgumentParser()
parser.add_argument("--run-id")
parser.add_argument("--peers", nargs="*", default=[])
parser.add_argument("--folder", help="for key, checkpoints and log of this peer, and for the trained model")
parser.add_argument("--steps", type=int, default=1000)
flags = parser.parse_args()
folder = Path(flags.folder or tempfile.mkdtemp(prefix="trainer-"))

text = b"".join(path.read_bytes() for path in sorted(Path(argparse.__file__).parent.glob("*.py"))[:60])
blocks = torch.tensor(list(text[: len(text) // 128 * 128])).view(-1, 128)
dataset = [{"input_ids": block, "labels": block} for block in blocks]
shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
model = LlamaForCausalLM(LlamaConfig(vocab_size=256, max_position_embeddings=128, bos_token_id=0, **shape))

settings = {"averaging": {"sync_every": 20}}
run_id = flags.run_id or murmuration.create_custom_run("python", model, settings, folder / "peer").run_id
args = TrainingArguments(
    output_dir=str(folder / "out"),
    max_steps=flags.steps,
    per_device_train_batch_size=8,
    learning_rate=3e-3,
    logging_steps=20,
    save_steps=200,
    report_to="none",
)


def joined(swarm: murmuration.Swarm) -> None:
    print("others join with: --run-id", run_id, "--peers", *swarm.addresses, flush=True)


swarm = SwarmCallback(run_id, peers=flags.peers, data_dir=folder / "peer", on_joined=joined)
trainer = Trainer(model=model, args=args, train_dataset=dataset, callbacks=[swarm])
trainer.train()
trainer.save_model(str(folder / "model"))
print("the swarm's anchor:", folder / "model")
