"""`generate` of transformers, with models that are tables of logits.

The models keep the tokens of a text in the cache of keys, and compute logits
from them, so a cache that is wrong writes another text.
"""

from collections.abc import Callable
import functools

import numpy as np

from benchmarks.peers import judge_exactly
from speccascade import judge


@functools.cache
def _table_model(vocab_size: int, role: str):
  """Returns a model whose logits are `model.logits_after(tokens)`.

  The table of embeddings holds the tokens themselves, and the head is the
  identity: what replaces either of them decides what the model sees and says.
  """
  import torch
  import transformers
  from transformers.modeling_outputs import CausalLMOutputWithPast

  class TableModel(transformers.PreTrainedModel, transformers.GenerationMixin):
    """Logits by table, and a cache that holds the tokens themselves."""

    config_class = transformers.PreTrainedConfig

    def __init__(self, config):
      super().__init__(config)
      size = config.vocab_size
      tokens = torch.arange(size, dtype=torch.float32)[:, None]
      self.table = torch.nn.Embedding.from_pretrained(tokens)
      self.head = torch.nn.Linear(size, size, bias=False)
      self.head.weight.data = torch.eye(size)

    def get_input_embeddings(self):
      return self.table

    def set_input_embeddings(self, value):
      self.table = value

    def get_output_embeddings(self):
      return self.head

    def set_output_embeddings(self, new_embeddings):
      self.head = new_embeddings

    def forward(self, input_ids, cache=None, **_):
      states = self.table(input_ids)[:, None]
      num = states.shape[2]
      if cache is not None:
        states = cache.update(states, states, 0)[0]
      text = states[0, 0, :, 0].long().tolist()
      ends = range(len(text) - num + 1, len(text) + 1)
      rows = np.stack([self.logits_after(text[:end]) for end in ends])
      # The head adds products of 0, so that it takes no infinities.
      rows = np.maximum(rows, -1e4)
      logits = self.head(torch.tensor(rows, dtype=torch.float32))
      return CausalLMOutputWithPast(logits=logits[None], cache=cache)

  config = transformers.PreTrainedConfig(
    vocab_size=vocab_size, num_hidden_layers=1, hidden_size=vocab_size
  )
  model = TableModel(config).eval()
  model.generation_config.num_assistant_tokens_schedule = "constant"
  model.generation_config.assistant_confidence_threshold = 0.0
  return model


def _model(logits_after: Callable, vocab_size: int, role: str):
  """Returns a model of transformers from a function of the text's tokens."""
  model = _table_model(vocab_size, role)
  model.logits_after = logits_after
  return model


def _generate(problem: judge.Problem, seed: int, before=(), **more):
  """Returns the new tokens of `generate` by sampling, or by arg-max."""
  import torch
  import transformers

  transformers.logging.set_verbosity_error()
  torch.manual_seed(seed)
  text = [*before, *problem.prompt]
  ends = problem.eos is not None
  length = problem.num_tokens
  how = {"do_sample": False}
  if problem.temperature:
    how = {
      "do_sample": True,
      "temperature": float(problem.temperature),
      "top_k": problem.top_k or 0,
      "top_p": problem.top_p or 1.0,
    }
  model = _model(
    lambda tokens: problem.verifier(tokens[len(before) :]),
    problem.vocab_size,
    "target",
  )
  out = model.generate(
    torch.tensor([text]),
    attention_mask=torch.ones(1, len(text), dtype=torch.long),
    max_new_tokens=length,
    eos_token_id=problem.eos if ends else None,
    pad_token_id=problem.eos if ends else None,
    **how,
    **more,
  )
  return out[0, len(text) :]


SETTINGS = ("temperature", "top_k", "top_p")


def transformers_assisted(only: str = "") -> judge.Judgement:
  """Judges `generate` with an assistant of the same tokenizer."""

  def transformers_assistant(problem, seed):
    assistant = _model(problem.drafter, problem.vocab_size, "assistant")
    assistant.generation_config.num_assistant_tokens = problem.gamma
    return _generate(problem, seed, assistant_model=assistant)

  return judge_exactly(transformers_assistant, only, SETTINGS)


def transformers_prompt_lookup(only: str = "") -> judge.Judgement:
  """Judges `generate` with prompt lookup, after a prompt to look up in."""

  def transformers_lookup(problem, seed):
    # Each token has a continuation to copy.
    size = problem.vocab_size
    before = [*range(size), *reversed(range(size)), 0, 0]
    return _generate(
      problem, seed, before, prompt_lookup_num_tokens=problem.gamma
    )

  return judge_exactly(transformers_lookup, only, SETTINGS)


def _tokenizer(words: str):
  """Returns a tokenizer of transformers with a token for each letter."""
  import tokenizers
  import transformers

  vocabulary = {word: i for i, word in enumerate(words)}
  model = tokenizers.models.WordLevel(vocabulary, unk_token=words[-1])
  plain = tokenizers.Tokenizer(model)
  plain.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
  return transformers.PreTrainedTokenizerFast(
    tokenizer_object=plain, unk_token=words[-1]
  )


@functools.cache
def _two_tokenizers(size: int, in_order: bool) -> dict:
  """Returns an assistant of another tokenizer, and both tokenizers.

  A tokenizer lists its words in another order each time, and transformers
  keeps the order that it meets first. So tokenizers are made until it is the
  order of the ids, or is not.
  """
  from transformers.generation import candidate_generator

  words = "abcd"[:size]
  while True:
    given = {
      "tokenizer": _tokenizer(words),
      "assistant_tokenizer": _tokenizer(words[::-1] + "z"),
      "assistant_model": _table_model.__wrapped__(size + 1, "assistant"),
    }
    translator = candidate_generator.AssistantVocabTranslatorCache
    listed = translator.get_translator(
      *(given["tokenizer"], given["assistant_tokenizer"], size),
      assistant_model=given["assistant_model"],
      assistant_prune_lm_head=True,
    ).assistant_overlap_token_ids.tolist()
    if (listed == sorted(listed)) is in_order:
      return given


def _universal(only: str, in_order: bool) -> judge.Judgement:
  """Judges `generate` with an assistant of another tokenizer.

  The assistant has the verifier's words in reverse order, and a word more,
  which it draws half as often as the last of the others.
  """

  def transformers_other_tokenizer(problem, seed):
    size = problem.vocab_size

    def drafter(tokens):
      ours = [max(0, size - 1 - token) for token in tokens]
      logits = problem.drafter(ours)[::-1]
      return np.append(logits, logits[-1] - np.log(2))

    given = _two_tokenizers(size, in_order)
    assistant = given["assistant_model"]
    assistant.logits_after = drafter
    assistant.generation_config.num_assistant_tokens = problem.gamma
    return _generate(problem, seed, **given)

  return judge_exactly(transformers_other_tokenizer, only, SETTINGS)


def transformers_universal(only: str = "") -> judge.Judgement:
  """Judges another tokenizer, whose words are not listed by their ids."""
  return _universal(only, in_order=False)


def transformers_universal_in_order(only: str = "") -> judge.Judgement:
  """Judges another tokenizer, whose words are listed by their ids."""
  return _universal(only, in_order=True)
