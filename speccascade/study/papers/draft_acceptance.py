"""The chance that one of several drafts of one position is accepted.

K tokens are drafted for one position, and a verification accepts one of them
or none; the emitted token has the distribution pi in any case. For each way to
draw the drafts there is a largest possible chance, the optimum, which no exact
verification exceeds. The functions return the chances of verifications and the
optimum, exactly and without sampling, so that their quotient can be reported.

Letters: q is the drafter's distribution, pi the target distribution, K is
`num_drafts`. Distributions are [..., V] and broadcast; results are [...].

The ways to draw the drafts, `DRAWINGS`:
  "iid": K independent draws of q.
  "without_replacement": each draft is drawn from q without the drafts before
    it, renormalised. Where q has no token left there are fewer drafts.
  "greedy_and_random": the K - 1 most probable tokens of q, and one draw of q
    without them, renormalised.
  "top_k": the K most probable tokens of q.
Of equally probable tokens the lower id comes first.

Where q has fewer tokens than children are wanted, as after top-k or top-p, a
decoder lets the likeliest other tokens at temperature 1 stand in. They are
certain: no trial is made of them, and one of them counts as accepted where the
verifier draws it by itself. With `plain`, the drafter's distribution at
temperature 1 without a filter, the functions know these children. Without it,
drafts of "without_replacement" end with the tokens of q.
"""

import numpy as np

from speccascade.study.papers import checks

DRAWINGS = ("iid", "without_replacement", "greedy_and_random", "top_k")
# The quadrature of `_all_inside`: logarithms of times, and their distance. At
# this distance the trapezoid rule's error is below the rounding of float64.
STEP = 0.2
LOG_TIMES = np.arange(-40, 45, STEP)


def optimal_acceptance(
  q, pi, num_drafts: int, drawing: str, plain=None
) -> np.ndarray:
  """Returns [...], the largest chance that any exact verification accepts.

  With Q(H) the chance that all drafts are in a set H of tokens, the optimum is
  1 + min over H of (pi(H) - Q(H)). The minimum is at a set of the tokens with
  the largest q / pi, or at the empty set, so V + 1 sets are compared.

  Args:
    q: [..., V] the drafter's distribution.
    pi: [..., V] the target distribution.
    num_drafts: K, 1 or more.
    drawing: one of `DRAWINGS`. One row of "without_replacement" takes about
      1.5 s at V = 32,000; the other ways take a sort.
    plain: [..., V] the drafter's distribution at temperature 1, by which
      children stand in where q has too few tokens; None: none stands in.

  Raises:
    ValueError: `drawing` is none of these, or an argument is outside its range.

  Source: Hu et al., "Towards Optimal Multi-draft Speculative Decoding"
  (arXiv:2502.18779).

  >>> q, pi = [0.5, 0.3, 0.15, 0.05], [0.2, 0.4, 0.3, 0.1]
  >>> round(float(optimal_acceptance(q, pi, 2, "iid")), 3)
  0.95
  """
  q, pi, num_drafts = _checked(q, pi, num_drafts, drawing)
  plain = _plain(plain, q)
  if drawing in ("greedy_and_random", "top_k"):
    return _with_certain_drafts(q, pi, num_drafts, drawing, plain)
  original = q, pi
  with np.errstate(divide="ignore", invalid="ignore"):
    # A token that neither q nor pi has does not matter: its 0/0 comes last.
    ratio = np.nan_to_num(q / pi, nan=0.0, posinf=np.inf)
  order = np.argsort(-ratio, axis=-1, kind="stable")
  q, pi = (np.take_along_axis(x, order, axis=-1) for x in (q, pi))
  if drawing == "iid":
    all_inside = np.cumsum(q, axis=-1) ** num_drafts
  else:
    all_inside = np.stack(
      [_all_inside(row, num_drafts) for row in q.reshape(-1, q.shape[-1])]
    ).reshape(q.shape)
  excess = np.min(np.cumsum(pi, axis=-1) - all_inside, axis=-1)
  return (
    1
    + np.minimum(excess, 0)
    + _standing_in(*original, num_drafts, drawing, plain)
  )


def token_acceptance(
  q, pi, num_drafts: int, drawing: str, plain=None
) -> np.ndarray:
  """Returns [...], the chance that token verification accepts a draft.

  Token verification tries the drafts in the order in which they were drawn. A
  draft of the distribution q_k is accepted with min(1, r / q_k), where r is pi
  at first and norm(max(0, r - q_k)) after each refusal. Of "greedy_and_random"
  drafts the random one alone is tried; where it is refused, the token that is
  drawn from the residual may equal a certain draft, which then counts as
  accepted.

  Args:
    q: [..., V] the drafter's distribution.
    pi: [..., V] the target distribution.
    num_drafts: K, 1 or more.
    drawing: one of `DRAWINGS`. "without_replacement" enumerates the refused
      drafts, up to V^K numbers of memory for each row: it is meant for small V.
      The other ways take K passes over the distributions, or a sort.
    plain: as in `optimal_acceptance`.

  Raises:
    ValueError: `drawing` is none of these, or an argument is outside its range.

  Source: Miao et al., SpecInfer (arXiv:2305.09781), for "iid"; Jeon et al.,
  "Recursive Speculative Decoding" (arXiv:2402.14160), for
  "without_replacement"; Hu et al. (arXiv:2502.18779) for "greedy_and_random".

  >>> q, pi = [0.5, 0.3, 0.15, 0.05], [0.2, 0.4, 0.3, 0.1]
  >>> round(float(token_acceptance(q, pi, 2, "iid")), 3)
  0.85
  """
  q, pi, num_drafts = _checked(q, pi, num_drafts, drawing)
  plain = _plain(plain, q)
  if drawing in ("greedy_and_random", "top_k"):
    return _with_certain_drafts(q, pi, num_drafts, drawing, plain)
  if drawing == "iid":
    return _iid_trials(q, pi, num_drafts)
  rows = zip(*(x.reshape(-1, q.shape[-1]) for x in (q, pi)))
  chances = [_trials_without_replacement(*row, num_drafts) for row in rows]
  tried = np.array(chances).reshape(q.shape[:-1])
  return tried + _standing_in(q, pi, num_drafts, drawing, plain)


def k_seq_acceptance(q, pi, num_drafts: int) -> np.ndarray:
  """Returns [...], the chance that K-SEQ accepts one of K i.i.d. drafts.

  K-SEQ accepts each draft with min(1, pi / (rho q)). With
  b(rho) = sum min(q, pi / rho), the factor rho in [1, K] is the root of
  1 - (1 - b)^K = rho b, and the chance is 1 - (1 - b)^K.

  Args:
    q: [..., V] the drafter's distribution.
    pi: [..., V] the target distribution.
    num_drafts: K, 1 or more.

  Raises:
    ValueError: an argument is outside its range.

  Source: Sun et al., SpecTr (arXiv:2310.15141).

  >>> q, pi = [0.5, 0.3, 0.15, 0.05], [0.2, 0.4, 0.3, 0.1]
  >>> round(float(k_seq_acceptance(q, pi, 2)), 5)
  0.87165
  """
  q, pi, num_drafts = _checked(q, pi, num_drafts, "iid")

  def chances(rho):
    """Returns b, and the chance that one draft is accepted."""
    b = np.minimum(q, pi / rho[..., None]).sum(-1)
    return b, 1 - (1 - b) ** num_drafts

  # Each bisection halves the interval; 60 of them leave nothing of K.
  low = np.ones(q.shape[:-1])
  high = np.full(q.shape[:-1], float(num_drafts))
  for _ in range(60):
    middle = (low + high) / 2
    b, accepted = chances(middle)
    is_below = accepted > middle * b
    low = np.where(is_below, middle, low)
    high = np.where(is_below, high, middle)
  # At or above the root the residual is nowhere negative, so K-SEQ takes the
  # upper end.
  return chances(high)[1]


def _checked(q, pi, num_drafts, drawing):
  """Returns q and pi as float64 of one shape, and K as an int."""
  if drawing not in DRAWINGS:
    raise ValueError(f"drawing is {drawing!r}; it must be one of {DRAWINGS}")
  num_drafts = checks.count("num_drafts", num_drafts, 1)
  q, pi = checks.probability("q", q), checks.probability("pi", pi)
  return *np.broadcast_arrays(q, pi), num_drafts


def _plain(plain, q):
  """Returns the confidences in the shape of q, or None."""
  if plain is None:
    return None
  return np.broadcast_to(checks.probability("plain", plain), q.shape)


def _likeliest(q, num, plain):
  """Returns [..., num] the likeliest tokens: those of q before all others."""
  order = q if plain is None else np.where(q > 0, plain, plain - 2)
  return np.argsort(-order, axis=-1, kind="stable")[..., :num]


def _standing_in(q, pi, num_drafts, drawing, plain):
  """Returns [...], what children add that stand in for draws of q."""
  # Draws without replacement then are all tokens of q. The stand-ins are tokens
  # that q lacks, which no trial drafts, so the verifier draws one of them with
  # its target probability. Independent draws repeat tokens instead.
  if plain is None or drawing != "without_replacement":
    return 0.0
  top = _likeliest(q, num_drafts, plain)
  is_other = np.take_along_axis(q, top, axis=-1) <= 0
  return np.where(is_other, np.take_along_axis(pi, top, axis=-1), 0).sum(-1)


def _normalise(weights):
  """Returns weights divided by their sum over V, or zeros where it is 0."""
  total = weights.sum(-1, keepdims=True)
  return weights / np.where(total > 0, total, 1)


def _residual(r, q):
  """Returns norm(max(0, r - q))."""
  return _normalise(np.maximum(r - q, 0))


def _with_certain_drafts(q, pi, num_drafts, drawing, plain):
  """Returns the chance for drafts that are certain, but for the last one."""

  # A target token among the certain drafts is always accepted; outside them the
  # random draft, if there is one, is accepted as a single draft would be. Where
  # the certain drafts leave q no token, the last one is certain too.
  def mark(num):
    is_certain = np.zeros(q.shape, bool)
    np.put_along_axis(is_certain, _likeliest(q, num, plain), True, axis=-1)
    return is_certain

  is_certain = mark(num_drafts if drawing == "top_k" else num_drafts - 1)
  if drawing == "greedy_and_random" and plain is not None:
    has_draw = np.where(is_certain, 0, q).sum(-1, keepdims=True) > 0
    is_certain = np.where(has_draw, is_certain, mark(num_drafts))
  certain = np.where(is_certain, pi, 0).sum(-1)
  if drawing == "top_k":
    return certain
  rest = _normalise(np.where(is_certain, 0, q))
  return certain + np.where(is_certain, 0, np.minimum(rest, pi)).sum(-1)


def _iid_trials(q, pi, num_drafts):
  """Returns the chance that one of K trials of i.i.d. drafts succeeds."""
  # The residual after a refusal does not depend on the draft that was refused,
  # so it depends on the number of refusals alone.
  refused, r = np.ones(q.shape[:-1]), pi
  for _ in range(num_drafts):
    refused = refused * np.maximum(q - r, 0).sum(-1)
    r = _residual(r, q)
  return 1 - refused


def _trials_without_replacement(q, pi, num_drafts):
  """Returns the chance that one of K distinct drafts is accepted, for a row."""
  # The distributions of the later drafts and the residual depend on the drafts
  # that were refused, so every sequence of refused drafts is followed. For each
  # sequence: its chance, and the distributions after it. [M], [M, V], [M, V].
  chance, q, r = np.ones(1), q[None], pi[None]
  accepted = 0.0
  for trial in range(num_drafts):
    accepted += chance @ np.minimum(q, r).sum(-1)
    if trial == num_drafts - 1:
      break
    refused = chance[:, None] * np.maximum(q - r, 0)
    sequence, token = np.nonzero(refused)
    chance = refused[sequence, token]
    r = _residual(r, q)[sequence]
    q = q[sequence]
    q[np.arange(len(token)), token] = 0
    q = _normalise(q)
  return accepted


def _all_inside(q, num_drafts):
  """Returns [V], the chances that all K drafts of q [V] are in the first n."""
  # Entry n - 1 is for the set of the first n tokens. Let token v arrive after
  # an exponential time of rate q(v). The order of arrival is the order of
  # drawing without replacement. All K drafts are inside a set if K of its
  # tokens arrive before the first token outside, which arrives at the rate
  # c = 1 - q(set): the chance is the integral over t of
  # c exp(-c t) P(at least K arrived by t). In s = log t the integrand is smooth
  # and vanishes at both ends, so that equal steps of s integrate it to
  # rounding. No more are drafted than q has tokens.
  num_drafts = min(num_drafts, np.count_nonzero(q))
  outside = np.append(np.cumsum(q[:0:-1])[::-1], 0)
  times = np.exp(LOG_TIMES)
  # counts[:, j] is the chance that j tokens of the set arrived by each time.
  counts = np.zeros((len(times), num_drafts))
  counts[:, 0] = 1
  chances = np.ones(len(q))
  for n, (rate, c) in enumerate(zip(q, outside)):
    arrived = -np.expm1(-rate * times)[:, None]
    moved = counts * arrived
    counts -= moved
    counts[:, 1:] += moved[:, :-1]
    if c > 0:
      first_outside = c * times * np.exp(-c * times) * STEP
      chances[n] = first_outside @ (1 - counts.sum(-1))
  return chances
