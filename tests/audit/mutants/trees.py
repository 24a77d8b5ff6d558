"""Wrong trees: drawing, verifying, keeping; read by `records`."""

from tests.audit.mutants.records import records

MUTANTS = records("""
=== decoding/verification/tree_walk.py decoding/verification/test_tree_steps.py
certain children stay in the distribution of the drawn one <-
  test_steps_have_the_law_of_the_target[greedy_and_random-token]
@ TreeDrafts.drawn_laws
- return normalise(rest, q)
+ return q
draws without replacement all have the first distribution <-
  test_steps_have_the_law_of_the_target[without_replacement-token]
@ TreeDrafts.without
- self.branches.drawing != WITHOUT_REPLACEMENT
+ True
a drawn token that is a child ends the block <-
  test_steps_have_the_law_of_the_target[top_k-token]
@ walk_of
- is_accepted[:, :, None] | drafts.branches.is_certain[:, None]
+ is_accepted[:, :, None] & (drafts.index[:, None] >= 0)
the draws at all nodes share a uniform <-
  test_steps_have_the_law_of_the_target[top_k-token]
@ walk
- draws.draw(laws, u_draw)
+ draws.draw(laws, jnp.broadcast_to(u_draw[:, :1], u_draw.shape))
a path is reversed <-
  ../../models/test_native_walks.py::test_walks_decide_as_the_steps_do
@ follow
- jnp.stack(path, axis=1)
+ jnp.stack(path[::-1], axis=1)
certain children are tried with the drafter's distribution <-
  test_steps_have_the_law_of_the_target[greedy_and_random-token]
@ TreeDrafts.is_drawn
- return ~self.branches.is_certain
+ return jnp.ones_like(self.branches.is_certain)
the distribution without earlier siblings is not normalised <-
  test_steps_have_the_law_of_the_target[without_replacement-token]
@ TreeDrafts.without
- return normalise(drop_token(law, token), law)
+ return drop_token(law, token)
siblings change places <-
  test_steps_have_the_law_of_the_target[iid-token]
@ TreeDrafts.rank
- key = self.index if key is None else key
+ key = self.tokens * self.num + self.index if key is None else key

=== decoding/verification/tree_steps.py
siblings share a uniform <- test_steps_have_the_law_of_the_target[iid-token]
@ tree_token_verify.trial
- u = drafts.of_draft(u_accept, child)
+ u = u_accept[:, :1]
equal draws are tried once <-
  test_steps_have_the_law_of_the_target[iid-token]
@ tree_token_verify
- is_drawn, num = drafts.is_drawn, drafts.num
+ is_drawn, num = drafts.is_drawn, drafts.num
+ same = branches.parents[:, :, None] == branches.parents[:, None]
+ same &= tokens[:, :, None] == tokens[:, None]
+ is_drawn &= jnp.argmax(same, axis=2) == drafts.index
a miss leaves the target as it was <-
  test_steps_have_the_law_of_the_target[iid-token]
- missed = normalise(jnp.maximum(residual - law, 0), residual)
+ missed = residual
an empty residual gives token 0 <- test_an_empty_residual_is_the_target
- missed = normalise(jnp.maximum(residual - law, 0), residual)
+ missed = jnp.maximum(residual - law, 0)
the last child that passes is accepted, not the first <-
  test_steps_have_the_law_of_the_target[iid-token]
- is_first = passes & (here["accepted"] == num)
+ is_first = passes
K-SEQ accepts as plain trials do <-
  test_steps_have_the_law_of_the_target[iid-k_seq]
@ k_seq_factor
- factor = jnp.where(count > 1, factor, one)
+ factor = one
K-SEQ leaves the residual of one draft <-
  test_steps_have_the_law_of_the_target[iid-k_seq]
@ tree_k_seq_verify
- target - common * ratio(any_of, b)[..., None]
+ target - common
a traversal takes P in place of a P <-
  test_steps_have_the_law_of_the_target[without_replacement-traversal]
@ _without_children.visit
- weight[..., None] * target - tried
+ target - tried
a traversal does not renew the weight <-
  test_steps_have_the_law_of_the_target[without_replacement-traversal]
- "weight": renewed
+ "weight": weight
a traversal draws from the first target of a node <-
  test_steps_have_the_law_of_the_target[without_replacement-traversal]
@ tree_traversal_verify
- draws.draw(law_at(laws, node), of_token(u_draw, node))
+ draws.draw(law_at(pi, node), of_token(u_draw, node))
a traversal does not take a dropped child from the distribution <-
  test_steps_have_the_law_of_the_target[without_replacement-traversal]
@ _without_children.visit
- rest = normalise(drop_token(law, y), law)
+ rest = law
a traversal visits equal siblings twice <-
  test_steps_have_the_law_of_the_target[iid-traversal]
@ tree_traversal_verify
- is_visited = ~jnp.any(repeats, axis=2)
+ is_visited = jnp.ones(tokens.shape, bool)
a traversal does not normalise the distribution without a dropped child <-
  test_steps_have_the_law_of_the_target[without_replacement-traversal]
@ _without_children.visit
- rest = normalise(drop_token(law, y), law)
+ rest = drop_token(law, y)
a traversal weighs later children by the first target <-
  test_steps_have_the_law_of_the_target[without_replacement-traversal]
@ _without_children.visit
- reach = jnp.minimum(1, weight * ratio(of_token(target, y), q_y))
+ own = of_token(drafts.pi[:, first:end], y)
+ reach = jnp.minimum(1, weight * ratio(own, q_y))
a traversal weighs a child without what is above it <-
  test_steps_have_the_law_of_the_target[without_replacement-traversal]
@ _without_children.visit
- reach = jnp.minimum(1, weight * ratio(of_token(target, y), q_y))
+ reach = jnp.minimum(1, ratio(of_token(target, y), q_y))
a traversal asks a node before what follows it <-
  test_steps_have_the_law_of_the_target[without_replacement-traversal]
@ tree_traversal_verify
- passes |= jnp.pad(follows, ((0, 0), no_leaves))
+ passes |= False & jnp.pad(follows, ((0, 0), no_leaves))
a traversal visits the likeliest leaf first <-
  test_steps_have_the_law_of_the_target[without_replacement-traversal]
@ tree_traversal_verify
- key = drafts.index + jnp.where(branches.is_certain, num, 0)
+ likely = jnp.take_along_axis(q, branches.parents[:, :, None], axis=1)
+ likely = jnp.take_along_axis(likely, tokens[:, :, None], axis=2)[..., 0]
+ key = jnp.argsort(jnp.argsort(-likely, axis=1), axis=1).astype(jnp.int32)
a traversal tries children in the order of their ids <-
  test_steps_have_the_law_of_the_target[without_replacement-traversal]
@ tree_traversal_verify
- key = drafts.index + jnp.where(branches.is_certain, num, 0)
+ key = jnp.argsort(jnp.argsort(tokens, axis=1), axis=1).astype(jnp.int32)

=== native/gpu/row_draws_triton.py models/test_gpu_draws.py
a GPU draws without what is before the block <-
  test_draws_invert_the_cumulative_sum
@ draw
- left = goal - before_block
+ left = goal
a GPU draws a token without weight <- test_draws_invert_the_cumulative_sum
@ _first_above
- above = (weight > 0) & (total > goal)
+ above = total >= goal

=== native/gpu/chain_parts_triton.py models/test_gpu_draws.py
a GPU replaces a rejected draft from the verifier's law <-
  test_places_of_a_chain_are_reviewed_as_in_separate_steps
@ _draw_kernel
- has_mass = jnp.max(left) > 0
+ has_mass = jnp.max(left) > 2

=== native/gpu/chain_review_triton.py models/test_gpu_draws.py
a GPU replaces a rejected draft from the verifier's filtered law <-
  test_places_of_a_chain_are_reviewed_as_in_separate_steps
@ _kernel
- has_mass = most > 0
+ has_mass = most > 2

=== native/gpu/mixed_laws.py models/test_gpu_mixed_review.py
a GPU mixes p whole <- test_a_chain_is_reviewed_as_in_separate_steps
@ basis
- kept + numbers.dropped * p
+ kept + p

=== native/gpu/mixed_review_triton.py models/test_gpu_mixed_review.py
a GPU draws a bonus from the residual <-
  test_a_chain_is_reviewed_as_in_separate_steps
@ _kernel
- (jnp.max(residual) > 0) & (end < num)
+ jnp.max(residual) > 0

=== native/gpu/filtered_laws_triton.py models/test_gpu_draws.py
a GPU keeps all of equal logits <-
  test_filters_keep_and_draw_the_tokens_of_plain_steps
@ keeps
- (logits == least) & (index <= last)
+ (logits == least)
a GPU's top-p counts what top-k dropped <-
  test_filters_keep_and_draw_the_tokens_of_plain_steps
@ last_kept
- jnp.where(is_kept(i), x, 0.0)
+ x

=== native/gpu/row_children_triton.py models/test_gpu_draws.py
a GPU draws among taken children <- test_children_are_those_of_plain_steps
@ _kernel
- weights = jnp.where(index == token, 0.0, weights)
+ weights = jnp.where(index == token, 1.0, weights)

=== native/gpu/kept_path_triton.py models/test_gpu_draws.py
a GPU keeps other slots <- test_a_path_is_kept_to_the_bit_and_nothing_else_moves
@ _kernel
- new = first_ref[row] + number[None, :]
+ new = first_ref[row] + 1 + number[None, :]

=== decoding/drafting/children.py
    decoding/verification/test_tree_steps.py::test_children_are_drawn_by_their_law
draws without replacement repeat
- if drawing != IID:
+ if False:
a certain child may be drawn again
-     q = jnp.where(ids == token[..., None], 0, q)
-   for k in range(num - num_drawn, num):
+   for k in range(num - num_drawn, num):
siblings are sorted
- jnp.stack(tokens, axis=-1), jnp
+ jnp.sort(jnp.stack(tokens, axis=-1), axis=-1), jnp
siblings are sorted by their probability
- jnp.stack(tokens, axis=-1), jnp
+ jnp.take_along_axis(
+     (new := jnp.stack(tokens, axis=-1)),
+     jnp.argsort(-jnp.take_along_axis(confidence, new, axis=-1), axis=-1),
+     axis=-1,
+   ), jnp
siblings share their uniform
@ draw_children
- u[..., k]
+ u[..., 0]
children of equal siblings stay apart <-
  ../verification/test_tree_steps.py::test_children_of_equal_siblings
@ merge_siblings
- jnp.argmax(same, axis=2).astype(jnp.int32)
+ jnp.arange(len(level), dtype=jnp.int32)[None]

=== decoding/drafting/tree_drafter.py
    decoding/test_tree_decoding.py::test_a_drafter_that_is_the_verifier
every draft of a level sees all before it
@ TreeDrafter.propose
- tree.sees[np.ix_(members, read)]
+ tree.sees[np.ix_(members, read)] | True
a draft is at its number, not at its depth
@ TreeDrafter.propose
- [tree.depths[i] - 1 for i in read]
+ [i for i in read]
the drafter keeps other drafts than were accepted
@ TreeDrafter.keep
- place = jnp.take_along_axis(place, path, axis=1)
+ place = jnp.take_along_axis(place, 0 * path, axis=1)
a draft that a repeated one hands its children to is not read <-
  test_tree_decoding.py::test_an_equal_sibling_hands_its_children
@ TreeDrafter._is_read
- self.drawing == IID
+ False
a drafter of trees does not read what others say in between <-
  programs/test_streaming.py::test_rounds_and_turns_are_the_whole[tree-whole]
-   def propose(
+   def catch_up(self, state, tokens, upto, *, wide):
+     return state
+
+   def propose(

=== decoding/laws/optimum.py
sets of drafts grow by the drafter's probability <- test_independent_draws
@ _by_ratio
- (-key, q, pi)
+ (-q, q, pi)

=== decoding/drafting/several_drafters.py decoding/test_tree_decoding.py
the target is made of the distribution of the next draft <-
  test_a_designated_drafter_states_its_law
-         "q": q,
-         "q1": q1,
+         "q": at_nodes["q"],
+         "q1": at_nodes["q1"],
all drafters draw with one stream of uniforms <-
  test_several_drafters_draw_independently
@ SeveralDrafters.propose
- draws.fold_in(rngs, k)
+ rngs
a node records the next distribution of a drafter that stopped there <-
  drafting/test_verifications.py::test_a_path_ends_where_its_drafter_stopped
@ SeveralDrafters.propose.at_node
- return jnp.where(is_open, drawn_from, own)
+ return own
what lies after the end of a path has siblings <-
  drafting/test_verifications.py::test_a_path_ends_where_its_drafter_stopped
@ SeveralDrafters._parents
- apart = jnp.where(is_drafted, drafts, -1 - number)
+ apart = drafts + 0 * number
counts of paths are those of other paths <-
  drafting/test_verifications.py::test_a_path_ends_where_its_drafter_stopped
@ SeveralDrafters._parents
- jnp.tile(jnp.stack(counts, axis=1), (1, self.tree.depth))
+ jnp.repeat(jnp.stack(counts, axis=1), self.tree.depth, axis=1)
what lies after the end of a path is drafted <-
  drafting/test_verifications.py::test_a_path_ends_where_its_drafter_stopped
@ SeveralDrafters._parents
- is_drafted = depth <= count
+ is_drafted = depth <= self.tree.depth + 0 * count
all drafts are tried with the distribution of the designated drafter <-
  test_the_target_is_that_of_the_designated_drafter[spec_cascade_opt-1]
@ SeveralDrafters.propose
- laws=laws
+ laws=None
the designated drafter keeps a path one slot further on <-
  test_a_designated_drafter_keeps
@ SeveralDrafters.keep
- scorer.keep(inner, length - 1, read, count + 1)
+ scorer.keep(inner, length, read, count + 1)

=== decoding/loops/speculative.py
    decoding/test_tree_decoding.py::test_a_greedy_tree_writes
the verifier keeps a path one slot further on
@ _keep_path
- verifier.keep(verifying, carry.length - 1, fed, emitted)
+ verifier.keep(verifying, carry.length, fed, emitted)
the verifier keeps the drafts before those of the path
- fed = jnp.pad(path + 1
+ fed = jnp.pad(path
all trees of a row are drawn and verified with one key <-
  test_tree_decoding.py::test_sampled_trees
@ speculative.round_of
- draws.fold_in(rngs, carry.stats.num_blocks)
+ draws.fold_in(rngs, 0 * carry.stats.num_blocks)

=== decoding/loops/counting.py decoding/drafting/test_verifications.py
what a path lacks is counted as drafted <-
  test_a_path_ends_where_its_drafter_stopped
@ _num_drafts
- return jnp.minimum(proposal.count, num)
+ return proposal.count

=== decoding/records/block_records.py
    decoding/test_tree_decoding.py::test_the_rank
a draft follows itself among its siblings
@ Branches.ranks_of
- is_before &= index < drafts[:, :, None]
+ is_before &= index <= drafts[:, :, None]

=== decoding/verification/review.py
    decoding/test_tree_decoding.py::test_records_are_those_of_the_path
the printed bonus of a tree is weighed by q
@ _mix
- pi = jnp.where(is_mix[..., None], pi, p)
+ pass
at inner nodes without drafts the printed bonus is weighed by q <-
  drafting/test_verifications.py::test_the_printed_bonus_is_the_verifiers
@ _verify_tree
-     proposal, logits, no_tokens, branches.has_children, phase, settings
+     proposal,
+     logits,
+     no_tokens,
+     branches.has_children
+     | jnp.asarray(branches.tree.node_depths < branches.tree.depth)[None],
+     phase,
+     settings,
a tree is reviewed by what is not exact for it <-
  drafting/test_verifications.py::test_the_review_itself_refuses_a_tree
@ _verify_tree
- tree_steps.check_branches(settings.verification, branches)
+ pass
a token rule is read at the last draft of a tree <-
  test_tree_decoding.py::test_a_token_rule_is_read_at_the_first_draft
@ _along_path
- rejected = jnp.minimum(jnp.min(follows, axis=1, keepdims=True), num - 1)
+ rejected = jnp.full_like(last[:, None], num - 1)
the verifier's distributions stay those of the nodes
@ _along_path
- return block, jax.tree.map(along, at_nodes)
+ depth = branches.tree.depth
+ same = at_nodes.replace(
+   p1=at_nodes.p1[:, : depth + 1], p=at_nodes.p[:, : depth + 1]
+ )
+ keep = ("p1", "p")
+ return block, same.replace(
+   **{k: along(v) for k, v in vars(at_nodes).items() if k not in keep}
+ )

a fault of the drafter in a tree goes unseen <-
  loops/test_faults.py::test_a_fault_on_the_path_of_a_tree_is_seen
@ _mix
- bad = ~is_law | proposal.bad
+ bad = ~is_law
a fault after the path of a tree goes unseen <-
  loops/test_faults.py::test_a_fault_on_the_path_of_a_tree_is_seen
@ _verify_tree
- scored.bad & (step <= num_accepted[:, None])
+ scored.bad & (step < num_accepted[:, None])
a fault beside the path of a tree ends its row <-
  loops/test_faults.py::test_a_fault_beside_the_path_of_a_tree
@ _verify_tree
- reads_all & jnp.any(at_nodes.bad, axis=1)
+ jnp.any(at_nodes.bad, axis=1)
a traversal trusts a tree with a fault <-
  loops/test_faults.py::test_a_fault_beside_the_path_of_a_tree
@ _verify_tree
- reads_all & jnp.any(at_nodes.bad, axis=1)
+ False & reads_all

=== decoding/programs/method.py generate/points/test_point.py
BiLD leaves a tree aside <- test_a_method_that_drafts_chains_refuses_a_tree
@ Method.check_takes_trees
- drafts = self.has_blocks or len(self.draft_lengths) > 1
+ drafts = self.has_blocks

=== tools/planning/decoding_plan.py
    tools/planning/test_footprint.py::test_a_plan_of_decoding_trees
the block of a cascade is planned by gamma
@ _block_width
- return 1 + pair.cascade.num_drafts(len(models.keys() - {"verifier"}))
+ return point.verify_width

=== generate/pair/pairs.py
    tools/planning/test_footprint.py::test_a_plan_of_decoding_trees
one of several drafters is planned
@ PairSpec.drafters
- configs = [None] * len(paths)
+ configs = [None]

=== decoding/drafting/branched.py
a sibling may repeat the first draft <-
  test_siblings_are_drawn_without_the_first_draft
@ BranchedDrafter._draw_siblings
- jnp.where(is_first, 0, q)[:, None]
+ q[:, None]
siblings are drawn with the uniforms of the chain <-
  test_siblings_are_drawn_without_the_first_draft
@ BranchedDrafter._draw_siblings
- draws.fold_in(rngs, _SIBLING_TAG)
+ rngs
a chain is kept beside an accepted sibling <-
  test_a_chain_keeps_nothing_beside_a_sibling
@ BranchedDrafter.keep
- jnp.where(is_chain, count, 0)
+ count
an empty block has siblings <- test_an_empty_block_has_no_siblings
@ BranchedDrafter.propose
- jnp.where(chain.count > 0, chain.count + num - 1, 0)
+ chain.count + num - 1
a chain continues where it stopped beside its siblings <-
  test_verifications.py::test_every_other_verification_is_exact
@ BranchedDrafter.propose
- jnp.where(drafts < count[:, None], parents, NO_NODE)
+ jnp.where(count[:, None] > 0, parents, NO_NODE)
the distributions of a chain are at its siblings <-
  test_sampled_texts_have_the_verifiers_law[chain-token]
@ BranchedDrafter.propose.by_node
- by_draft(values[:, :2], none.astype(values.dtype), values[:, 2:])
+ by_draft(values[:, :1], none.astype(values.dtype), values[:, 1:])

=== study/search/acceptance.py study/search/test_tree_search.py
the residual after a miss is the target <- test_a_text_determines_the_blocks
@ _of_children
- residual = jnp.where(is_drawn[..., None], left, residual)
+ residual = residual
a certain child is tried like a drawn one <- test_a_text_determines_the_blocks
@ _of_children
- reach = jnp.where(is_drawn, reach * jnp.maximum(missed, 0), reach)
+ reach = reach * jnp.maximum(missed, 0)
without replacement every first child misses alike <-
  test_the_chance_of_a_rank_is_a_mean_over_earlier_draws
@ _of_children
- missed = 1 - jnp.minimum(1, accepted)
+ pass

=== study/papers/blocks.py
a block begins at every token <- test_one_rate_along_a_long_text |
  ../search/test_tree_search.py::test_a_text_determines_the_blocks
@ blocks
- after = slice(start + 1, start + num_levels + 2)
+ after = slice(start, start + num_levels + 1)
all depths have the acceptance of the first <- test_acceptance_by_depth
@ acceptance_by_depth
- weights[:, 1:] = passed[:, :-1] * inside[:, 1:]
+ weights = inside.astype(np.float64)

=== study/search/tree_search.py
a pass over a tree leaves out the last token <- test_a_pass_reads_the_last_token
@ offers_of
- np.arange(num + 1) + 1, widths
+ np.arange(num + 1), widths

=== decoding/programs/draft_models.py
    decoding/drafting/test_verifications.py::test_a_verification_that_is_not_exact
siblings of a cascade's draft pass for independent ones
-   if drawing := getattr(drafter, "drawing", None):
+   if drawing := None:

=== decoding/programs/call_checks.py
    decoding/drafting/test_verifications.py::test_a_verification_that_is_not_exact
the shape of a drafter of one's own goes unread <-
  test_verifications.py::test_more_children_than_tokens_are_refused
@ _check_children
- tree, drawing = drafter.tree, getattr(drafter, "drawing", "")
+ pass

=== study/papers/draft_trees.py
ranks are looked up by the number of siblings <-
  test_acceptance_may_depend_on_the_number_of_children
@ expected_tokens
- reach[node] = reach[parent] * rates[row, counts[parent] - 1, rank]
+ reach[node] = reach[parent] * rates[row, -1, rank]
""")
