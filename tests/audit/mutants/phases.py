"""Wrong phases of alpha; read by `records`."""

from tests.audit.mutants.records import records

MUTANTS = records("""
=== decoding/records/phased_alpha.py decoding/test_phase_laws.py
a block has the phase of its start <-
  test_blocks_take_every_path[spec_cascade_opt-marker]
@ PhasedAlpha.phases_at
- after = self.marker.follow(before, tokens)
+ after = jnp.broadcast_to(root, tokens.shape)
the phase begins one token late <-
  test_blocks_take_every_path[spec_cascade_opt-marker]
@ PhasedAlpha.phases_at
- self.phase(jnp.concatenate([root, after], axis=1))
+ self.phase(jnp.concatenate([root, root, after[:, :-1]], axis=1))
the phase begins one token early <-
  test_blocks_take_every_path[spec_cascade_opt-marker]
@ PhasedAlpha.phases_at
- self.phase(jnp.concatenate([root, after], axis=1))
+ self.phase(jnp.concatenate([after, after[:, -1:]], axis=1))
the bonus has the phase of the last draft <-
  test_blocks_take_every_path[spec_cascade_opt-marker]
@ PhasedAlpha.phases_at
- after = self.marker.follow(before, tokens)
+ after = self.marker.follow(before, tokens)
+ after = after.at[:, -1].set(jnp.concatenate([root, after], axis=1)[:, -2])
a tree is read as a chain <-
  test_a_tree_has_the_phase_of_each_path | test_compiled_trees
@ PhasedAlpha.phases_at
- proposal.branches is None
+ True
a tree has the phase of its root <-
  test_a_tree_has_the_phase_of_each_path | test_compiled_trees
@ PhasedAlpha.phases_at
- range(proposal.branches.tree.depth)
+ range(0)
the deepest nodes of a tree have the phase of shallow ones <-
  test_a_tree_has_the_phase_of_each_path
@ PhasedAlpha.phases_at
- range(proposal.branches.tree.depth)
+ range(proposal.branches.tree.depth - 1)

=== decoding/laws/phases.py decoding/test_phase_laws.py
the alphas change places <- test_a_target_has_the_alpha[spec_decode_lossy]
@ PlacedAlpha.choose
- jnp.where(like(self.phase == AFTER, after), after, before)
+ jnp.where(like(self.phase == AFTER, after), before, after)
an exact phase does not ask the verifier <-
  test_single_tokens_take_every_path[token_cascade_chow-marker]
@ PlacedAlpha.deferring
- jnp.where(like(self.is_exact, left), -jnp.inf, left)
+ left

=== decoding/laws/targets.py decoding/test_phase_laws.py
an exact phase has the target of its unused alpha <-
  test_a_target_has_the_alpha[spec_cascade_token_v3]
@ Target._by_phase
- pi = jnp.where(like(alpha.is_exact, pi), sampled[1], pi)
+ pass

=== decoding/loops/rounds.py decoding/test_phase_laws.py
a rejected marker stays <-
  test_blocks_take_every_path[spec_decode_lossy-marker]
@ commit
- _last(states, carry.phase_state, emitted)
+ states[:, -1]
a marker in two blocks is not found <-
  test_blocks_take_every_path[spec_decode_lossy-marker]
@ commit
- settings.phased.marker.follow(carry.phase_state, new)
+ settings.phased.marker.follow(0 * carry.phase_state, new)
a turn goes on in the phase of the turn before <-
  test_phases.py::test_each_turn_begins_before_the_marker
@ Loop.turn
- phase_state=self._phase_states(len(length))
+ phase_state=carry.phase_state

=== decoding/loops/execution.py decoding/test_phase_laws.py
a single token has the phase of the first <-
  test_single_tokens_take_every_path[token_cascade_chow-marker]
@ LoopSettings.alpha_after
- self.phased.phase(prefix.phase_state)
+ self.phased.phase(0 * prefix.phase_state)

=== decoding/verification/review.py decoding/test_phase_laws.py
sides along a path have the phases of the nodes <-
  test_compiled_trees[spec_cascade_opt-traversal-marker]
@ _verify_tree
- alpha_at(settings.alpha, scored.phase)
+ alpha_at(settings.alpha, at_nodes.phase[:, : scored.phase.shape[1]])

=== decoding/nested/vertical.py decoding/test_phase_laws.py
the inner pair stays in the phase of the block's start <-
  test_three_models_have_the_phases_of_the_text
@ _state_after
- return numerics.of_token(states, block.verdict.num_accepted)
+ return so_far.phase_state
the inner pair's state is that of the rejected draft <-
  test_three_models_have_the_phases_of_the_text
@ _state_after
- numerics.of_token(states, block.verdict.num_accepted)
+ states[:, -1]
""")
