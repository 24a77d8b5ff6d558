"""Wrong training; read by `records`."""

from tests.audit.mutants.records import records

MUTANTS = records("""
=== training/losses.py training/test_teaching.py
the divergence is the reverse one <- test_divergence_is_its_definition
@ divergence
- jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)
+ jnp.sum(jnp.exp(log_q) * (log_q - log_p), axis=-1)

=== training/losses.py training/test_objectives.py
the reverse divergence is the forward one <-
  test_a_loss_and_its_gradient_are_their_definitions[reverse_kl]
@ reverse_divergence
- return divergence(logits, teacher_logits)
+ return divergence(teacher_logits, logits)
beta weighs the model and not the teacher <-
  test_a_loss_and_its_gradient_are_their_definitions[jsd 0.2]
@ jensen_shannon
- log_p + jnp.log(beta), log_q + jnp.log1p(-beta)
+ log_p + jnp.log1p(-beta), log_q + jnp.log(beta)
the target of a loss on the acceptance is held fixed <-
  test_a_loss_and_its_gradient_are_their_definitions[token_v3]
@ rejection
- target.probs(q, p, alpha=alpha)
+ jax.lax.stop_gradient(target.probs(q, p, alpha=alpha))
the models change places in a target <-
  test_a_loss_and_its_gradient_are_their_definitions[ensemble]
@ rejection
- target.probs(q, p, alpha=alpha)
+ target.probs(p, q, alpha=alpha)

=== decoding/laws/rules.py training/test_objectives.py
a gradient goes through a rule's decision <-
  test_a_loss_and_its_gradient_are_their_definitions[opt]
@ defers
- return left < right
+ return jax.nn.sigmoid(100 * (right - left))

=== training/lesson.py training/test_objectives.py
padding is learned <- test_an_encoder_decoder_learns_from_a_teacher_on_targets
@ summed
- loss += factor * jnp.sum(by_token * lesson.weights)
+ loss += factor * jnp.sum(by_token)
one earlier drafter that differs is enough <- test_earlier_drafters_leave_what
- differs &= drafter
+ differs |= drafter

=== training/written_text.py training/test_written_text.py
texts do not depend on the step <- test_texts_follow_the_seed_and_the_step
- row_keys(self.seed, step,
+ row_keys(self.seed, 0,
the teacher's texts are the student's <- test_texts_are_drawn_from_the_author
@ WrittenText.__call__
- module, params = self.teacher.module, self.teacher.params
+ module = self.teacher.module

=== training/objectives.py training/test_teaching.py
the teacher's share is added to the whole cross-entropy <-
  test_the_loss_is_of_outputs_alone[0.3-False]
@ MixedLoss.__call__
- (1 - self.share) * x + self.share * y
+ x + self.share * y

=== training/states.py training/test_teaching.py
packed texts of decoder-only models see each other <- test_the_loss_is[0.0-True]
@ apply
- segments = batch.get("decoder_segment_ids")
+ segments = batch.get("no_segment_ids")

=== training/lesson.py training/test_head_training.py
heads learn inside a prompt <- test_no_head_learns_inside_a_prompt
@ ahead_weights
- later = jnp.where(weights > 0, ahead(weights, depth), 0)
+ later = ahead(weights, depth)
heads learn the targets of the next text in the row <-
  test_the_loss_of_heads[medusa-llama]
@ ahead_weights
- jnp.where(ahead(segments, depth) == segments, later, 0)
+ later
every head counts the same <- test_the_loss_of_heads
@ summed
- factor = objective.head_decay**lesson.depth
+ factor = 1.0

=== training/head_losses.py training/test_head_training.py
head k learns the token of head k + 1 <- test_the_loss_of_heads
-       ahead(reading.targets, k),
-       ahead_weights
+       ahead(reading.targets, k + 1),
+       ahead_weights
a part of a row learns from the teacher's distribution of another place <-
  test_a_loss_in_parts_is_the_loss_of_all_places[medusa-llama-0.6]
@ _places
- [ahead(rank, k) for k in depths]
+ [rank for k in depths]

the heads' losses do not reach a verifier that learns <-
  test_the_loss_of_a_verifier_that_learns[blockwise-llama-1.0]
@ _summed_with_verifier
- lessons(alone, verifier, hidden, p_logits)
+ lessons(alone, verifier, jax.lax.stop_gradient(hidden), p_logits)
a verifier that learns is its own teacher <-
  test_the_loss_of_a_verifier_that_learns[blockwise-llama-1.0]
- p_logits = before.logits(reading.batch) if
+ p_logits = verifier.project(hidden) if
the heads count as much as the verifier <-
  test_the_loss_of_a_verifier_that_learns[blockwise-llama-1.0]
@ _summed_with_verifier
- loss=of_verifier.loss + share * of_heads.loss
+ loss=of_verifier.loss + of_heads.loss

=== training/row_parts.py training/test_head_training.py
a part whose first place has no weight is left out <-
  test_a_loss_in_parts_is_the_loss_of_all_places[medusa-llama-0.0]
@ _over_parts.step
- jnp.any(weights > 0)
+ jnp.all(weights[:, 0] > 0)
a loss in parts has a gradient of its own size <-
  test_a_loss_in_parts_is_the_loss_of_all_places[medusa-llama-0.0]
@ _backward
- x * cotangent.loss
+ x

=== training/lookahead_losses.py training/test_lookahead_training.py
an embedding learns the token before its own <-
  test_texts_are_cut_at_all_places
@ cut
- targets=jnp.take_along_axis(targets, places, axis=1)
+ targets=jnp.take_along_axis(targets, places - 1, axis=1)
the first token after a cut stays in the text <-
  test_texts_are_cut_at_all_places
@ cut
- ahead = jnp.arange(tokens.shape[1])[None] - place - 1
+ ahead = jnp.arange(tokens.shape[1])[None] - place - 2
long texts count no more than short ones <-
  test_texts_are_cut_at_all_places
- weights=num_places
+ weights=1
every embedding counts the same <- test_the_loss_is_of_texts[llama]
@ lessons
- depth=k + 1
+ depth=0

=== training/training_step.py training/test_lookahead_training.py
texts are cut at the same places in each step <-
  test_each_step_cuts_at_other_places
@ make_step.step
- rng = jax.random.fold_in(rng, state.step)
+ pass

=== tools/planning/training_plan.py tools/planning/test_footprint.py
a dry run takes a setting that training refuses <-
  test_a_dry_run_refuses_what_training_refuses
@ plan
- training_checks.check_kind(model, data, objective)
+ pass

=== training/verifier_tuning.py training/test_head_training.py
the verifier learns while the heads warm up <-
  test_a_tuned_verifier_is_found[medusa-t5]
@ VerifierTuning.scale
- jnp.where(step < self.heads_only_steps, 0.0, self.rate)
+ self.rate

=== training/tuned_checkpoints.py training/test_head_training.py
a run continues with the earlier verifier <-
  test_a_tuned_verifier_is_found[medusa-t5]
@ TunedCheckpoints._whole
- return {HEADS: params, VERIFIER: tuned}
+ return {HEADS: params, VERIFIER: self.verifier.params}
heads record the verifier of before <- test_a_tuned_verifier_is_found[medusa-t5]
@ TunedCheckpoints._write_parts
- self.config, verifier_sha256=fingerprint(tuned)
+ self.config, verifier_sha256=fingerprint(self.verifier.params)
verifiers of old steps stay <- test_a_tuned_verifier_is_found[medusa-t5]
@ TunedCheckpoints._remove_parts
- set(restore.steps(str(folder))) - steps
+ set()

=== models/draft_heads.py training/test_head_training.py
a fingerprint is of shapes alone <- test_a_fingerprint_tells
@ fingerprint
- len(leaf.shape) == 1
+ False

=== training/training_batches.py training/test_teaching.py
the last prompt token does not learn the first of the output <-
  test_the_loss_is_of_outputs_alone[0.0-False]
@ causal_features
- learned = slice(start + len(prompt) - 1, here.stop)
+ learned = slice(start + len(prompt), here.stop)
prompts are learned <- test_the_loss_is_of_outputs_alone[0.0-False]
@ causal_features
- weights[b, learned] = 1
+ weights[b, here] = 1

=== training/rule_fitting.py
the isotonic fit does not pool <- test_increasing_is_the_isotonic_fit
@ increasing
- len(blocks) > 1 and _mean(blocks[-2]) > _mean(blocks[-1])
+ len(blocks) > 1 and _mean(blocks[-2]) > 2 + _mean(blocks[-1])
pooled knots have equal weights <- test_equal_numbers_are_one_knot
@ increasing
- sums = np.bincount(knots, [y[group].sum() for group in groups])
+ sums = np.bincount(knots, [y[group].mean() for group in groups])
a rejection costs nothing <- test_the_mixture_pays_where_the_verifier
- + alpha * phi * tv
+ + 0 * phi * tv
the heads learn one model <- test_the_heads_learn_who_is_right
@ _heads_loss
- cross_entropy(g_q, rows.q_right) + cross_entropy(g_p, rows.p_right)
+ cross_entropy(g_q, rows.p_right) + cross_entropy(g_p, rows.q_right)
""")
