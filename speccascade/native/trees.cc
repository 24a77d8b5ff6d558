// Trees of drafts, called by XLA: how the children of a node are chosen, and
// the walk that verifies a tree. `children` and `tree_steps` in
// speccascade.decoding say what both are; here one call does what they do in
// many small steps. A row's result does not depend on the rows beside it.
//
// Axes: B rows, N drafts, V vocabulary, G depth of the tree, P parents, K
// children of each.
#include <cmath>
#include <vector>

#include "draws.h"

typedef std::vector<float> Law;

// Divides weights by their sum; where the sum is 0, writes `otherwise`.
static void normalise(Law& weights, const float* otherwise) {
  const long V = weights.size();
  const float sum = sum_of(weights.data(), V);
  if (sum > 0)
    for (long i = 0; i < V; i++) weights[i] /= sum;
  else
    std::copy_n(otherwise, V, weights.data());
}

// A distribution that is read in place until it is changed.
class Changing {
 public:
  const float* at = nullptr;

  void look_at(const float* law) { at = law; }

  // Writes change(i) of each token, divided by the sum, or leaves the
  // distribution where the sum is 0.
  template <class Change>
  void change(long V, const Change& changed) {
    Law next(V);
    for (long i = 0; i < V; i++) next[i] = changed(i);
    normalise(next, at);
    held.swap(next);
    at = held.data();
  }

  // Takes tokens away.
  void drop(long V, const std::vector<int32_t>& tokens) {
    Law next(at, at + V);
    for (int32_t token : tokens) next[token] = 0;
    normalise(next, at);
    held.swap(next);
    at = held.data();
  }

 private:
  Law held;
};

// In the order of WAYS in tree_calls.py.
enum Way { TOKEN, K_SEQ, TRAVERSAL };

// A row's tree, and the walk down it. Node 0 is the root, node i + 1 is the
// place after draft i.
struct Walk {
  const int32_t *tokens = nullptr, *parents = nullptr;  // [N]
  const bool* is_certain = nullptr;                     // [N]
  const float *q = nullptr, *pi = nullptr;              // [N + 1, V]
  const float* laws = nullptr;     // [N, V], of each draft; none: those of q
  const float* u_accept = nullptr;  // [N]
  const float* u_draw = nullptr;    // [N + 1]
  long N = 0, V = 0, depth = 0;
  // Whether certain children were taken from the distribution of the drawn
  // ones, and whether each drawn child was taken from the distribution of the
  // next one.
  bool drops_certain = false, drops_drawn = false;

  // What the walk finds.
  long node = 0;
  int32_t token = 0;

  long token_of(long draft) const {
    return std::clamp<long>(tokens[draft], 0, V - 1);
  }
  const float* law_at(const float* laws, long node) const {
    return laws + node * V;
  }

  // Returns the first child of a node from draft `after` on that `fits`, or N.
  template <class Fits>
  long child(long node, long after, const Fits& fits) const {
    for (long i = after; i < N; i++)
      if (parents[i] == node && fits(i)) return i;
    return N;
  }
  long drawn_child(long node, long after) const {
    return child(node, after, [&](long i) { return !is_certain[i]; });
  }
  bool has_children(long node) const {
    return child(node, 0, [](long) { return true; }) < N;
  }

  // Sets the distribution of the first drawn child of a node.
  void find_drawn_law(long node, Changing& law) const {
    law.look_at(law_at(q, node));
    if (!drops_certain) return;
    std::vector<int32_t> taken;
    for (long i = 0; i < N; i++)
      if (parents[i] == node && is_certain[i]) taken.push_back(token_of(i));
    if (!taken.empty()) law.drop(V, taken);
  }

  // Goes down node by node. `arrive` makes a node ready, `accepts` says whether
  // a drawn child is accepted, and `missed` changes what follows a rejection.
  template <class Arrive, class Accepts, class Missed>
  void go_down(Changing& residual, const Arrive& arrive, const Accepts& accepts,
               const Missed& missed) {
    long next = 0;
    node = 0;
    arrive();
    while (true) {
      const long draft = drawn_child(node, next);
      long landed = N;
      if (draft < N) {
        if (!accepts(draft)) {
          missed(draft);
          next = draft + 1;
          continue;
        }
        // Of equal siblings the first one has what follows all of them.
        landed = child(node, 0, [&](long i) {
          return token_of(i) == token_of(draft);
        });
      } else {
        // After all trials a token is drawn, which may be a certain child.
        token = draw(residual.at, u_draw[node], V);
        landed = child(node, 0, [&](long i) {
          return is_certain[i] && token_of(i) == token;
        });
        if (landed == N) return;
      }
      node = landed + 1;
      next = 0;
      arrive();
    }
  }

  void verify_tokens() {
    Changing residual, law;
    const auto law_of = [&](long draft) {
      return laws ? law_at(laws, draft) : law.at;
    };
    const auto arrive = [&] {
      residual.look_at(law_at(pi, node));
      find_drawn_law(node, law);
    };
    const auto accepts = [&](long draft) {
      const long x = token_of(draft);
      return u_accept[draft] * law_of(draft)[x] < residual.at[x];
    };
    const auto missed = [&](long draft) {
      const float *r = residual.at, *tried = law_of(draft);
      residual.change(
          V, [=](long i) { return std::max(r[i] - tried[i], 0.f); });
      if (drops_drawn) law.drop(V, {(int32_t)token_of(draft)});
    };
    go_down(residual, arrive, accepts, missed);
  }

  // The largest factor r in [1, K] with 1 - (1 - b) ** K >= r b, where b is the
  // sum of min(distribution, target / r).
  struct Factor {
    const float *law, *target;
    long V;
    float count;
    float r = 1, b = 0, any_of = 0;

    void set(float factor) {
      r = factor;
      b = std::min((float)sum_of_lesser(law, target, r, V), 1.f);
      any_of = 1 - std::pow(1 - b, count);
    }

    void find() {
      constexpr int HALVINGS = 27;  // bits of a float, and a few
      // The upper end: where the factor is rounded up, the residual stays 0 or
      // more.
      float low = 1, high = std::max(count, 1.f) + 1e-6f;
      for (int i = 0; count > 1 && i < HALVINGS; i++) {
        const float middle = (low + high) / 2;
        set(middle);
        (any_of >= middle * b ? low : high) = middle;
      }
      set(low);
    }
  };

  void verify_k_seq() {
    Changing residual;
    Factor factor{nullptr, nullptr, V, 0};
    const auto arrive = [&] {
      const float *law = law_at(q, node), *target = law_at(pi, node);
      long count = 0;
      for (long i = 0; i < N; i++)
        count += parents[i] == node && !is_certain[i];
      residual.look_at(target);
      if (!count) return;
      factor = Factor{law, target, V, (float)count};
      factor.find();
      const float r = factor.r;
      const float share = factor.b > 0 ? factor.any_of / factor.b : 0;
      residual.change(V, [=](long i) {
        // Exactly 0 where the trials give a token all that the target does.
        if (target[i] <= r * law[i]) return 0.f;
        return std::max(target[i] - std::min(law[i], target[i] / r) * share,
                        0.f);
      });
    };
    const auto accepts = [&](long draft) {
      const long x = token_of(draft);
      const float scaled = factor.r * factor.law[x];
      return u_accept[draft] * scaled < factor.target[x];
    };
    go_down(residual, arrive, accepts, [](long) {});
  }

  // Whole paths, leaf after leaf.
  void verify_paths() {
    struct Level {
      Changing target, law;
      float weight = 1;
    };
    std::vector<Level> levels(depth + 1);
    // Children in the order of a key: the drawn ones, then the certain ones.
    const auto key = [&](long i) { return i + (is_certain[i] ? N : 0); };
    std::vector<bool> is_visited(N, true);
    for (long i = 0; i < N; i++)
      for (long j = 0; j < i; j++)
        if (parents[j] == parents[i] && tokens[j] == tokens[i])
          is_visited[i] = false;
    long level = 0, next = 0;
    node = 0;
    levels[0].target.look_at(pi);
    find_drawn_law(0, levels[0].law);
    while (true) {
      Level& here = levels[level];
      long draft = N;
      for (long i = 0; i < N; i++)
        if (parents[i] == node && is_visited[i] && key(i) >= next &&
            (draft == N || key(i) < key(draft)))
          draft = i;
      if (draft < N) {
        const long x = token_of(draft);
        const float q_x = is_certain[draft] ? 1 : here.law.at[x];
        const float ratio = q_x > 0 ? here.target.at[x] / q_x : 0;
        const float reach = std::min(1.f, here.weight * ratio);
        node = draft + 1;
        level = std::min(level + 1, depth);
        next = 0;
        levels[level].weight = reach;
        levels[level].target.look_at(law_at(pi, node));
        find_drawn_law(node, levels[level].law);
        continue;
      }
      const long leaf = node - 1;
      if (!node || u_accept[leaf] < here.weight) {
        token = draw(here.target.at, u_draw[node], V);
        return;
      }
      // The leaf is dropped from its parent.
      level--;
      Level& above = levels[level];
      const long x = token_of(leaf);
      const float *target = above.target.at, *law = above.law.at;
      const float weight = above.weight;
      const bool certain = is_certain[leaf];
      Law gain(V);
      for (long i = 0; i < V; i++) {
        const float tried = certain ? (float)(i == x) : law[i];
        gain[i] = std::max(weight * target[i] - tried, 0.f);
      }
      const float mass = sum_of(gain.data(), V), all = mass + (1 - weight);
      above.weight = all > 0 ? mass / all : 0;
      above.target.change(V, [&](long i) { return gain[i]; });
      if (!certain) above.law.drop(V, {(int32_t)x});
      next = key(leaf) + 1;
      node = parents[leaf];
    }
  }
};

static ffi::Error walk(ffi::BufferR2<ffi::S32> tokens,
                       ffi::BufferR2<ffi::S32> parents,
                       ffi::BufferR2<ffi::PRED> is_certain,
                       ffi::BufferR3<ffi::F32> q, ffi::BufferR3<ffi::F32> pi,
                       ffi::BufferR3<ffi::F32> laws,
                       ffi::BufferR2<ffi::F32> u_accept,
                       ffi::BufferR2<ffi::F32> u_draw,
                       ffi::ResultBufferR1<ffi::S32> num_accepted,
                       ffi::ResultBufferR1<ffi::S32> token,
                       ffi::ResultBufferR1<ffi::S32> examined,
                       ffi::ResultBufferR2<ffi::S32> path, int64_t way,
                       bool drops_certain, bool drops_drawn) {
  const long B = tokens.dimensions()[0], N = tokens.dimensions()[1];
  const long V = q.dimensions()[2], G = path->dimensions()[1];
  const bool has_laws = laws.dimensions()[1];
  for (long b = 0; b < B; b++) {
    Walk row;
    row.tokens = tokens.typed_data() + b * N;
    row.parents = parents.typed_data() + b * N;
    row.is_certain = is_certain.typed_data() + b * N;
    row.q = q.typed_data() + b * (N + 1) * V;
    row.pi = pi.typed_data() + b * (N + 1) * V;
    row.laws = has_laws ? laws.typed_data() + b * N * V : nullptr;
    row.u_accept = u_accept.typed_data() + b * N;
    row.u_draw = u_draw.typed_data() + b * (N + 1);
    row.N = N;
    row.V = V;
    row.depth = G;
    row.drops_certain = drops_certain;
    row.drops_drawn = drops_drawn;
    if (way == TOKEN) row.verify_tokens();
    if (way == K_SEQ) row.verify_k_seq();
    if (way == TRAVERSAL) row.verify_paths();
    // The path, from its last draft back to the root.
    std::vector<int32_t> drafts;
    for (long node = row.node; node > 0; node = row.parents[node - 1])
      drafts.insert(drafts.begin(), node - 1);
    const long num = drafts.size();
    int32_t* y = path->typed_data() + b * G;
    for (long i = 0; i < G; i++) y[i] = i < num ? drafts[i] : 0;
    num_accepted->typed_data()[b] = num;
    token->typed_data()[b] = row.token;
    examined->typed_data()[b] = num + row.has_children(row.node);
  }
  return ffi::Error::Success();
}

// Returns the first index of the largest number.
static long first_best(const float* x, long n) {
  Floats tops = -INFINITY - Floats{};
  const auto look = [&](Floats x) { tops = x > tops ? x : tops; };
  long i = 0;
  for (; i + LANES <= n; i += LANES) look(load(x + i));
  look(load_some(x + i, n - i, -INFINITY));
  float top = -INFINITY;
  for (int lane = 0; lane < LANES; lane++) top = std::max(top, tops[lane]);
  return first_of(x, top, n);
}

// Chooses the children of a node: `num_certain` likeliest tokens, and then
// draws of the distribution. Where `drops`, a token is drawn once, and where
// the distribution has none left the likeliest other token stands in, which is
// certain.
struct Children {
  const float *q = nullptr, *plain = nullptr;  // [V]
  const float* u = nullptr;                    // [K]
  long V = 0, K = 0, num_certain = 0;
  bool drops = false, greedy = false;
  int32_t* tokens = nullptr;  // [K]
  bool* certain = nullptr;    // [K]

  void operator()() const {
    Law law, order;
    // Certain children are taken in this order: first the tokens of the
    // distribution.
    const auto begin_order = [&](long num_taken) {
      order.resize(V);
      for (long i = 0; i < V; i++)
        order[i] = greedy ? plain[i] : q[i] > 0 ? q[i] : plain[i] - 2;
      for (long k = 0; k < num_taken; k++) order[tokens[k]] = -INFINITY;
    };
    if (num_certain) begin_order(0);
    if (drops) law.assign(q, q + V);
    for (long k = 0; k < K; k++) {
      certain[k] = k < num_certain;
      if (!certain[k]) {
        const float* weights = drops ? law.data() : q;
        tokens[k] = draw(weights, u[k], V);
        // A draw has no mass only where no token has any.
        certain[k] = drops && !(weights[tokens[k]] > 0);
      }
      if (certain[k]) {
        if (order.empty()) begin_order(k);
        tokens[k] = first_best(order.data(), V);
      }
      if (drops) law[tokens[k]] = 0;
      if (!order.empty()) order[tokens[k]] = -INFINITY;
    }
  }
};

static ffi::Error children(ffi::BufferR3<ffi::F32> q,
                           ffi::BufferR3<ffi::F32> plain,
                           ffi::BufferR3<ffi::F32> u,
                           ffi::ResultBufferR3<ffi::S32> tokens,
                           ffi::ResultBufferR3<ffi::PRED> certain,
                           int64_t num_certain, bool drops, bool greedy) {
  const auto sizes = u.dimensions();
  const long parents = sizes[0] * sizes[1], K = sizes[2];
  const long V = q.dimensions()[2];
  for (long i = 0; i < parents; i++) {
    Children node;
    node.q = q.typed_data() + i * V;
    node.plain = plain.typed_data() + i * V;
    node.u = u.typed_data() + i * K;
    node.V = V;
    node.K = K;
    node.num_certain = num_certain;
    node.drops = drops;
    node.greedy = greedy;
    node.tokens = tokens->typed_data() + i * K;
    node.certain = certain->typed_data() + i * K;
    node();
  }
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(TreeWalk, walk,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::BufferR2<ffi::S32>>()
                                  .Arg<ffi::BufferR2<ffi::S32>>()
                                  .Arg<ffi::BufferR2<ffi::PRED>>()
                                  .Arg<ffi::BufferR3<ffi::F32>>()
                                  .Arg<ffi::BufferR3<ffi::F32>>()
                                  .Arg<ffi::BufferR3<ffi::F32>>()
                                  .Arg<ffi::BufferR2<ffi::F32>>()
                                  .Arg<ffi::BufferR2<ffi::F32>>()
                                  .Ret<ffi::BufferR1<ffi::S32>>()
                                  .Ret<ffi::BufferR1<ffi::S32>>()
                                  .Ret<ffi::BufferR1<ffi::S32>>()
                                  .Ret<ffi::BufferR2<ffi::S32>>()
                                  .Attr<int64_t>("way")
                                  .Attr<bool>("drops_certain")
                                  .Attr<bool>("drops_drawn"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(TreeChildren, children,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::BufferR3<ffi::F32>>()
                                  .Arg<ffi::BufferR3<ffi::F32>>()
                                  .Arg<ffi::BufferR3<ffi::F32>>()
                                  .Ret<ffi::BufferR3<ffi::S32>>()
                                  .Ret<ffi::BufferR3<ffi::PRED>>()
                                  .Attr<int64_t>("num_certain")
                                  .Attr<bool>("drops")
                                  .Attr<bool>("greedy"));
