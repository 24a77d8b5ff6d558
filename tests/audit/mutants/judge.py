"""A wrong judge; read by `records`."""

from tests.audit.mutants.records import records

MUTANTS = records("""
=== judge/goodness.py
the pooled outcomes are dropped <- test_counts_without_mass
- counts = np.append(counts[:pooled].sum(), counts[pooled:])
-     expected = np.append(expected[:pooled].sum(), expected[pooled:])
+ counts, expected = counts[pooled:], expected[pooled:]
counts where the distribution has no mass are left out <-
  test_counts_without_mass
@ p_value
- np.any(counts[law < NO_MASS] > 0)
+ False
rare outcomes hide behind a likely one <- test_counts_without_mass
@ p_value
- return min(1.0, 2 * min(fit, of_rare))
+ return fit
a pool may expect next to nothing <- test_right_samples
@ p_value
- mixed = num_rare > 0 and rare_expected < POOLED
+ mixed = False
""")
