#!/usr/bin/env bash
# The path to a column of the paper's Table 2 on WMT14: the data, fine-tuning T5
# v1.1 small and large, the sweep, the report. Fresh machine: makes .venv and
# installs first. Run again, it continues where it stopped.
#
#   bash launch/table2.sh          a smoke test: 1,000 steps, 50 examples, one
#                                  alpha for each method
#   bash launch/table2.sh --full   100,000 steps, 3,000 examples, all curves
#   bash launch/table2.sh --tiny   minutes on two cores, with no download: models
#                                  that learn nothing, on sentences of the package
#
#   --output_dir=FOLDER   where models, rows and the report go (out/table2)
#   --data_dir=FOLDER     of TensorFlow Datasets (tfds)
#   --text_files=FOLDER   train.en, train.de, dev.en and dev.de in their place
#   --dry_run             prints the commands, and runs none
#
# SPECCASCADE_JAX=tpu or cuda12 installs jax for the accelerator.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

check_flags "output_dir data_dir text_files" "full tiny dry_run" "$@"
output_dir=out/table2 data_dir=tfds text_files="" size=smoke dry_run=false
while [ $# -gt 0 ]; do
  key="${1%%=*}" && key="${key#--}"
  case "$1" in
    --full | --tiny)
      [ $size = smoke ] || usage "--full and --tiny are given: want one of them"
      size="$key"
      ;;
    --dry_run) dry_run=true ;;
    --*=*) printf -v "$key" %s "${1#*=}" ;;
    *) shift && printf -v "$key" %s "$1" ;;
  esac
  shift
done
# The commands name folders within quotes of gin.
case "$output_dir$data_dir$text_files" in
  *[\'\"\\[:cntrl:]]*) usage "a folder has a quote, a backslash or a line break" ;;
esac
if [ $size = tiny ]; then
  [ -z "$text_files" ] || usage "--tiny has its own text: leave --text_files out"
  text_files="$output_dir/text"
fi

# What each size changes of the configs: the trainings, and the sweep.
configs=configs/experiments/wmt_ende
train=() sweep=() shapes=()
case $size in
  smoke)
    train=(TRAIN_STEPS=1_001_000 EVAL_PERIOD=500 CHECKPOINT_PERIOD=500
      NUM_EVAL_EXAMPLES=500 NUM_DECODED_EXAMPLES=50)
    sweep=(NUM_EXAMPLES=50 NUM_TIMED=50 REPEATS=1 "ALPHAS='one'")
    ;;
  tiny)
    train=(INITIAL_CHECKPOINT_PATH=None TRAIN_STEPS=2 EVAL_PERIOD=2
      CHECKPOINT_PERIOD=2 NUM_EVAL_EXAMPLES=4 NUM_DECODED_EXAMPLES=2
      BATCH_SIZE=8 MAX_DECODE_LEN=8 "DTYPE='float32'")
    sweep=(NUM_EXAMPLES=3 NUM_TIMED=2 REPEATS=1 NUM_SHOWN=1 BATCH_SIZE=2
      MAX_DECODE_LEN=8 TEMPERATURES=[1.0] "ALPHAS='one'" "DTYPE='float32'"
      "METHODS=['spec_decode', 'spec_cascade_opt']")
    for model in t5_1_1_small t5_1_1_large; do
      for each in vocab_size=1536 emb_dim=16 num_heads=2 num_encoder_layers=1 \
        num_decoder_layers=1 head_dim=8 mlp_dim=16; do
        shapes+=("$model/config.T5Config.$each")
      done
    done
    shapes+=("VOCABULARY='speccascade/tasks/generated/vocabulary.model'")
    ;;
esac

say_step() { if $dry_run; then echo "# $*"; else say "$*"; fi; }

# Prints or runs a command of the package: perform NAME FLAG...
perform() {
  if $dry_run; then
    quoted python -m "speccascade.$1" "${@:2}"
  else
    run_command "$PYTHON" -m "speccascade.$1" "${@:2}"
  fi
}

# The same with a config and macros: perform_gin NAME CONFIG MACRO=VALUE...
perform_gin() {
  local flags=("--gin_file=$configs/$2.gin") macros=("${@:3}") each
  if [ -n "$text_files" ]; then
    flags+=(--gin_file=configs/data/text_files.gin)
    macros+=("TRAIN_FILES='$text_files/train'"
      "VALIDATION_FILES='$text_files/dev'")
  else
    flags+=("--tfds_data_dir=$data_dir")
  fi
  for each in "${macros[@]}" ${shapes[@]+"${shapes[@]}"}; do
    flags+=("--gin.$each")
  done
  perform "$1" "${flags[@]}"
}

# Prepares WMT14, or writes sentences of the package.
prepare() {
  local code="import tensorflow_datasets as tfds;\
 tfds.builder('wmt_t2t_translate/de-en:1.0.0', data_dir='$data_dir')\
.download_and_prepare()"
  if [ $size = tiny ]; then
    code="import pathlib; from speccascade.tasks.generated import examples
folder = pathlib.Path('$text_files')
folder.mkdir(parents=True, exist_ok=True)
for name, split, num in ('train', 'train', 64), ('dev', 'validation', 8):
  pairs = [examples.pair(split, index) for index in range(num)]
  for lines, language in zip(zip(*pairs), ('en', 'de')):
    (folder / f'{name}.{language}').write_text('\n'.join(lines) + '\n')"
  elif [ -n "$text_files" ]; then
    return
  fi
  if $dry_run; then
    quoted python -c "$code"
  else
    "$PYTHON" -c "$code" </dev/null || fail "WMT14 was not prepared, see above:" \
      "prepare it where the network allows, copy the folder here, and name it by" \
      "--data_dir=FOLDER; or give --text_files=FOLDER (docs/accelerators.md)"
  fi
}

if ! $dry_run; then
  environment lab
  hint_at_accelerator
fi
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-3}"
say_step "the text"
prepare
say_step "fine-tuning small"
perform_gin train train_small "MODEL_DIR='$output_dir/small'" \
  ${train[@]+"${train[@]}"}
say_step "fine-tuning large"
perform_gin train train_large "MODEL_DIR='$output_dir/large'" MICROBATCHES=8 \
  ${train[@]+"${train[@]}"}
say_step "the sweep"
perform_gin sweep table2_large "DRAFTER_CHECKPOINT='$output_dir/small'" \
  "VERIFIER_CHECKPOINT='$output_dir/large'" \
  "OUTPUT_DIR='$output_dir/sweep'" ${sweep[@]+"${sweep[@]}"}
say_step "the report"
perform report "--results_dir=$output_dir/sweep"
$dry_run || say_done
