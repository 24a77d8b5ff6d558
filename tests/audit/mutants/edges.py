"""Wrong clocks, counts, shares of time and edges; read by `records`."""

from tests.audit.mutants.records import records

MUTANTS = records("""
=== search/candidates.py search/test_advisor.py
the good end of an interval is enough to pay <- test_what_the_clock_has_not
- 1 / self.measured.relative_high > LEAST_SPEEDUP
+ 1 / self.measured.relative_low > LEAST_SPEEDUP
the middle of an interval is enough to pay <- test_what_the_clock_has_not
- 1 / self.measured.relative_high > LEAST_SPEEDUP
+ 1 / self.measured.relative_latency > LEAST_SPEEDUP

=== search/tree_search.py search/test_advisor.py
trees go without whole decodes once a share is used <- test_trees_are_priced
- study, chains, rounds, steps, "costs of passes", is_needed=True
+ study, chains, rounds, steps, "costs of passes"

=== search/offers.py search/test_advisor.py
whole decodes that are needed end with a share <- test_trees_are_priced
- if not budget.leaves_out(by_decodes, is_needed=is_needed):
+ if not budget.leaves_out(by_decodes):

=== judge/__main__.py judge/test_command.py
code that fails in one problem is not judged in others <-
  test_a_function_that_fails_here
- if all(line.raised for line in judgement.problems):
+ if any(line.raised for line in judgement.problems):

=== judge/problems.py judge/test_known_errors.py
the rare token is never the last or the first <- test_a_fault_that_one_problem
- for row, token in enumerate((2, 0, 2)):
+ for row, token in enumerate((1, 1, 1)):
the rare token is always the last <- test_a_fault_that_one_problem
- for row, token in enumerate((2, 0, 2)):
+ for row, token in enumerate((2, 2, 2)):
the rare token is always the first <- test_a_fault_that_one_problem
- for row, token in enumerate((2, 0, 2)):
+ for row, token in enumerate((0, 0, 0)):

=== inference/measuring/round_times.py inference/measuring/test_round_times.py
sixteen passes that catch up cost as one
- wide_s = least_s["catch_up"] / timing.PASSES
+ wide_s = least_s["catch_up"]
costs know the draws of the first trial
- prepared = batches.prepare(examples, _TRIAL)
+ prepared = batches.prepare(examples)

=== decoding/drafting/fast_forward.py decoding/drafting/test_fast_forward.py
a drafter alone holds what was rejected <- test_passes_are_those
- held = jnp.minimum(reading.held, prefix.length - 1)
+ held = reading.held
a drafter alone has not read a turn <- test_passes_are_those
- _Reading(length, after, jnp.maximum(reading.held, upto))
+ _Reading(length, after, reading.held)

=== decoding/drafting/draft_pace.py decoding/drafting/test_draft_pace.py
a row holds the drafts that were rejected <- test_a_rejected_draft
- held=jnp.minimum(self.held, length - 1),
+ held=self.held,

=== checkpoints/stored_arrays.py checkpoints/test_orbax_io.py
a missing chunk of a slot is zeros <- test_a_chunk_of_a_slot
- leaf["driver"] == "zarr" and not name.startswith("target/")
+ not name.startswith("target/")

=== inference/points/draft_costs.py inference/points/test_advice.py
a pass that nothing measured has a cost <- test_costs_of_calls
- if size < widths[-1]]
+ if size <= widths[-1]]

=== data/few_shot.py data/test_few_shot.py
a shot may have no answer <- test_no_shot_is_without
- [each for each in candidates if each.answers[0].strip()]
+ [*candidates]
a shot may have an answer of blanks <- test_no_shot_is_without
- if each.answers[0].strip()]
+ if each.answers[0]]

=== exchange/spec_bench.py exchange/test_formats.py
equal questions have one answer id <- test_each_of_equal_questions
- names = [key, model_id, trials[0][0].index, texts]
+ names = [key, model_id, texts]

=== training/head_losses.py training/test_head_training.py
the z-loss of heads counts as much as the verifier's <- test_each_head_has
- z_loss=of_verifier.z_loss + share * of_heads.z_loss
+ z_loss=of_verifier.z_loss + of_heads.z_loss

=== training/lesson.py training/test_head_training.py
the z-loss of every head counts the same <- test_each_head_has
- z_loss += factor * jnp.sum(z * lesson.weights)
+ z_loss += jnp.sum(z * lesson.weights)

=== models/gpu_passes.py models/test_gpu_passes.py
the GPU's kernels take norms with an offset <- test_the_kernels_leave_out
-   "norm_offset",
+
the GPU's kernels take norms after a layer <- test_the_kernels_leave_out
-   "post_norms",
+
the GPU's kernels take embeddings that are scaled <- test_the_kernels_leave_out
-   "scaled_embedding",
+
the GPU's kernels take queries of another scale <- test_the_kernels_leave_out
-   "query_pre_attn_scalar",
+
the GPU's kernels take scores with a cap <- test_the_kernels_leave_out
-   "attention_cap",
+
the GPU's kernels take frequencies of some layers <- test_the_kernels_leave_out
-   "local_rope_theta",
+
""")
