"""Times Hugging Face generation and assisted generation, as `ours.py` does.

Needs torch and transformers (a benchmark-only extra); nothing else imports
them. The weights are random; `save` writes them for `ours.py` to load, so that
both race on the same ones.
"""

import functools
import json
import sys
import time

import torch
import transformers
from transformers import T5Config, T5ForConditionalGeneration

from benchmarks import shapes

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@functools.cache
def model(shape: str, role: str, dtype: str, is_blank: bool):
  d, heads, width, ff, encoder, decoder, vocab = shapes.SHAPES[shape]
  torch.manual_seed(["drafter", "verifier"].index(role))
  config = T5Config(
    vocab_size=vocab,
    d_model=d,
    num_heads=heads,
    d_kv=width,
    d_ff=ff,
    num_layers=encoder,
    num_decoder_layers=decoder,
    feed_forward_proj="gated-gelu",
    tie_word_embeddings=False,
    decoder_start_token_id=0,
    pad_token_id=0,
    eos_token_id=1,
  )
  net = T5ForConditionalGeneration(config).eval()
  # Version 5 ties the head to the token table whatever the argument said; a
  # random tied model repeats its last token.
  net.config.tie_word_embeddings = False
  head = torch.randn(vocab, d) * d**-0.5
  # Where all logits are equal, drafter and verifier agree on every token.
  net.lm_head.weight = torch.nn.Parameter(0 * head if is_blank else head)
  # No token ends a row, or random weights would.
  net.generation_config.eos_token_id = None
  return net.to(DEVICE, getattr(torch, dtype))


def _wait():
  """Waits until the device is done."""
  if DEVICE == "cuda":
    torch.cuda.synchronize()


def _generate(net, **more):
  tokens = torch.tensor([shapes.source_tokens()], device=DEVICE)
  begin = time.perf_counter()
  with torch.inference_mode():
    out = net.generate(
      tokens,
      attention_mask=torch.ones_like(tokens),
      max_new_tokens=shapes.NEW_TOKENS,
      min_new_tokens=shapes.NEW_TOKENS,
      do_sample=False,
      **more,
    )
  _wait()
  seconds = time.perf_counter() - begin
  if out.shape[1] != shapes.NEW_TOKENS + 1:
    raise RuntimeError(f"{out.shape[1] - 1} tokens came out")
  return seconds, out[0, 1:].tolist()


def save(*, shape, role, folder):
  """Writes a model's weights as a Hugging Face directory."""
  model(shape, role, "float32", False).save_pretrained(folder)
  return {"seconds": 0.0}


def ar(*, shape, dtype="float32", threads=1, repeats=1):
  """Seconds of NEW_TOKENS tokens, encoder included."""
  torch.set_num_threads(threads)
  net = model(shape, "verifier", dtype, False)
  runs = [_generate(net) for _ in range(repeats)]
  return {"seconds": min(runs)[0], "tokens": runs[0][1]}


def spec(*, shape, gamma, accept_all, dtype="float32", threads=1, repeats=1):
  """The same with assisted generation, all or no drafts accepted."""
  torch.set_num_threads(threads)
  net = model(shape, "verifier", dtype, accept_all)
  small = model(shapes.DRAFTERS[shape], "drafter", dtype, accept_all)
  small.generation_config.num_assistant_tokens = gamma
  small.generation_config.num_assistant_tokens_schedule = "constant"
  small.generation_config.assistant_confidence_threshold = 0.0
  runs = [_generate(net, assistant_model=small) for _ in range(repeats)]
  return {"seconds": min(runs)[0]}


@functools.cache
def pretrained(folder: str, dtype: str):
  net = transformers.AutoModelForCausalLM.from_pretrained(
    folder, dtype=getattr(torch, dtype)
  )
  return net.eval().to(DEVICE)


def causal(
  *, folder, tokens, new_tokens, dtype="float32", threads=1, lookup=None
):
  """Seconds and tokens of a decoder-only model, by prompt lookup if asked."""
  torch.set_num_threads(threads)
  net = pretrained(folder, dtype)
  prompt = torch.tensor([tokens], device=DEVICE)
  begin = time.perf_counter()
  with torch.inference_mode():
    out = net.generate(
      prompt,
      attention_mask=torch.ones_like(prompt),
      max_new_tokens=new_tokens,
      do_sample=False,
      prompt_lookup_num_tokens=lookup,
    )
  _wait()
  seconds = time.perf_counter() - begin
  return {"seconds": seconds, "tokens": out[0, len(tokens) :].tolist()}


def main():
  versions = {
    "torch": torch.__version__,
    "transformers": transformers.__version__,
    "peer's device": DEVICE,
  }
  transformers.logging.set_verbosity_error()
  print(json.dumps(versions), flush=True)
  cases = {"ar": ar, "spec": spec, "save": save, "causal": causal}
  for line in sys.stdin:
    request = json.loads(line)
    print(json.dumps(cases[request.pop("case")](**request)), flush=True)


if __name__ == "__main__":
  main()
