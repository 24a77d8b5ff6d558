"""Writes small tokenizers of two kinds, as Hugging Face writes them."""

import collections
import json

TEXT = [
  "the cat sat on the mat, and the dog sat on the rug",
  "Über 42 Straßen läuft die Katze: naïve café, 你好 🙂",
  "user assistant system you are a helpful assistant 0123456789",
]
CHATML = (
  "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
  "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
  "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def save(folder, kind="bytes", *, template=CHATML, size=320, **settings):
  """Writes tokenizer.json and tokenizer_config.json; returns the folder.

  Args:
    folder: path of the folder; it is created if it does not exist.
    kind: "bytes", byte-level BPE as Qwen has it; "fallback", BPE with bytes for
      unknown letters, and BOS, as Llama 2 and Mistral have it.
    template: of chats, None for none.
    size: ids.
    **settings: of tokenizer_config.json.
  """
  import tokenizers
  from tokenizers import (
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
  )

  is_bytes = kind == "bytes"
  special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
  if is_bytes:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    named = {"eos_token": "<|im_end|>"}
  else:
    special = ["<unk>", "<s>", "</s>", *special]
    special += [f"<0x{code:02X}>" for code in range(256)]
    size += 256
    tokenizer = tokenizers.Tokenizer(
      models.BPE(unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence(
      [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence(
      [
        decoders.Replace("\u2581", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
      ]
    )
    # The most frequent 30. Left to itself, the trainer takes letters of one
    # count by the order of a hash table, which differs from call to call.
    count = collections.Counter(" ".join(["", *TEXT]).replace(" ", "\u2581"))
    letters = sorted(count, key=lambda letter: (-count[letter], letter))[:30]
    named = {"bos_token": {"content": "<s>"}, "eos_token": "</s>"}
  trainer = trainers.BpeTrainer(
    vocab_size=size,
    special_tokens=special,
    initial_alphabet=letters,
    limit_alphabet=len(letters),
    show_progress=False,
  )
  tokenizer.train_from_iterator(TEXT, trainer)
  if not is_bytes:
    tokenizer.post_processor = processors.TemplateProcessing(
      single="<s> $A", special_tokens=[("<s>", 1)]
    )
  read = json.loads(tokenizer.to_str())
  # Trained as special, so that they are there; bytes are ordinary tokens.
  read["added_tokens"] = [
    each
    for each in read["added_tokens"]
    if not each["content"].startswith("<0x")
  ]
  # Of training; reading it must not cut or pad.
  read["truncation"] = {
    "direction": "Right",
    "max_length": 4,
    "strategy": "LongestFirst",
    "stride": 0,
  }
  folder.mkdir(exist_ok=True)
  (folder / "tokenizer.json").write_text(json.dumps(read), encoding="utf-8")
  config = named | ({"chat_template": template} if template else {}) | settings
  (folder / "tokenizer_config.json").write_text(json.dumps(config))
  return folder
