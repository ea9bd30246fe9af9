// Sums over a block of classes and their gradients: the loops around the generated `logit_of`, `term_of` and `slopes_of`.
//
// Products are [classes * SUBCENTERS, samples], classes first, as in kernels.py, whose functions these are. Samples are
// worked on in tiles whose vectors stay in the cache, and threads have disjoint ranges of classes. Sums over the samples
// of a class, and over a short run of classes, are in the working precision; longer ones in double precision.

constexpr long RUN = 32;  // classes

struct Block {
  const real* products;
  long row_stride, classes, samples, threads;
  const real* inverse_norm;           // [classes * SUBCENTERS]
  const real* x_norm;                 // [samples], if HAS_RADIUS
  const real* x_scale;                // [samples], factors of the products; null: 1
  const int32_t* target;              // [samples], the class of the block that is a sample's target
  const real* bias;                   // [classes], if HAS_BIAS
  const real* numbers;                // [NUMBERS]
  const real* const* sample_numbers;  // SAMPLE_NUMBERS vectors [samples]
  double* partial;                    // [threads, 2 * samples + LEARNT], scratch
  // forward
  const real* anchor;                 // [samples]
  double* sum;                        // [samples]
  double* logit_sum;                  // [samples], may be null
  // backward
  const real* log_sum;                // [samples]
  const real* grad_others;            // [samples]
  const real* grad_logit_sum;         // [samples], may be null
  const real* grad_target;            // [samples], gradient of the target's value
  real* grad_products;                // [classes * SUBCENTERS, grad_stride]
  long grad_stride;
  real* w_coefficient;                // [classes * SUBCENTERS]
  real* grad_bias;                    // [classes], if HAS_BIAS
  double* other_gradients;            // [samples + LEARNT]: of the norms of the samples, and of the learnt numbers
  double* x_along;                    // [samples], sums of value times gradient, may be null
};

INLINE vec load(const real* from, long count) {
  vec x = {};
  if (count >= LANES) memcpy(&x, from, sizeof x);
  else memcpy(&x, from, count * sizeof(real));
  return x;
}

INLINE void store(real* to, vec x, long count) {
  if (count >= LANES) memcpy(to, &x, sizeof x);
  else memcpy(to, &x, count * sizeof(real));
}

INLINE real sum_of(vec x) {
  real total = 0;
  for (long k = 0; k < LANES; ++k) total += x[k];
  return total;
}

// The vectors [samples] of a tile, filled up to whole vectors.
struct Samples {
  vec x_norm[VECTORS], x_scale[VECTORS], numbers[SAMPLE_NUMBERS + 1][VECTORS];
  mask target[VECTORS];
  long size, vectors;
};

static void copy_vector(vec* to, const real* from, long size, real otherwise) {
  real* lanes = reinterpret_cast<real*>(to);
  for (long i = 0; i < TILE; ++i) lanes[i] = from && i < size ? from[i] : otherwise;
}

static void load_samples(Samples& s, const Block& b, long from) {
  s.size = b.samples - from < TILE ? b.samples - from : TILE;
  s.vectors = (s.size + LANES - 1) / LANES;
  copy_vector(s.x_norm, HAS_RADIUS ? b.x_norm + from : nullptr, s.size, 1);
  copy_vector(s.x_scale, b.x_scale ? b.x_scale + from : nullptr, s.size, 1);
  for (long k = 0; k < SAMPLE_NUMBERS; ++k) copy_vector(s.numbers[k], b.sample_numbers[k] + from, s.size, 0);
  integer* target = reinterpret_cast<integer*>(s.target);
  for (long i = 0; i < TILE; ++i) target[i] = i < s.size ? b.target[from + i] : -1;
}

static Numbers load_numbers(const Block& b) {
  Numbers numbers;
  for (long k = 0; k < NUMBERS; ++k) numbers.of[k] = splat(b.numbers[k]);
  return numbers;
}

struct Class {  // a class and its products with a tile of samples
  const real* rows[SUBCENTERS];
  vec scales[SUBCENTERS];
  vec bias, w_norm;
};

INLINE Class load_class(const Block& b, long j, long from) {
  Class c;
  for (long k = 0; k < SUBCENTERS; ++k) {
    c.rows[k] = b.products + (j * SUBCENTERS + k) * b.row_stride + from;
    c.scales[k] = splat(DIVIDES_BY_W_NORM ? b.inverse_norm[j * SUBCENTERS + k] : real(1));
  }
  c.bias = splat(HAS_BIAS ? b.bias[j] : real(0));
  const real inverse = b.inverse_norm[j * SUBCENTERS];
  c.w_norm = splat(HAS_RADIUS && inverse != real(0) ? real(1) / inverse : real(0));
  return c;
}

// The argument of phi for a vector of samples, and the cosines of the sub-centres that it is folded from.
INLINE vec load_value(const Class& c, const Samples& s, long v, vec* cosines) {
  const long count = s.size - v * LANES;
  for (long k = 0; k < SUBCENTERS; ++k) cosines[k] = load(c.rows[k] + v * LANES, count) * c.scales[k] * s.x_scale[v];
  return fold(cosines);
}

// Share of `count` of one of the threads.
INLINE long share(long count, long thread, long threads) { return count * thread / threads; }

static void add_partial(const Block& b, long stride, long offset, long size, double* result) {
  for (long i = 0; i < size; ++i) {
    double total = 0;
    for (long thread = 0; thread < b.threads; ++thread) total += b.partial[thread * stride + offset + i];
    result[i] = total;
  }
}

static void add_lanes(double* totals, const vec* values, long size) {
  const real* lanes = reinterpret_cast<const real*>(values);
  for (long i = 0; i < size; ++i) totals[i] += lanes[i];
}

static void sum_tile(const Block& b, long first, long last, long from, double* total, double* logit_total) {
  const Numbers numbers = load_numbers(b);
  Samples s;
  load_samples(s, b, from);
  vec anchor[VECTORS];
  copy_vector(anchor, ONE_VS_ALL ? nullptr : b.anchor + from, s.size, 0);
  for (long start = first; start < last; start += RUN) {
    const long stop = start + RUN < last ? start + RUN : last;
    vec sum[VECTORS] = {}, logits[VECTORS] = {};
    for (long j = start; j < stop; ++j) {
      const Class c = load_class(b, j, from);
      const mask place = mask{} + static_cast<integer>(j);
      for (long v = 0; v < s.vectors; ++v) {
        vec cosines[SUBCENTERS];
        const vec value = load_value(c, s, v, cosines);
        const mask is_target = s.target[v] == place;
        if constexpr (ONE_VS_ALL) {
          sum[v] += choose(is_target, real(0), term_of(value, c.bias, s.x_norm[v], c.w_norm, numbers, s.numbers, v));
        } else {
          const vec z = logit_of(value, c.bias, s.x_norm[v], c.w_norm, numbers, s.numbers, v);
          sum[v] += choose(is_target, real(0), exp_of(z - anchor[v]));
          if (b.logit_sum) logits[v] += choose(is_target, real(0), z);
        }
      }
    }
    add_lanes(total + from, sum, s.size);
    if (b.logit_sum) add_lanes(logit_total + from, logits, s.size);
  }
}

extern "C" void sum_others(const Block* block) {
  const Block& b = *block;
#pragma omp parallel for num_threads(b.threads) schedule(static, 1) if (b.threads > 1)
  for (long thread = 0; thread < b.threads; ++thread) {
    double* total = b.partial + thread * 2 * b.samples;
    memset(total, 0, 2 * b.samples * sizeof(double));
    const long first = share(b.classes, thread, b.threads), last = share(b.classes, thread + 1, b.threads);
    for (long from = 0; from < b.samples; from += TILE) sum_tile(b, first, last, from, total, total + b.samples);
  }
  add_partial(b, 2 * b.samples, 0, b.samples, b.sum);
  if (b.logit_sum) add_partial(b, 2 * b.samples, b.samples, b.samples, b.logit_sum);
}

static void differentiate_tile(const Block& b, long first, long last, long from, double* sums) {
  const Numbers numbers = load_numbers(b);
  Samples s;
  load_samples(s, b, from);
  vec log_sum[VECTORS], grad_others[VECTORS], grad_target[VECTORS], grad_logit_sum[VECTORS];
  copy_vector(log_sum, b.log_sum + from, s.size, 0);
  copy_vector(grad_others, b.grad_others + from, s.size, 0);
  copy_vector(grad_target, b.grad_target + from, s.size, 0);
  copy_vector(grad_logit_sum, b.grad_logit_sum ? b.grad_logit_sum + from : nullptr, s.size, 0);
  for (long start = first; start < last; start += RUN) {
    const long stop = start + RUN < last ? start + RUN : last;
    vec of_norm[VECTORS] = {}, of_along[VECTORS] = {}, of_learnt[LEARNT + 1] = {};
    for (long j = start; j < stop; ++j) {
      const Class c = load_class(b, j, from);
      const mask place = mask{} + static_cast<integer>(j);
      vec w_along[SUBCENTERS] = {}, of_w_norm = {}, of_bias = {};
      for (long v = 0; v < s.vectors; ++v) {
        vec cosines[SUBCENTERS], shares[SUBCENTERS];
        Slopes slopes;
        const vec value = load_value(c, s, v, cosines);
        const vec z = slopes_of(value, c.bias, s.x_norm[v], c.w_norm, numbers, s.numbers, v, slopes);
        const mask is_target = s.target[v] == place;
        vec of_term = grad_others[v];
        if constexpr (!ONE_VS_ALL) {  // a logit is at most the log-sum, except the target's
          of_term = exp_of(smaller(z - log_sum[v], real(1))) * of_term + grad_logit_sum[v];
        }
        // The gradient of the target's product comes from its angle instead.
        const vec gradient = choose(is_target, grad_target[v], of_term * slopes.value);
        if (HAS_RADIUS || HAS_BIAS || LEARNT) of_term = choose(is_target, real(0), of_term);
        if (HAS_RADIUS) of_norm[v] += of_term * slopes.x_norm, of_w_norm += of_term * slopes.w_norm;
        if (HAS_BIAS) of_bias += of_term * slopes.bias;
        for (long k = 0; k < LEARNT; ++k) of_learnt[k] += of_term * slopes.learnt[k];
        fold_slopes(cosines, shares);
        for (long k = 0; k < SUBCENTERS; ++k) {
          const vec part = gradient * shares[k];
          const vec along = part * cosines[k];
          w_along[k] += along;
          if (b.x_along) of_along[v] += along;
          real* out = b.grad_products + (j * SUBCENTERS + k) * b.grad_stride + from + v * LANES;
          store(out, part * c.scales[k] * s.x_scale[v], s.size - v * LANES);
        }
      }
      for (long k = 0; k < SUBCENTERS; ++k) {
        // A gradient along the weight itself does not turn it: subtract that part.
        const real inverse = b.inverse_norm[j * SUBCENTERS + k];
        real coefficient = DIVIDES_BY_W_NORM ? -sum_of(w_along[k]) * inverse * inverse : real(0);
        if (HAS_RADIUS) coefficient += sum_of(of_w_norm) * inverse;
        real& result = b.w_coefficient[j * SUBCENTERS + k];
        result = coefficient + (from ? result : real(0));
      }
      if (HAS_BIAS) b.grad_bias[j] = sum_of(of_bias) + (from ? b.grad_bias[j] : real(0));
    }
    if (HAS_RADIUS) add_lanes(sums + from, of_norm, s.size);
    if (b.x_along) add_lanes(sums + b.samples + LEARNT + from, of_along, s.size);
    for (long k = 0; k < LEARNT; ++k) sums[b.samples + k] += sum_of(of_learnt[k]);
  }
}

extern "C" void gradients(const Block* block) {
  const Block& b = *block;
  const long size = b.samples + LEARNT + (b.x_along ? b.samples : 0);
#pragma omp parallel for num_threads(b.threads) schedule(static, 1) if (b.threads > 1)
  for (long thread = 0; thread < b.threads; ++thread) {
    double* sums = b.partial + thread * size;
    memset(sums, 0, size * sizeof(double));
    const long first = share(b.classes, thread, b.threads), last = share(b.classes, thread + 1, b.threads);
    for (long from = 0; from < b.samples; from += TILE) differentiate_tile(b, first, last, from, sums);
  }
  add_partial(b, size, 0, b.samples + LEARNT, b.other_gradients);
  if (b.x_along) add_partial(b, size, b.samples + LEARNT, b.samples, b.x_along);
}
