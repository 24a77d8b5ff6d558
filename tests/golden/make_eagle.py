"""Makes `eagle/`: tiny random drafters of EAGLE's kinds, and what they draft.

  python tests/golden/make_eagle.py eagle CLONE_OF_EAGLE
  python tests/golden/make_eagle.py speculators
  python tests/golden/make_eagle.py speculators_eagle

Wants nothing of this package. The first wants torch, transformers 4.53.3 and a
clone of SafeAILab/EAGLE, the second speculators 0.9.0 and transformers 5.24.0,
and the third speculators 0.3.0 with transformers 4.57.6. Each folder is what
such a drafter is published as, in safetensors. NAME.npz beside it holds

  tokens [T]          a text
  states [T - 1, W]   what the verifier leaves at its tokens but the last
  read [T - 1, N]     the drafter's logits after tokens 1 to T - 1
  logits [G, N]       its logits at each draft of a greedy chain
  drafts [G]          the chain, in the verifier's tokens
  table, head [V, E]  the verifier's, where the drafter has none

All is float32. Token 0 has no state before it: EAGLE's drafters never read it.
"""

import json
import pathlib
import sys

import numpy as np
import safetensors.torch
import torch

FOLDER = pathlib.Path(__file__).parent / "eagle"
LENGTH, NUM_DRAFTS = 9, 4
SIZES = {
  "vocab_size": 40,
  "hidden_size": 16,
  "intermediate_size": 24,
  "num_hidden_layers": 1,
  "num_attention_heads": 2,
  "num_key_value_heads": 1,
  "head_dim": 8,
  "max_position_embeddings": 64,
  "rms_norm_eps": 1e-5,
  "bos_token_id": 1,
  "eos_token_id": 2,
  "pad_token_id": 0,
  "tie_word_embeddings": False,
}
NUM_KEPT = 20


def randomise(model, seed):
  """Draws all weights, so that biases and norms are not 0 and 1."""
  generator = torch.Generator().manual_seed(seed)
  for parameter in model.parameters():
    value = torch.randn(parameter.shape, generator=generator)
    is_matrix = parameter.ndim == 2
    scale = parameter.shape[1] ** -0.5 if is_matrix else 0.3
    parameter.data = value * scale + (0 if is_matrix else 0.6)


def kept(rng):
  """Returns (d2t, t2d) of a draft vocabulary."""
  vocab = SIZES["vocab_size"]
  ids = np.sort(rng.choice(vocab, NUM_KEPT, replace=False))
  is_kept = np.isin(np.arange(vocab), ids)
  offsets = torch.tensor(ids - np.arange(NUM_KEPT))
  return offsets, torch.tensor(is_kept)


def write(name, run, num_states, rng, offsets=None, **more):
  """Writes what a drafter drafts.

  Args:
    name: of the folder.
    run: a function from (tokens [L], states [L, W], number of drafts) to the
      logits [L, N] of the first reading and [k + 1, N] at the drafts so far,
      which are the tokens past the text.
    num_states: how many states are concatenated.
    rng: draws the text and the states.
    offsets: d2t, or None.
    **more: further arrays.
  """
  width = num_states * SIZES["hidden_size"]
  while True:
    text = rng.integers(0, SIZES["vocab_size"], LENGTH).tolist()
    states = rng.normal(size=(LENGTH - 1, width)).astype(np.float32)
    tokens, gaps = list(text), []
    for step in range(NUM_DRAFTS):
      read, logits = run(tokens, states, step)
      second, first = np.sort(logits[-1])[-2:]
      gaps.append((first - second) / np.abs(logits[-1]).max())
      draft = int(logits[-1].argmax())
      tokens.append(draft + (0 if offsets is None else int(offsets[draft])))
    if min(gaps) > 0.01:
      break
  np.savez(
    FOLDER / f"{name}.npz",
    tokens=np.asarray(text, np.int32),
    states=states,
    read=read[: LENGTH - 1],
    logits=logits,
    drafts=np.asarray(tokens[LENGTH:], np.int32),
    **more,
  )


def without_sources(name):
  """Removes the copies of its code that `save_pretrained` adds."""
  for path in [
    *(FOLDER / name).glob("*.py"),
    FOLDER / name / "generation_config.json",
  ]:
    path.unlink(missing_ok=True)


def save(name, tensors, settings):
  (FOLDER / name).mkdir(parents=True, exist_ok=True)
  safetensors.torch.save_file(
    {key: value.contiguous() for key, value in tensors.items()},
    FOLDER / name / "model.safetensors",
    metadata={"format": "pt"},
  )
  text = json.dumps(settings, indent=2, sort_keys=True) + "\n"
  (FOLDER / name / "config.json").write_text(text)


def of_eagle(clone):
  """Makes the two layouts of SafeAILab/EAGLE."""
  sys.path.insert(0, clone)
  from eagle.model import cnets, cnets1
  from eagle.model.configs import EConfig

  def step_by_step(model, head):
    @torch.no_grad()
    def run(tokens, states, num_more):
      ids = torch.tensor([tokens])
      first = ids[:, 1:LENGTH]
      hidden, past = model(
        torch.tensor(states)[None], input_ids=first, use_cache=True
      )
      read, logits = head(hidden)[0], [head(hidden[:, -1])[0]]
      own = hidden[:, -1:]
      for i in range(num_more):
        own, past = model(
          own,
          input_ids=ids[:, LENGTH + i : LENGTH + i + 1],
          past_key_values=past,
          use_cache=True,
        )
        logits.append(head(own[:, -1])[0])
      return read.numpy(), torch.stack(logits).numpy()

    return run

  rng = np.random.default_rng(0)
  settings = SIZES | {"hidden_act": "silu", "model_type": "llama"}
  config = EConfig(**settings, pretraining_tp=1, rope_theta=500.0)
  settings |= {"rope_theta": 500.0, "architectures": ["LlamaForCausalLM"]}
  model = cnets1.Model(config, bias=True)
  randomise(model, 0)
  model.eval()
  output = torch.randn(40, 16, generator=torch.Generator().manual_seed(9)) / 4
  save("eagle", model.state_dict(), settings | {"bias": True})
  write(
    "eagle",
    step_by_step(model, lambda x: x @ output.T),
    1,
    rng,
    table=model.embed_tokens.weight.detach().numpy(),
    head=output.numpy(),
  )

  config.draft_vocab_size = NUM_KEPT
  model = cnets.Model(config)
  randomise(model, 1)
  model.eval()
  model.d2t, model.t2d = kept(rng)
  tensors = model.state_dict()
  del tensors["embed_tokens.weight"]
  save(
    "eagle3",
    tensors,
    settings
    | {
      "draft_vocab_size": NUM_KEPT,
      "architectures": ["LlamaForCausalLMEagle3"],
    },
  )
  write(
    "eagle3",
    step_by_step(model, lambda x: model.lm_head(model.norm(x))),
    3,
    rng,
    model.d2t,
    table=model.embed_tokens.weight.detach().numpy(),
  )


def of_speculators():
  """Makes speculators' EAGLE-3, with and without its options."""
  from speculators.config import SpeculatorsConfig, VerifierConfig
  from speculators.models.eagle3 import Eagle3SpeculatorConfig
  from speculators.models.eagle3.core import Eagle3DraftModel
  from speculators.proposals.greedy import GreedyTokenProposalConfig
  import transformers

  options = {
    "speculators_llama": {"norm_before_fc": True},
    "speculators_qwen3": {
      "norm_before_residual": True,
      "norm_output": True,
      "fc_norm": True,
      "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
    },
  }
  for seed, (name, flags) in enumerate(options.items()):
    rng = np.random.default_rng(seed + 2)
    kind = name.partition("_")[2]
    layer = transformers.AutoConfig.for_model(kind, **SIZES)
    layer._attn_implementation = "eager"
    model = Eagle3DraftModel(
      Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=NUM_KEPT,
        speculators_config=SpeculatorsConfig(
          algorithm="eagle3",
          proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=4)],
          default_proposal_method="greedy",
          verifier=VerifierConfig(name_or_path=None, architectures=["Any"]),
        ),
        **flags,
      )
    )
    randomise(model, seed + 2)
    model.eval()
    offsets, is_kept = kept(rng)
    model.load_vocab_mappings(is_kept, offsets)
    model.save_pretrained(FOLDER / name)
    without_sources(name)

    @torch.no_grad()
    def run(tokens, states, num_more, model=model):
      found = []
      hook = model.lm_head.register_forward_hook(
        lambda layer, inputs, output: found.append(output[0].numpy())
      )
      ids = torch.tensor([tokens[1:]])
      padded = np.zeros((ids.shape[1], states.shape[1]), np.float32)
      padded[: len(states)] = states
      model(
        torch.tensor(padded)[None],
        ids,
        torch.zeros_like(ids),
        ttt_steps=num_more + 1,
      )
      hook.remove()
      return found[0], np.stack([x[LENGTH - 2] for x in found])

    write(name, run, 3, rng, offsets)


def of_speculators_eagle():
  """Makes speculators' EAGLE-1, which later versions of it do not have."""
  from speculators import SpeculatorsConfig, VerifierConfig
  from speculators.models.eagle import EagleSpeculator, EagleSpeculatorConfig
  from speculators.proposals import GreedyTokenProposalConfig
  import transformers

  rng = np.random.default_rng(7)
  layer = transformers.LlamaConfig(**SIZES, attn_implementation="eager")
  verifier = transformers.LlamaForCausalLM(layer)
  model = EagleSpeculator(
    EagleSpeculatorConfig(
      transformer_layer_config=layer,
      fusion_bias=True,
      speculators_config=SpeculatorsConfig(
        algorithm="eagle",
        proposal_methods=[GreedyTokenProposalConfig()],
        default_proposal_method="greedy",
        verifier=VerifierConfig(name_or_path=None, architectures=["Any"]),
      ),
    )
  )
  randomise(model, 7)
  randomise(verifier, 8)
  model.save_pretrained(FOLDER / "speculators_eagle")
  without_sources("speculators_eagle")
  model.attach_verifier(verifier, mode="train_only")
  model.eval()
  states_of_drafts = []
  model.transformer.register_forward_hook(
    lambda layer, inputs, output: states_of_drafts.append(
      output[0] if isinstance(output, tuple) else output
    )
  )

  @torch.no_grad()
  def run(tokens, states, num_more):
    # Without a cache: the states of the drafts so far are appended.
    hidden, logits = torch.tensor(states)[None], []
    for i in range(num_more + 1):
      ids = torch.tensor([tokens[1 : LENGTH + i]])
      out = model(
        ids, hidden, attention_mask=torch.ones_like(ids), return_dict=True
      )
      # (With this transformers the module loses the axis of rows.)
      every = out.logits.reshape(-1, SIZES["vocab_size"]).numpy()
      logits.append(every[-1])
      own = states_of_drafts[-1].reshape(1, -1, SIZES["hidden_size"])
      hidden = torch.cat([hidden, own[:, -1:]], dim=1)
      if not i:
        read = every
    return read, np.stack(logits)

  write(
    "speculators_eagle",
    run,
    1,
    rng,
    table=verifier.model.embed_tokens.weight.detach().numpy(),
    head=verifier.lm_head.weight.detach().numpy(),
  )


def main(kind, *arguments):
  FOLDER.mkdir(exist_ok=True)
  makers = {
    "eagle": of_eagle,
    "speculators": of_speculators,
    "speculators_eagle": of_speculators_eagle,
  }
  makers[kind](*arguments)


if __name__ == "__main__":
  main(*sys.argv[1:])
