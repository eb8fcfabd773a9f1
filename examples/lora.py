"""LoRA in a swarm: only the adapter is trained and sent. Everybody needs the same base model.

python examples/lora.py                                   makes a run and trains alone
python examples/lora.py --run-id RUN --peers ADDRESS      joins it, from the same or another machine

The base is made from a configuration here; a real one is `AutoModelForCausalLM.from_pretrained(...)`.
"""

import argparse
import tempfile
from pathlib import Path

import torch

import murmuration

try:
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM
except ImportError as error:
    raise SystemExit(f"{error}; this example needs peft: pip install '.[hf]' in the clone") from error

parser = argparse.ArgumentParser()
parser.add_argument("--run-id")
parser.add_argument("--peers", nargs="*", default=[])
parser.add_argument("--folder", help="for key, checkpoints and log of this peer, and for the adapter")
parser.add_argument("--steps", type=int, default=1000)
flags = parser.parse_args()
folder = Path(flags.folder or tempfile.mkdtemp(prefix="lora-"))

text = torch.tensor(list(Path(argparse.__file__).read_bytes()))
torch.manual_seed(0)  # the same base everywhere
shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
base = LlamaForCausalLM(LlamaConfig(vocab_size=256, max_position_embeddings=128, bos_token_id=0, **shape))
model = get_peft_model(base, LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, flags.steps)

run_id = flags.run_id or murmuration.create_custom_run("adapter", model, {}, folder / "peer").run_id
choices = {"peers": flags.peers, "data_dir": folder / "peer", "state": {"scheduler": scheduler}}
with murmuration.join(run_id, module=model, optimizer=optimizer, **choices) as swarm:
    print("others join with: --run-id", run_id, "--peers", *swarm.addresses, flush=True)
    for starts in swarm.positions(num_blocks=8, context=127, num_tokens=len(text), max_steps=flags.steps):
        tokens = torch.stack([text[start : start + 128] for start in starts])
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        swarm.report(loss.item())
        optimizer.step()
        scheduler.step()
    with swarm.anchor():
        model.save_pretrained(folder / "adapter")
print("the swarm's adapter:", folder / "adapter")
