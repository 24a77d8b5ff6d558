"""What the launch scripts install and call, with fakes of what they call.

An interpreter records pip's arguments. The fakes of what reaches other machines
note how they are called. gcloud and Slurm's remember one VM, one request for it
and one job; ssh and scp do on this machine what they should do on another.
"""

import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys

import pytest

from speccascade import quickstart, smollm
from tests import conftest
from tests.decoding import test_execution_laws

ROOT = pathlib.Path(__file__).parents[1]
# Answers what has no pip in it by the real interpreter; has jax if $HAS_JAX.
PYTHON = f"""#!/bin/bash
case "$*" in
  *"-m pip install"*) echo "${{@: -8}}" >>"$VENV/calls" ;;
  *"-m pytest"*) echo "$PYTHONPATH" "$@" >>"$VENV/tested" ;;
  *"import t5x"*) [ -z "$NO_T5X" ] ;;
  *m.version*) [ -n "$HAS_JAX" ] ;;
  *pip*) ;;
  *) exec {sys.executable} "$@" ;;
esac
"""
FAKE = r"""#!/bin/bash
cd "$FAKE" && call="${0##*/} $*"
{ printf '%q ' "${0##*/}" "$@" && echo; } >>calls
case "$call" in *${FAIL:-no call}*) exit "${CODE:-3}" ;; esac
case "$call" in
  gcloud*queued-*" list "*) [ ! -e queue ] || printf 'wmt\t%s\n' "$(cat queue)"
    [ ! -e next ] || { mv next queue; [ "$(cat queue)" != ACTIVE ] ||
      echo READY >vm; } ;;
  gcloud*queued-*" create "*) echo WAITING_FOR_RESOURCES >queue
    echo ${GRANTED:-ACTIVE} >next ;;
  gcloud*queued-*" delete "*) rm -f queue vm ;;
  gcloud*" list "*) [ ! -e vm ] || printf 'wmt\t%s\n' "$(cat vm)" ;;
  gcloud*" create "*) echo READY >vm ;;
  gcloud*" delete "*) rm vm ;;
  gcloud*"follow wmt"*)
    if [ -e preempt ]; then rm preempt; echo PREEMPTED >vm; exit 255; fi
    [ "$(cat vm)" = READY ] ;;
  squeue*) [ ! -e job ] || cat job ;;
  sbatch*) echo 4711 >job ;;
  scancel*) rm job ;;
  srun*) exit "${SRUN:-0}" ;;
  "ssh -- "*) cd home && exec bash -c "$3" ;;
  scp*) shift $(($# - 2)); cp -r "home/${1#*:}" "$OLDPWD/$2" 2>/dev/null ||
    cp -r "$OLDPWD/$1" "home/${2#*:}" ;;
esac
"""
NAMES = ("gcloud", "ssh", "scp", "sbatch", "squeue", "scancel", "scontrol")
VERBS = ("list", "create", "delete", "scp")
VERBS += ("install", "start", "follow", "stop")
TPU = ("tpu_vm", "--zone=z", "--accelerator_type=v4-32", "--spot")
BOX = ("gpu_box", "--host=me@box")
SLURM = ("slurm", "--nodes=2", "--gpus_per_node=4", "--sbatch=--qos=a")
TRAIN = ("python", "-m", "speccascade.train", '--gin.A="b c"', "--distributed")

# What ignores Ctrl-C, as a job in the background does, would pass that on.
_HEARS_CTRL_C = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])
"""


class Checkout:
  """A small one, beside fakes.

  Attributes:
    folder: where it is.
  """

  def __init__(self, folder):
    self.folder = folder
    for name in ("launch", "configs", "speccascade", "benchmarks", "venv/bin"):
      (folder / name).mkdir(parents=True)
    (folder / "fakes/home").mkdir(parents=True)
    for path in (ROOT / "launch").iterdir():
      shutil.copy(path, folder / "launch")
    for name in ("setup.py", "constraints.txt", "README.md", "LICENSE"):
      shutil.copy(ROOT / name, folder)
    programs = dict.fromkeys((*NAMES, "srun"), FAKE)
    programs["../venv/bin/python"] = PYTHON
    for name, text in programs.items():
      (folder / "fakes" / name).write_text(text)
      (folder / "fakes" / name).chmod(0o755)

  def run(self, *words, **env):
    """Runs a program in bash; returns what subprocess.run does."""
    fakes = self.folder / "fakes"
    env = {"HAS_JAX": "", "POLL_S": "0.1", **env}
    env |= {"FAKE": str(fakes), "VENV": f"{self.folder}/venv"}
    env["PATH"] = f"{fakes}:{os.environ['PATH']}"
    how = {"capture_output": True, "text": True, "timeout": 60}
    command = [sys.executable, "-c", _HEARS_CTRL_C, "bash", *words]
    return subprocess.run(command, cwd=self.folder, env=env, **how)

  def launch(self, where, steps, *command, **env):
    """Runs steps of a launch script; returns the outcome, and `calls`,
    the words of each call of a fake."""
    calls = self.folder / "fakes/calls"
    calls.unlink(missing_ok=True)
    script, *options = where
    options += ["--name=wmt", *filter(None, steps.split(" "))]
    words = ["--", *command] if command else []
    done = self.run(f"launch/{script}.sh", *options, *words, **env)
    lines = calls.read_text().splitlines() if calls.exists() else []
    done.calls = parsed(lines)
    return done


@pytest.fixture
def checkout(tmp_path):
  return Checkout(tmp_path)


@pytest.fixture
def install(checkout):
  """Runs `environment base`; returns (what it said, what pip was to do)."""

  def call(**env):
    command = "source launch/environment.sh && environment base"
    done = checkout.run("-euo", "pipefail", "-c", command, **env)
    assert done.returncode == 0, done.stderr
    calls = checkout.folder / "venv/calls"
    last = calls.read_text().splitlines()[-1] if calls.exists() else ""
    calls.unlink(missing_ok=True)
    return done.stdout, last

  return call


def test_an_empty_environment(install):
  said, call = install()
  assert call.endswith("--constraint constraints.txt --editable .")
  assert "installing . with" in said
  # Our own jax is no other's, and the second time there is nothing to do.
  said, call = install(HAS_JAX="yes")
  assert "up to date" in said
  assert not call


def write_quickstart(checkout, lines):
  """Gives a checkout a quick start of some lines."""
  package = checkout.folder / "speccascade"
  (package / "__init__.py").touch()
  (package / "quickstart.py").write_text(lines)


def test_the_last_line_says_how_to_activate(checkout):
  write_quickstart(checkout, "")
  activate = f". {checkout.folder}/venv/bin/activate"
  for active in ("", str(checkout.folder / "venv")):
    done = checkout.run("launch/quickstart.sh", VIRTUAL_ENV=active)
    assert (done.returncode, done.stderr) == (0, "")
    last = done.stdout.splitlines()[-1]
    # There is nothing to activate where it is active.
    assert last.endswith("done" if active else f"in this shell: {activate}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_killed_script_ends_its_command_and_says_how_to_continue(
  checkout, number
):
  # The script alone gets the signal; both signals reach the command.
  write_quickstart(
    checkout,
    "import os, pathlib, signal, sys, time\n"
    "for x in (signal.SIGTERM, signal.SIGINT):\n"
    "  signal.signal(x, lambda number, _: sys.exit(128 + number))\n"
    f"os.kill(os.getppid(), {int(number)})\n"
    "time.sleep(30)\n",
  )
  done = checkout.run("launch/quickstart.sh", "--fast", "--output_dir=a b")
  assert done.returncode == 128 + number
  said = "stopped; to continue, run again: bash launch/quickstart.sh --fast"
  assert said in done.stderr
  assert "'--output_dir=a b'" in done.stderr


@pytest.mark.parametrize(
  ("unkept", "flag"), [("", "--no-compile"), ("1", "--compile")]
)
def test_an_install_compiles_what_imports_would_not_keep(install, unkept, flag):
  assert flag in install(PYTHONDONTWRITEBYTECODE=unkept)[1].split()


def test_jax_of_an_accelerator(install):
  said, call = install(SPECCASCADE_JAX="tpu")
  assert call.endswith("constraints.txt jax[tpu] --editable .")
  assert "installing . and jax[tpu] with" in said
  assert "up to date" in install(HAS_JAX="yes")[0]  # which is remembered


def test_a_jax_that_is_there_stays(install, checkout):
  said, call = install(HAS_JAX="yes", SPECCASCADE_JAX="tpu")
  constraints = checkout.folder / "venv/constraints.txt"
  assert call.endswith(f"--constraint {constraints} --editable .")
  assert "keeping the jax" in said
  kept, all_ = (
    {line.partition("==")[0] for line in path.read_text().splitlines()}
    for path in (constraints, ROOT / "constraints.txt")
  )
  assert all_ - kept == {"jax", "jaxlib", "libtpu"}
  assert "up to date" in install(HAS_JAX="yes")[0]


def test_another_set_of_versions(install, checkout):
  newest = checkout.folder / "newest.txt"
  newest.write_text("# Python 3.11 or newer.\njax==0.12.0\n")
  install()
  said, call = install(SPECCASCADE_CONSTRAINTS="newest.txt")
  assert "installing . with newest.txt" in said
  assert call.endswith("--constraint newest.txt --editable .")
  assert "up to date" in install(SPECCASCADE_CONSTRAINTS="newest.txt")[0]


@pytest.mark.parametrize(
  ("name", "said"),
  [
    ("newest.txt", "newest.txt needs Python 3.99 or newer, and "),
    ("absent.txt", "SPECCASCADE_CONSTRAINTS=absent.txt is not a file: give "),
  ],
)
def test_a_set_of_versions_that_cannot_be_is_one_line(checkout, name, said):
  newest = checkout.folder / "newest.txt"
  newest.write_text("# Python 3.99 or newer.\njax==9.0\n")
  command = "source launch/environment.sh && environment base"
  done = checkout.run("-c", command, SPECCASCADE_CONSTRAINTS=name)
  assert done.returncode == 1
  assert said in done.stderr
  assert done.stderr.count("\n") == 1


def test_the_tested_sets_have_the_packages_and_ranges_of_setup():
  requirements = pytest.importorskip("packaging.requirements")
  utils = pytest.importorskip("packaging.utils")
  sets = []
  for path in sorted(ROOT.glob("constraints*.txt")):
    pins = [
      line.split("==")
      for line in path.read_text().splitlines()
      if not line.startswith("#")
    ]
    sets.append({utils.canonicalize_name(name): pin for name, pin in pins})
  newest, first = sets
  assert newest.keys() == first.keys()
  assert newest["jax"] == newest["jaxlib"] != first["jax"] == first["jaxlib"]
  ranges = re.findall(
    r'^ +"([\w-]+(?:\[\w+\])?>=[\d.]+)', (ROOT / "setup.py").read_text(), re.M
  )
  assert len(ranges) > 20
  for each in map(requirements.Requirement, ranges):
    for pins in sets:
      assert each.specifier.contains(pins[utils.canonicalize_name(each.name)])


def parsed(lines):
  """Returns the words of each line that calls a fake."""
  calls = [shlex.split(line, comments=True) for line in lines]
  return [call for call in calls if call and call[0] in NAMES]


def verbs(done):
  """Returns what each call does."""
  words = [" ".join(call).replace("=", " ").split() for call in done.calls]
  return [next((x for x in VERBS if x in each), each[0]) for each in words]


@pytest.mark.parametrize(
  ("where", "steps", "command"),
  [
    (TPU, "create install run follow copy_back stop delete", TRAIN),
    (BOX, "install run follow copy_back stop", ("bash", "-c", "echo 'a b'")),
    (SLURM, "run stop", TRAIN),
  ],
)
def test_what_a_dry_run_prints_is_what_is_run(checkout, where, steps, command):
  dry = checkout.launch(where, f"{steps} --dry_run", *command)
  assert (dry.returncode, dry.stderr, dry.calls) == (0, "", [])
  assert not (checkout.folder / "out").exists()
  (checkout.folder / "fakes/home/speccascade/out").mkdir(parents=True)
  done = checkout.launch(where, steps, *command)
  assert (done.returncode, done.stderr) == (0, "")
  assert parsed(dry.stdout.splitlines()) == done.calls
  assert len(done.calls) >= 3


def test_a_vm_is_made_and_deleted_once(checkout):
  steps = "create --project=p"
  first = checkout.launch(TPU, steps)
  assert verbs(first) == ["list", "create"]
  assert {"--spot", "--project=p"} <= set(first.calls[1])
  assert verbs(checkout.launch(TPU, steps)) == ["list"]
  assert verbs(checkout.launch(TPU[:2], "delete")) == ["list", "delete"]
  again = checkout.launch(TPU[:2], "delete")
  assert (again.returncode, verbs(again)) == (0, ["list"])


@pytest.mark.parametrize(
  ("kind", "image"),
  [
    ("v4-8", "tpu-ubuntu2204-base"),
    ("v5litepod-8", "v2-alpha-tpuv5-lite"),
    ("v5p-8", "v2-alpha-tpuv5"),
    ("v6e-8", "v2-alpha-tpuv6e"),
  ],
)
def test_each_generation_has_its_image(checkout, kind, image):
  where = (*TPU[:2], f"--accelerator_type={kind}")
  [_, create] = checkout.launch(where, "create").calls
  assert f"--version={image}" in create
  (checkout.folder / "fakes/vm").unlink()
  [_, create] = checkout.launch(where, "create --version=mine").calls
  assert "--version=mine" in create


def test_a_vm_of_the_queue_is_waited_for_and_deleted_with_its_request(checkout):
  dry = checkout.launch(TPU, "create delete --queued --dry_run")
  first = checkout.launch(TPU, "create --queued")
  assert first.returncode == 0
  [waits, granted] = [x for x in first.stdout.splitlines() if "request" in x]
  assert waits.endswith("the request for wmt is WAITING_FOR_RESOURCES")
  assert granted.endswith("is ACTIVE")
  [_, _, create, *asked] = first.calls
  assert create[3:6] == ["queued-resources", "create", "wmt"]
  assert {"--node-id=wmt", "--spot"} <= set(create)
  assert "--runtime-version=tpu-ubuntu2204-base" in create
  assert [call[3:5] for call in asked] == [["queued-resources", "list"]] * 2
  assert verbs(checkout.launch(TPU, "create --queued")) == ["list"]
  deleted = checkout.launch(TPU[:2], "delete --queued")
  assert deleted.calls[-1][3:7] == [
    "queued-resources",
    "delete",
    "wmt",
    "--force",
  ]
  assert parsed(dry.stdout.splitlines()) == [*first.calls[:-1], *deleted.calls]
  again = checkout.launch(TPU[:2], "delete --queued")
  assert (again.returncode, verbs(again)) == (0, ["list"])


def test_a_request_that_failed_is_made_again(checkout):
  failed = checkout.launch(TPU, "create --queued", GRANTED="FAILED")
  assert failed.returncode == 1
  assert "create failed: see above, and run again" in failed.stderr
  done = checkout.launch(TPU, "create --queued")
  assert done.returncode == 0
  assert verbs(done) == ["list", "list", "delete", "create", "list", "list"]


@pytest.mark.parametrize(
  ("failing", "code", "done"),
  [
    ("create", 3, ["list", "create", "list"]),
    ("install tpu", 3, ["list", "create", "scp", "install", "list", "delete"]),
    ("follow", 3, [*VERBS[:2], *VERBS[3:7], "list", "scp", "list", "delete"]),
    ("--recurse", 3, [*VERBS[:2], *VERBS[3:7], "scp"]),
    # The connection is lost, and nothing is deleted that may still run.
    ("follow", 255, [*VERBS[:2], *VERBS[3:7], "follow", "follow", "list"]),
  ],
)
def test_a_step_that_fails(checkout, failing, code, done):
  steps = "create install run follow copy_back delete"
  run = checkout.launch(TPU, steps, *TRAIN, FAIL=failing, CODE=str(code))
  assert run.returncode == code
  assert verbs(run) == done
  [line] = run.stderr.splitlines()
  assert " failed: " in line
  # What is left can be deleted.
  assert checkout.launch(TPU, "delete").returncode == 0
  assert not (checkout.folder / "fakes/vm").exists()


def test_a_preempted_vm_is_made_again(checkout):
  preempt = checkout.folder / "fakes/preempt"
  preempt.touch()
  steps = "create install run follow"
  whole = ["list", "create", "scp", "install", "start", "follow"]
  run = checkout.launch(TPU, steps, *TRAIN)
  assert run.returncode == 0
  lost = [*whole, "follow", "list"]
  assert verbs(run) == [*lost, "list", "delete", *whole[1:]]
  preempt.touch()
  run = checkout.launch(TPU, f"{steps} --restarts=0", *TRAIN)
  assert run.returncode == 1


def test_a_job_on_a_machine(checkout):
  wait = "while [ ! -e go ]; do sleep 0.05; done"
  script = f"echo begun; pwd >out/x; {wait}; exit 5"
  started = checkout.launch(BOX, "install run", "bash", "-c", script)
  assert started.returncode == 0
  home = checkout.folder / "fakes/home/speccascade"
  calls = (checkout.folder / "venv/calls").read_text()
  assert calls.endswith("constraints.txt jax[cuda12] --editable .[lab]\n")
  again = checkout.launch(BOX, "run", "false")
  assert "wmt runs already: bash -c 'echo begun" in again.stdout
  (home / "go").touch()
  done = checkout.launch(BOX, "follow copy_back")
  assert done.returncode == 5
  assert "begun\n" in done.stdout
  assert "wmt ended with exit code 5" in done.stdout
  assert "begun\n" in (checkout.folder / "out/launch/wmt.log").read_text()
  assert (checkout.folder / "out/x").read_text() == f"{home}\n"
  # It gets a signal to end, and says how it did; then another may start.
  script = "trap 'echo saved; exit 143' TERM; while :; do sleep 0.05; done"
  ended = checkout.launch(BOX, "run stop follow", "bash", "-c", script)
  assert ended.returncode == 143
  assert "saved\n" in ended.stdout
  assert "wmt does not run" in checkout.launch(BOX, "stop").stdout


def test_a_slurm_job(checkout):
  submitted = checkout.launch(SLURM, "run --restarts=2", *TRAIN)
  script = checkout.folder / "out/launch/wmt.sbatch"
  assert submitted.calls[-1] == ["sbatch", str(script)]
  text = script.read_text()
  assert "#SBATCH --ntasks-per-node=4\n" in text
  assert "#SBATCH --qos=a\n" in text
  again = checkout.launch(SLURM, "run", *TRAIN)
  assert "wmt is in the queue: 4711" in again.stdout
  assert [call[0] for call in again.calls] == ["squeue"]
  code = checkout.folder / "out/launch/wmt.exit_code"

  def batch(srun, restarts):
    calls = checkout.folder / "fakes/calls"
    calls.unlink()
    env = {"SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": restarts}
    run = checkout.run(str(script), SRUN=srun, **env)
    assert run.stderr == ""
    first, *rest = map(shlex.split, calls.read_text().splitlines())
    assert first == ["srun", "--kill-on-bad-exit=1", *TRAIN]
    return run.returncode, rest

  requeued = ["scontrol", "requeue", "4711"]
  assert batch("143", "1") == (143, [requeued])
  assert not code.exists()
  assert batch("143", "2") == (143, [])
  assert code.read_text() == "143\n"
  assert batch("0", "0") == (0, [])
  # Followed to its end, it has that exit code.
  assert batch("7", "0") == (7, [])
  (checkout.folder / "fakes/job").unlink()
  assert checkout.launch(SLURM, "follow").returncode == 7


@pytest.mark.parametrize(
  ("where", "words", "said"),
  [
    (BOX, "", "gpu_box.sh wants steps: install run"),
    (BOX, "create", "'create' is not a step of gpu_box.sh: install"),
    (BOX, "run --hosts=a", "--hosts is not an option of gpu_box.sh"),
    (BOX, "run --restarts=1", "--restarts is not an option of gpu_box.sh"),
    (BOX, "run --folder", "--folder wants --folder=VALUE"),
    (BOX, "run", "run wants a command: -- python -m"),
    (BOX, "run --dry_run=1", "--dry_run takes no value"),
    (BOX, "stop --name=A_b", "--name=A_b: want a-z, 0-9 and -"),
    (BOX, f"stop --name={'a' * 64}", "want 63 letters at most"),
    (BOX, "stop --name=a%0Ab", "--name has a line break"),
    (BOX, "install --jax=a;b", "--jax=a;b: want tpu, cuda12 or cuda13"),
    (BOX, "stop --folder=-p", "--folder=-p: want a value that does not begin"),
    (BOX, "stop --logs=-p", "--logs=-p: want a value that does not begin"),
    (
      BOX[:1],
      "stop --host=-oProxyCommand=a",
      "--host=-oProxyCommand=a: want a",
    ),
    (BOX, "copy_back --output_dir=/a", "--output_dir=/a: want gs:// or"),
    *(
      (BOX, f"copy_back --output_dir={path}", f"--output_dir={path}: want gs:")
      for path in ("~/a", "..", "../a", "out/..", "out/../../..", "out/../a")
    ),
    (TPU, "stop --zone=a%0Ab", "--zone has a line break or another control"),
    (BOX[:1], "stop", "stop wants --host=VALUE"),
    (TPU[:1], "delete", "delete wants --zone=VALUE"),
    (TPU[:2], "create", "create wants --accelerator_type=VALUE"),
    (TPU, "run --spot=1", "--spot takes no value"),
    (TPU, "run -- python -m speccascade.train", "wants --distributed"),
    (
      (*TPU[:2], "--accelerator_type=tpu7x-8"),
      "create",
      "--accelerator_type=tpu7x-8: TPU7x has no TPU VMs; see docs/accelerators",
    ),
    (SLURM, "run --nodes=a", "--nodes=a is not a number"),
    (SLURM, "run --nodes=0", "--nodes=0 is not a number from 1"),
    (SLURM, "run --nodes=08", "--nodes=08 is not a number from 1"),
    (SLURM, f"run --nodes={'9' * 20}", "9 is not a number from 1 to 999999999"),
    (
      SLURM,
      "run --tasks_per_node=0",
      "tasks_per_node=0 is not a number from 1",
    ),
    (SLURM, "run --gpus_per_node=-1", "--gpus_per_node=-1: want a value that"),
    (SLURM, "run --time=a,b", "--time=a,b: want a time such as 1-00:00:00"),
    (SLURM, "run --time=1%0A#SBATCH", "--time has a line break or another"),
    (SLURM, "run --sbatch=a%0Ab", "--sbatch has a line break or another"),
    (SLURM, "follow --restarts=a", "--restarts=a is not a number"),
  ],
)
def test_what_is_wrong_is_one_line(checkout, where, words, said):
  words, _, command = words.partition(" -- ")
  run = checkout.launch(where, words.replace("%0A", "\n"), *command.split())
  [line] = run.stderr.splitlines()
  assert line.startswith("error: ")
  assert said.replace("wants --distributed", "--distributed") in line
  assert (run.returncode, run.stdout, run.calls) == (2, "", [])
  assert not (checkout.folder / "out").exists()


@pytest.mark.parametrize(
  ("words", "said"),
  [
    ("", "job.sh wants install, start, follow or stop"),
    ("pause wmt", "'pause' is not a step of job.sh"),
    ("install a;b", "--jax=a;b: want tpu, cuda12 or cuda13"),
    ("start", "job.sh start wants a name"),
    ("start wmt", "job.sh start wmt wants a command"),
    ("start ../x true", "--name=../x: want a-z, 0-9 and -"),
    ("follow ../../x", "--name=../../x: want a-z, 0-9 and -"),
    ("stop ../../x", "--name=../../x: want a-z, 0-9 and -"),
    ("follow wmt", "there is no job wmt here"),
  ],
)
def test_a_wrong_job_is_one_line_and_leaves_nothing(checkout, words, said):
  run = checkout.run("launch/job.sh", *words.split())
  [line] = run.stderr.splitlines()
  assert said in line
  assert run.returncode in (1, 2)
  assert run.stdout == ""
  assert not (checkout.folder / "out").exists()
  assert not (checkout.folder / "venv/calls").exists()


def test_a_job_that_never_was_is_stopped_already(checkout):
  run = checkout.run("launch/job.sh", "stop", "wmt")
  assert (run.returncode, run.stderr) == (0, "")
  assert "wmt does not run" in run.stdout
  assert not (checkout.folder / "out").exists()


@pytest.mark.parametrize(
  ("script", "words", "said"),
  [
    ("smollm", "--bogus", "--bogus is not a flag of smollm.sh"),
    ("smollm", "--bogus=5", "--bogus is not a flag of smollm.sh"),
    ("smollm", "stray", "'stray' is not a flag of smollm.sh"),
    ("smollm", "--repeats", "--repeats wants --repeats=VALUE"),
    ("smollm", "--repeats=", "--repeats wants --repeats=VALUE"),
    ("smollm", "--", "-- is not a flag of smollm.sh"),
    ("quickstart", "--fast --bogus", "--bogus is not a flag of quickstart.sh"),
    ("quickstart", "--fast=5", "--fast takes no value"),
    ("quickstart", "--fast=", "--fast is not a flag of quickstart.sh"),
  ],
)
def test_flags_are_checked_before_an_install(checkout, script, words, said):
  run = checkout.run(f"launch/{script}.sh", *words.split())
  [line] = run.stderr.splitlines()
  assert line.startswith("error: ")
  assert said in line
  assert (run.returncode, run.stdout) == (2, "")
  assert not (checkout.folder / "venv/calls").exists()


@pytest.mark.parametrize(
  ("name", "main"), [("smollm", smollm), ("quickstart", quickstart)]
)
def test_flags_that_a_script_lets_pass_are_those_of_its_main(
  name, main, capsys
):
  with pytest.raises(SystemExit):
    main.main(["--help"])
  wanted = set(re.findall(r"^  --(\w+)", capsys.readouterr().out, re.M))
  said = subprocess.run(
    ["bash", ROOT / f"launch/{name}.sh", "--help"],
    capture_output=True,
    text=True,
    check=True,
  ).stdout
  assert f"bash launch/{name}.sh [flags of" in said
  assert set(re.findall(r"^  --(\w+)", said, re.M)) == wanted


@pytest.mark.parametrize("script", ["tpu_vm", "gpu_box", "slurm"])
def test_help_names_every_option(script):
  path = ROOT / f"launch/{script}.sh"
  said = subprocess.run(
    ["bash", path, "--help"], capture_output=True, text=True, check=True
  ).stdout
  listed = re.findall(r"^  --(\w+)", said, re.M)
  named = set()
  for name in ("shared_options", "options", "switches"):
    for text in (path.read_text(), (ROOT / "launch/remote.sh").read_text()):
      if words := re.findall(rf'(?:^|\s){name}="(.+?)"', text):
        named |= set(words[0].split())
        break
  assert set(listed) == named | {"dry_run"}


def test_the_quick_part_has_the_laws_and_the_readme():
  script = (ROOT / "launch/test.sh").read_text()
  [files] = re.findall(r"^QUICK=\((.+?)\)", script, re.M | re.S)
  assert all((ROOT / name).is_file() for name in files.split())
  # test_every_execution_has_its_law_here, in the first, reads METHODS.
  laws = pathlib.Path(test_execution_laws.__file__).relative_to(ROOT)
  assert {str(laws), "tests/test_readme.py"} <= set(files.split())
  said = subprocess.run(
    ["bash", ROOT / "launch/test.sh", "--help"],
    capture_output=True,
    text=True,
    check=True,
  ).stdout
  assert "bash launch/test.sh --quick " in said


GIT = r"""#!/bin/bash
at="$FAKE/at-${2##*/}"
case "$3" in  # git -C FOLDER ...
  rev-parse) cat "$at" 2>/dev/null ;;
  fetch) echo "$*" >>"$FAKE/fetched"; [ -z "$NO_NETWORK" ] ;;
  checkout) echo "${@: -1}" >"$at" ;;
esac
"""


@pytest.fixture
def t5x_tests(checkout):
  """Runs launch/t5x_tests.sh with a fake git; returns (run, fetches, tests)."""
  (checkout.folder / "docs").mkdir()
  shutil.copy(ROOT / "docs/t5x.md", checkout.folder / "docs")
  git = checkout.folder / "fakes/git"
  git.write_text(GIT)
  git.chmod(0o755)

  def call(*words, **env):
    run = checkout.run("launch/t5x_tests.sh", *words, **env)
    lines = []
    for name in ("fakes/fetched", "venv/tested"):
      path = checkout.folder / name
      lines.append(path.read_text().splitlines() if path.exists() else [])
      path.unlink(missing_ok=True)
    return run, *lines

  return call


def test_t5x_is_fetched_once_at_the_revisions_of_its_page(t5x_tests, checkout):
  run, fetched, tested = t5x_tests("-k", "infer", PYTHONPATH="/mine")
  assert (run.returncode, run.stderr) == (0, "")
  page = (ROOT / "docs/t5x.md").read_text()
  named = re.findall(r"git\+(https://\S+)@([0-9a-f]{40})", page)
  assert [tuple(call.split()[-2:]) for call in fetched] == named
  names = [url.rpartition("/")[2] for url, _ in named]
  assert names == ["t5x", "jestimator", "airio"]
  clones = [f"{checkout.folder}/out/t5x_clones/{name}" for name in names]
  [line] = tested
  path, *words = line.split()
  assert path.split(":") == [str(checkout.folder), *clones, "/mine"]
  assert words[-2:] == ["-k", "infer"]
  tests = [word for word in words if word.startswith("tests/")]
  assert all((ROOT / name).exists() for name in tests)
  calls = (checkout.folder / "venv/calls").read_text()
  assert calls.endswith("--editable .[dev,t5x]\n")
  run, fetched, tested = t5x_tests(HAS_JAX="yes")
  assert (run.returncode, fetched, len(tested)) == (0, [], 1)


@pytest.mark.parametrize(
  ("env", "said"),
  [
    ({"NO_NETWORK": "yes"}, "git cannot fetch https://github.com/google-"),
    ({"NO_T5X": "yes"}, "T5X cannot be imported"),
  ],
)
def test_without_t5x_its_tests_do_not_pass(t5x_tests, env, said):
  run, _, tested = t5x_tests(**env)
  assert (run.returncode, tested) == (1, [])
  [line] = run.stderr.splitlines()
  assert said in line


def test_help_of_the_tests_of_t5x_installs_nothing(t5x_tests, checkout):
  run, fetched, tested = t5x_tests("--help")
  assert (run.returncode, run.stderr, fetched, tested) == (0, "", [], [])
  assert "bash launch/t5x_tests.sh ARGS" in run.stdout
  assert not (checkout.folder / "venv/calls").exists()


def test_the_scripts_are_sound():
  scripts = sorted((ROOT / "launch").glob("*.sh"))
  for script in scripts:
    subprocess.run(["bash", "-n", script], check=True)
  if program := shutil.which("shellcheck"):
    options = ["-x", "-P", ROOT / "launch", "-S", "warning"]
    subprocess.run([program, *options, *scripts], check=True)


def test_a_clone_is_found_from_the_folder_above_it(tmp_path):
  # Python finds a folder without __init__.py before what a finder knows, so an
  # editable install by a finder gives an empty namespace there.
  clone, site = tmp_path / "speccascade", tmp_path / "site"
  (clone / "speccascade").mkdir(parents=True)
  (clone / "speccascade" / "__init__.py").write_text("NAME = 'the package'\n")
  shutil.copytree(ROOT / "configs", clone / "configs")
  for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
    shutil.copy(ROOT / name, clone)
  build = (
    "import pathlib, setuptools.build_meta as meta, zipfile\n"
    "name = meta.build_editable('..')\n"
    "zipfile.ZipFile(pathlib.Path('..', name)).extractall('../site')\n"
  )
  found = (
    "import site, sys\n"
    "site.addsitedir('site')\n"
    "import speccascade\n"
    "print(speccascade.NAME, speccascade.__file__)\n"
  )
  subprocess.run(
    [sys.executable, "-c", build], cwd=clone, check=True, capture_output=True
  )
  environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
  said = subprocess.run(
    [sys.executable, "-S", "-c", found],  # no clone that is installed here
    cwd=site.parent,
    env=environment,
    check=True,
    capture_output=True,
    text=True,
  ).stdout
  package = clone.resolve() / "speccascade" / "__init__.py"
  assert said.split("\n")[0] == f"the package {package}"


def test_each_nightly_test_is_in_one_of_four_even_shares():
  named = json.loads((ROOT / "tests/nightly_seconds.json").read_text())
  for name in named:
    path, _, function = name.partition("::")
    function = function.partition("[")[0]
    assert f"def {function}(" in (ROOT / path).read_text(), name
  names = [*named, *(f"test_{i}" for i in range(400))]
  share_of = conftest.shares(names, 4)
  assert share_of == conftest.shares(names[::-1], 4)
  assert share_of.keys() == set(names)
  totals, nums = [0.0] * 4, [0] * 4
  for name, share in share_of.items():
    totals[share] += named.get(name, 0)
    nums[share] += name not in named
  assert max(totals) - min(totals) < 25
  assert max(nums) - min(nums) < 50
  # A new test moves no other one: what is run tonight is not run tomorrow.
  assert share_of.items() <= conftest.shares([*names, "test_new"], 4).items()


def test_workflows_pin_actions_and_name_their_permissions():
  paths = sorted((ROOT / ".github" / "workflows").glob("*.y*ml"))
  assert paths
  for path in paths:
    text = path.read_text(encoding="utf-8")
    assert re.search(r"^permissions:\n  contents: read\n(?!  )", text, re.M)
    used = re.findall(r"uses: (\S+)(.*)", text)
    assert used
    for action, comment in used:
      assert re.fullmatch(r"[\w/.-]+@[0-9a-f]{40}", action), action
      assert re.fullmatch(r"  # v[\d.]+", comment), (action, comment)


def test_the_image_copies_what_is_there_and_installs_as_the_scripts_do():
  text = (ROOT / "launch" / "Dockerfile").read_text()
  copied = re.findall(r"^COPY (.*) \S+$", text, re.M)
  copied = {name for line in copied for name in line.split()}
  assert all((ROOT / name).exists() for name in copied)
  # An install on a VM copies the same.
  [packed] = re.findall(
    r"tar --exclude=__pycache__ -czf \S+ (.*?) &&",
    (ROOT / "launch" / "remote.sh").read_text().replace("\\\n", ""),
  )
  assert copied == set(packed.split())


def test_the_job_of_the_page_is_one_that_kubernetes_reads():
  yaml = pytest.importorskip("yaml")
  page = (ROOT / "docs" / "accelerators.md").read_text()
  job = yaml.safe_load(re.search("```yaml\n(.*?)```", page, re.DOTALL)[1])
  pod = job["spec"]["template"]["spec"]
  [container] = pod["containers"]
  chips = container["resources"]["limits"]["google.com/tpu"]
  topology = pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"]
  rows, columns = map(int, topology.split("x"))
  assert rows * columns == chips
  assert (ROOT / container["args"][-1]).is_file()
