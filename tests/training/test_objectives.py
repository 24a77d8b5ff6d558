"""Every loss against its float64 twin, with its gradient, and in a step."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speccascade.checkpoints import rule_files
from speccascade.decoding.laws.fitted import FittedAlpha
from speccascade.decoding.laws.learned import KINDS
from speccascade.decoding.programs.methods import METHODS
from speccascade.training import losses, objectives, states, trainer
from speccascade.training.batch_checks import check_batch
from speccascade.training.lesson import disagreement
from tests.training.conftest import BARE, DESCENT, STILL, random_batch

V = 7


@pytest.fixture(scope="module")
def rule_file(tmp_path_factory):
  """A file with parameters of every kind that are not the plug-in's."""
  rng = np.random.default_rng(5)

  def moved(leaf):
    # In ascending order, as the places of a calibration have to be.
    noise = rng.normal(0, 1.5, leaf.shape)
    return np.sort(leaf + noise, axis=-1).astype(np.float32)

  parameters = {
    name: jax.tree.map(moved, kind.plug_in()) for name, kind in KINDS.items()
  }
  path = tmp_path_factory.mktemp("rule") / "rule.npz"
  rule_files.write(path, parameters, {})
  return path


def pairs():
  """Returns logits (teacher, model) [N, V]: random, tied, equal, nearly sure.

  Entries differ enough that a finite difference crosses no tie of min(q, pi).
  """
  p, q = np.random.default_rng(3).normal(0, 1.5, (2, 6, V))
  p[3] = [9, 0, -9, 1, 2, -3, 0]
  q[4] = [0, 8, -8, 1, -2, 3, 0]
  return p.astype(np.float32), q.astype(np.float32)


def softmax(x):
  x = np.asarray(x, np.float64)
  x = np.exp(x - x.max(-1, keepdims=True))
  return x / x.sum(-1, keepdims=True)


def forward(p, q):
  return (p * np.log(p / q)).sum(-1)


def jsd(p, q, beta):
  middle = beta * p + (1 - beta) * q
  return beta * forward(p, middle) + (1 - beta) * forward(q, middle)


def rejected(q, pi):
  return 1 - np.minimum(q, pi).sum(-1)


def lossy(p, q, fixed, alpha):
  """The accepted part is min(q, p / (1 - alpha)): pi is q or less there."""
  return 1 - np.minimum(q, p / (1 - alpha)).sum(-1)


def position(p, q, fixed, alpha):
  """OPT: whether it defers is read from the fixed q."""
  defers = fixed.max(-1) < p.max(-1) - alpha * np.abs(fixed - p).sum(-1) / 2
  return rejected(q, np.where(defers[:, None], p, q))


def tokens(p, q, fixed, alpha):
  """Token V3: which tokens it drops is read from p alone."""
  drops = p < (1 - alpha) * p.max(-1, keepdims=True)
  eta = np.where(drops, q, 0).sum(-1, keepdims=True)
  return rejected(q, np.where(drops, 0, q) + eta * p)


# A loss, and its definition as a function of (p, q, the q of the decision).
TWINS = {
  "forward_kl": (objectives.ForwardKL(), lambda p, q, _: forward(p, q)),
  "reverse_kl": (objectives.ReverseKL(), lambda p, q, _: forward(q, p)),
  "jsd 0.2": (objectives.GeneralJSD(0.2), lambda p, q, _: jsd(p, q, 0.2)),
  "tvd": (
    objectives.VariationLoss(),
    lambda p, q, _: np.abs(p - q).sum(-1) / 2,
  ),
  "acceptance": (
    objectives.RejectionLoss(),
    lambda p, q, _: rejected(q, p),
  ),
  "lossy": (
    objectives.RejectionLoss("spec_decode_lossy", 0.4),
    lambda *pair: lossy(*pair, 0.4),
  ),
  "lossy_star": (
    objectives.RejectionLoss("spec_decode_lossy_star", 0.4),
    lambda *pair: lossy(*pair, 0.4),
  ),
  "ensemble": (
    objectives.RejectionLoss("ensemble", 0.25),
    lambda p, q, _: rejected(q, 0.25 * q + 0.75 * p),
  ),
  "opt": (
    objectives.RejectionLoss("spec_cascade_opt", -0.2),
    lambda *pair: position(*pair, -0.2),
  ),
  "token_v3": (
    objectives.RejectionLoss("spec_cascade_token_v3", 0.6),
    lambda *pair: tokens(*pair, 0.6),
  ),
}


@pytest.mark.parametrize("name", TWINS)
def test_a_loss_and_its_gradient_are_their_definitions(name):
  """Central differences of the float64 twin, the rule's decision held fixed."""
  loss, twin = TWINS[name]
  logits_p, logits_q = pairs()
  p, fixed = softmax(logits_p), softmax(logits_q)
  values = loss.between(logits_p, logits_q)
  np.testing.assert_allclose(values, twin(p, fixed, fixed), atol=3e-6)
  gradient = jax.grad(lambda x: loss.between(logits_p, x).sum())(
    jnp.asarray(logits_q)
  )
  step, want = 1e-5, np.zeros_like(p)
  for v in range(V):
    up, down = np.float64(logits_q), np.float64(logits_q)
    up[:, v] += step
    down[:, v] -= step
    change = twin(p, softmax(up), fixed) - twin(p, softmax(down), fixed)
    want[:, v] = change / (2 * step)
  np.testing.assert_allclose(gradient, want, atol=3e-6)


def test_a_rule_that_decides_again_would_have_another_gradient():
  """Where OPT keeps q, nothing is learned; where it defers, TV(p, q) is."""
  logits_p, logits_q = pairs()
  loss = objectives.RejectionLoss("spec_cascade_opt", -0.2)
  kept = np.asarray(loss.between(logits_p, logits_q)) < 1e-6
  assert 0 < kept.sum() < len(kept)
  gradient = jax.grad(lambda x: loss.between(logits_p, x).sum())(
    jnp.asarray(logits_q)
  )
  of_tv = jax.grad(lambda x: losses.variation(logits_p, x).sum())(
    jnp.asarray(logits_q)
  )
  np.testing.assert_allclose(gradient[kept], 0, atol=1e-6)
  np.testing.assert_allclose(gradient[~kept], of_tv[~kept], atol=1e-6)


@pytest.mark.parametrize(
  "name", [name for name, method in METHODS.items() if method.target]
)
def test_every_target_of_the_table_can_be_trained_on(name, rule_file):
  """Its loss is in [0, 1], with a finite gradient.

  It is 0 where the models agree, but for token rules, which drop tokens then
  too.
  """
  logits_p, logits_q = pairs()
  path = rule_file if METHODS[name].has_parameters else None
  loss = objectives.RejectionLoss(name, rule_parameters=path)
  values, gradient = jax.value_and_grad(
    lambda x: loss.between(logits_p, x).mean()
  )(jnp.asarray(logits_q))
  assert -1e-6 <= values <= 1
  assert np.isfinite(gradient).all()
  np.testing.assert_allclose(gradient.sum(-1), 0, atol=1e-6)
  if not METHODS[name].target.reads_tokens:
    np.testing.assert_allclose(loss.between(logits_p, logits_p), 0, atol=1e-5)


def test_a_learned_rule_is_trained_on_with_its_parameters(rule_file, tmp_path):
  logits_p, logits_q = pairs()
  learned = [name for name, method in METHODS.items() if method.has_parameters]
  assert learned
  for name in learned:
    loss = objectives.RejectionLoss(name, rule_parameters=rule_file)
    target = METHODS[name].target
    parameters = rule_files.read(rule_file).parameters[target.kind.name]
    alpha = target.interval.default
    for given, equal in ((parameters, True), (target.kind.plug_in(), False)):
      expected = losses.rejection(
        logits_p, logits_q, target, alpha=FittedAlpha(alpha, given)
      )
      is_equal = np.array_equal(loss.between(logits_p, logits_q), expected)
      assert is_equal == equal
    # Without the file it would be the plug-in.
    with pytest.raises(ValueError, match=f"{name} has parameters: set ACCEPT"):
      objectives.RejectionLoss(name)
  with pytest.raises(ValueError, match="spec_decode has no parameters: leave"):
    objectives.RejectionLoss(rule_parameters=rule_file)
  with pytest.raises(ValueError, match=r"python -m speccascade\.learned_rule"):
    objectives.RejectionLoss(learned[0], rule_parameters=tmp_path / "none")


def test_a_method_without_a_target_is_refused():
  with pytest.raises(ValueError, match="bild has no target distribution"):
    objectives.RejectionLoss("bild")


def test_an_alpha_outside_its_range_is_refused():
  loss = objectives.RejectionLoss("spec_decode_lossy", 1.0)
  with pytest.raises(ValueError, match=r"alpha 1 is outside .* \[0, 1\)"):
    loss.between(*pairs())


@pytest.mark.parametrize(
  ("settings", "whole"),
  [
    ({}, objectives.CrossEntropy()),
    ({"loss": "cross_entropy"}, objectives.CrossEntropy()),
    ({"loss": "tvd"}, objectives.VariationLoss()),
    ({"loss": "tvd", "teacher_share": 0.0}, objectives.CrossEntropy()),
    ({"teacher_share": 1.0}, objectives.ForwardKL()),
    (
      {"loss": objectives.GeneralJSD(0.1), "teacher_share": 0.3},
      objectives.MixedLoss(
        0.3, objectives.CrossEntropy(), objectives.GeneralJSD(0.1)
      ),
    ),
  ],
)
def test_a_share_leaves_the_rest_to_the_cross_entropy(settings, whole):
  objective = states.Objective(**settings)
  assert objective.whole == whole
  assert objective.needs_teacher == whole.needs_teacher


def test_an_unknown_loss_is_refused():
  with pytest.raises(ValueError, match="loss is 'forward'"):
    states.Objective(loss="forward")


def one_step(batch, teacher, objective, optimizer=STILL, **kwargs):
  """Returns the state after a step, and the step's metrics."""
  log = []
  state = trainer.fit(
    BARE,
    [batch],
    steps=1,
    optimizer=optimizer,
    objective=objective,
    teacher=teacher,
    log_every=1,
    on_log=lambda step, metrics: log.append(metrics),
    progress=False,
    **kwargs,
  )
  return state, log[0]


def teacher_of(seed, **kwargs):
  module = states.Transformer(BARE)
  return states.Teacher(states.init_params(module, seed), module, **kwargs)


@pytest.mark.slow
def test_an_encoder_decoder_learns_from_a_teacher_on_targets_alone():
  """Positions of padding count for nothing, in the loss and its gradient."""
  batch = check_batch(random_batch(0), BARE, 0)
  teacher = teacher_of(1)
  objective = states.Objective(loss="reverse_kl")
  _, metrics = one_step(batch, teacher, objective)
  student = states.Transformer(BARE)
  q = states.forward(student, states.init_params(student, 0), batch)
  p = teacher.logits(batch)
  weights = batch["decoder_target_tokens"] > 0
  assert 0 < weights.sum() < weights.size
  want = forward(softmax(q), softmax(p))[weights].mean()
  assert metrics["loss"] == pytest.approx(want, rel=1e-5)


def test_earlier_drafters_leave_what_they_miss():
  """Boosting: a position counts where no earlier drafter names p's token."""
  batch = check_batch(random_batch(0, rows=8), BARE, 0)
  earlier = (teacher_of(2), teacher_of(3))
  teacher = teacher_of(1, earlier=earlier)
  best = np.argmax(teacher.logits(batch), -1)
  agrees = [np.argmax(each.logits(batch), -1) == best for each in earlier]
  missed = ~(agrees[0] | agrees[1])
  np.testing.assert_array_equal(disagreement(teacher, batch), missed)


@pytest.mark.slow
def test_a_boosted_step_learns_nothing_else():
  batch = check_batch(random_batch(0, rows=8), BARE, 0)
  teacher = teacher_of(1, earlier=(teacher_of(2), teacher_of(3)))
  missed = np.asarray(disagreement(teacher, batch)) > 0
  # The mask is what a batch with these weights would give without it.
  weights = (batch["decoder_target_tokens"] > 0) * missed
  objective = states.Objective(
    loss="tvd", loss_normalizing_factor="NUM_REAL_TARGET_TOKENS"
  )
  _, metrics = one_step(batch, teacher, objective, DESCENT)
  _, wanted = one_step(
    {**batch, "decoder_loss_weights": weights.astype(np.int32)},
    dataclasses.replace(teacher, earlier=()),
    objective,
    DESCENT,
  )
  assert metrics["loss"] == pytest.approx(wanted["loss"], rel=1e-6)
  assert metrics["grad_norm"] == pytest.approx(wanted["grad_norm"], rel=1e-5)
  # A drafter that is the teacher itself leaves nothing to learn.
  known = dataclasses.replace(teacher, earlier=(teacher_of(1),))
  _, metrics = one_step(batch, known, objective, DESCENT)
  assert metrics["grad_norm"] == 0
