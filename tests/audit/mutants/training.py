"""Wrong training; read by `records`."""

from tests.audit.mutants.records import records

MUTANTS = records("""
=== training/losses.py training/test_teaching.py
the divergence is the reverse one <- test_divergence_is_its_definition
- jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)
+ jnp.sum(jnp.exp(log_q) * (log_q - log_p), axis=-1)

=== training/training_step.py training/test_teaching.py
the teacher's share is added to the whole cross-entropy <-
  test_the_loss_is_of_outputs_alone[0.3-False]
- (1 - share) * loss + share * divergence
+ loss + share * divergence

=== training/states.py training/test_teaching.py
packed texts of decoder-only models see each other <- test_the_loss_is[0.0-True]
- segment_ids=batch.get("decoder_segment_ids")
+ segment_ids=batch.get("no_segment_ids")

=== data/training_batches.py training/test_teaching.py
the last prompt token does not learn the first of the output <-
  test_the_loss_is_of_outputs_alone[0.0-False]
- learned = slice(start + len(prompt) - 1, here.stop)
+ learned = slice(start + len(prompt), here.stop)
prompts are learned <- test_the_loss_is_of_outputs_alone[0.0-False]
- weights[b, learned] = 1
+ weights[b, here] = 1

=== training/rule_fitting.py
the isotonic fit does not pool <- test_increasing_is_the_isotonic_fit
- while len(blocks) > 1 and _mean(blocks[-2]) > _mean(blocks[-1]):
+ while len(blocks) > 1 and _mean(blocks[-2]) > 2 + _mean(blocks[-1]):
pooled knots have equal weights <- test_equal_numbers_are_one_knot
- sums = np.bincount(knots, [y[group].sum() for group in groups])
+ sums = np.bincount(knots, [y[group].mean() for group in groups])
a rejection costs nothing <- test_the_mixture_pays_where_the_verifier
- + alpha * phi * tv
+ + 0 * phi * tv
the heads learn one model <- test_the_heads_learn_who_is_right
- cross_entropy(g_q, rows.q_right) + cross_entropy(g_p, rows.p_right)
+ cross_entropy(g_q, rows.p_right) + cross_entropy(g_p, rows.q_right)
""")
