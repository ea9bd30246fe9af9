// A whole head at once, from the products of all embeddings with all class weights, as they come out of one matrix
// product: norms, targets and sums over the other classes, and back. The loops over the products are those of
// native_kernels.cpp. What is computed once per sample or class is in double precision where digits could be lost.

constexpr long ANCHOR_CLASSES = 16;
constexpr double MIN_SAFE_NORM = 1e-15, MAX_SAFE_NORM = 1e15;  // squares and inverses are safe in single precision
constexpr double MAX_ACCURATE_COSINE = 0.9;                    // the angle of a larger cosine comes from the chord
constexpr double TINY_SINE = 0.02;                             // below it, so does its gradient
constexpr double ROUNDED_SINE = 1e-14;                         // below it, a difference of directions is rounding
constexpr double MIN_EXP_SUM = 0.5, MAX_EXP_SUM = 1e37;        // sums of exp relative to an anchor that was well chosen

struct Dense {
  Block block;
  long dim;
  const real* x;          // [samples, dim]
  const real* w;          // [classes * SUBCENTERS, dim]
  const real* x_norm;     // [samples]
  const int64_t* labels;  // [samples]
  real* w_norm;           // [classes * SUBCENTERS]
  real* w_inverse;        // the same, 1 / norm: the block's inverse_norm
  real* x_inverse;        // [samples]
  int32_t* target;        // [samples]: the block's target
  int32_t* own_row;       // [samples], row of the target's weight: with sub-centres, of the nearest
  real* own_value;        // [samples], the target's argument of phi
  real* own_w_norm;       // [samples]
  real* theta;            // [samples], angle to the row `own_row`
  real* anchor;           // [samples], scratch: the block's anchor
  real* others;           // [samples]
  real* logit_sum;        // [samples], may be null
  const real* grad_theta; // [samples], like the following; each may be null
  const real* grad_value;
  const real* grad_x_norm;
  const real* grad_w_norm;
  real* grad_target;      // [samples], scratch: the block's grad_target
  real* grad_x;           // [samples, dim], what is to be added to the products with the weights; may be null
  real* grad_w;           // [classes * SUBCENTERS, dim], likewise
};

static real norm_of(const real* row, long dim) {
  real total = 0;
#pragma omp simd reduction(+ : total)
  for (long k = 0; k < dim; ++k) total += row[k] * row[k];
  return sqrt_one(total);
}

struct Chord {
  double theta, x_inverse, w_inverse, apart, together;
};

// The angle between two vectors from the lengths of the difference and the sum of their directions.
static Chord chord_of(const real* x, const real* w, long dim) {
  double xx = 0, ww = 0, apart = 0, together = 0;
#pragma omp simd reduction(+ : xx, ww)
  for (long k = 0; k < dim; ++k) xx += double(x[k]) * x[k], ww += double(w[k]) * w[k];
  const double of_x = 1 / sqrt(xx), of_w = 1 / sqrt(ww);
#pragma omp simd reduction(+ : apart, together)
  for (long k = 0; k < dim; ++k) {
    const double u = x[k] * of_x, v = w[k] * of_w;
    apart += (u - v) * (u - v), together += (u + v) * (u + v);
  }
  apart = sqrt(apart), together = sqrt(together);
  return {2 * atan2(apart, together), of_x, of_w, apart, together};
}

static void find_target(const Dense& d, long i) {
  const Block& b = d.block;
  vec cosines[SUBCENTERS];
  long nearest = 0;
  double largest = -INFINITY;
  for (long k = 0; k < SUBCENTERS; ++k) {
    const long row = d.labels[i] * SUBCENTERS + k;
    const real product = b.products[row * b.row_stride + i];
    const double cos = double(product) * d.w_inverse[row] * d.x_inverse[i];
    if (cos > largest) largest = cos, nearest = row;
    cosines[k] = splat(product * (DIVIDES_BY_W_NORM ? d.w_inverse[row] : real(1)) * (b.x_scale ? b.x_scale[i] : real(1)));
  }
  d.target[i] = static_cast<int32_t>(d.labels[i]);
  d.own_row[i] = static_cast<int32_t>(nearest);
  d.own_w_norm[i] = d.w_norm[nearest];
  d.own_value[i] = fold(cosines)[0];
  const bool is_accurate = largest <= MAX_ACCURATE_COSINE && largest >= -MAX_ACCURATE_COSINE;
  d.theta[i] = is_accurate ? acos(largest) : chord_of(d.x + i * d.dim, d.w + nearest * d.dim, d.dim).theta;
}

// Norms of the weights, and the targets. Returns 0, and computes no target, if a norm is extreme, zero or NaN.
extern "C" int prepare_dense(const Dense* dense) {
  const Dense& d = *dense;
  const Block& b = d.block;
  const long rows = b.classes * SUBCENTERS;
  long unsafe = 0;
#pragma omp parallel num_threads(b.threads) if (b.threads > 1)
  {
#pragma omp for schedule(static) reduction(+ : unsafe)
    for (long j = 0; j < rows; ++j) {
      const real norm = norm_of(d.w + j * d.dim, d.dim);
      unsafe += !(norm > MIN_SAFE_NORM && norm < MAX_SAFE_NORM);
      d.w_norm[j] = norm, d.w_inverse[j] = 1 / norm;
    }
    if (!unsafe) {
#pragma omp for schedule(static)
      for (long i = 0; i < b.samples; ++i) {
        d.x_inverse[i] = 1 / d.x_norm[i];
        find_target(d, i);
      }
    }
  }
  return !unsafe;
}

// The largest logit of the first `classes`, without the targets; 0 where there is none.
static void find_anchor(const Dense& d, long classes) {
  const Block& b = d.block;
  const Numbers numbers = load_numbers(b);
  for (long from = 0; from < b.samples; from += TILE) {
    Samples s;
    load_samples(s, b, from);
    for (long v = 0; v < s.vectors; ++v) {
      vec top = splat(real(-INFINITY));
      for (long j = 0; j < classes; ++j) {
        const Class c = load_class(b, j, from);
        vec cosines[SUBCENTERS];
        const vec value = load_value(c, s, v, cosines);
        const vec z = logit_of(value, c.bias, s.x_norm[v], c.w_norm, numbers, s.numbers, v);
        top = larger(top, choose(s.target[v] == mask{} + static_cast<integer>(j), real(-INFINITY), z));
      }
      const long count = s.size - v * LANES;
      store(d.anchor + from + v * LANES, choose(top == real(-INFINITY), real(0), top), count);
    }
  }
}

// The log-sum over the other classes of every sample, or the sum of their losses; after prepare_dense.
extern "C" void forward_dense(const Dense* dense) {
  const Dense& d = *dense;
  const Block& b = d.block;
  if (ONE_VS_ALL) {
    sum_others(&b);
    for (long i = 0; i < b.samples; ++i) d.others[i] = b.sum[i];
    return;
  }
  find_anchor(d, b.classes < ANCHOR_CLASSES ? b.classes : ANCHOR_CLASSES);
  sum_others(&b);
  bool is_far_off = false;
  for (long i = 0; i < b.samples; ++i) is_far_off |= b.sum[i] > MAX_EXP_SUM || b.sum[i] < MIN_EXP_SUM;
  if (is_far_off && b.classes > ANCHOR_CLASSES) {
    find_anchor(d, b.classes);
    sum_others(&b);
  }
  for (long i = 0; i < b.samples; ++i) d.others[i] = d.anchor[i] + log(b.sum[i]);
  if (d.logit_sum) for (long i = 0; i < b.samples; ++i) d.logit_sum[i] = b.logit_sum[i];
}

// Adds the gradient of an angle close to 0 or pi: along the arc, from the difference or the sum of the two directions.
static void add_arc(const Dense& d, long i) {
  const real *x = d.x + i * d.dim, *w = d.w + d.own_row[i] * d.dim;
  const Chord c = chord_of(x, w, d.dim);
  const double sine = c.apart * c.together / 2;
  if (!(sine > ROUNDED_SINE)) return;  // no direction is left: the gradient is 0
  const double sign = c.apart < c.together ? 1 : -1;  // v - cos u without cancellation: (v -+ u) +- u (1 -+ cos)
  const double bend = c.apart < c.together ? c.apart * c.apart / 2 : -c.together * c.together / 2;
  const double of_x = -d.grad_theta[i] / sine * c.x_inverse, of_w = -d.grad_theta[i] / sine * c.w_inverse;
  real* to_x = d.grad_x ? d.grad_x + i * d.dim : nullptr;
  real* to_w = d.grad_w ? d.grad_w + d.own_row[i] * d.dim : nullptr;
  for (long k = 0; k < d.dim; ++k) {
    const double u = x[k] * c.x_inverse, v = w[k] * c.w_inverse;
    if (to_x) to_x[k] += real(of_x * ((v - sign * u) + u * bend));
    if (to_w) to_w[k] += real(of_w * ((u - sign * v) + v * bend));
  }
}

// Gradients of the products, and the parts of the gradients of embeddings and weights that are not products.
extern "C" void backward_dense(const Dense* dense) {
  const Dense& d = *dense;
  const Block& b = d.block;
  // The gradient of the target's cosine; that of a tiny angle does not go through it.
  for (long i = 0; i < b.samples; ++i) {
    double of_cos = 0;
    if (d.grad_theta) {
      const double sine = sin(double(d.theta[i]));
      of_cos = sine < TINY_SINE ? 0 : -d.grad_theta[i] / sine;
    }
    d.anchor[i] = of_cos;
    double of_value = of_cos;  // the value is the cosine times the norms that it keeps
    if (!b.x_scale) of_value *= d.x_inverse[i];
    if (!DIVIDES_BY_W_NORM) of_value /= d.own_w_norm[i];
    d.grad_target[i] = of_value + (d.grad_value ? d.grad_value[i] : real(0));
  }
  gradients(&b);
  for (long i = 0; i < b.samples; ++i) {
    const long row = d.own_row[i];
    double of_w = d.grad_w_norm ? double(d.grad_w_norm[i]) : 0.0;
    const double along = d.anchor[i] * (d.grad_theta ? cos(double(d.theta[i])) : 0.0);
    if (!DIVIDES_BY_W_NORM) of_w -= along * d.w_inverse[row];
    b.w_coefficient[row] += of_w * d.w_inverse[row];
    double of_x = d.grad_x_norm ? double(d.grad_x_norm[i]) : 0.0;
    if (HAS_RADIUS) of_x += b.other_gradients[i];
    of_x -= (b.x_scale ? b.x_along[i] : along) * d.x_inverse[i];
    d.anchor[i] = of_x * d.x_inverse[i];
  }
  const long rows = b.classes * SUBCENTERS;
#pragma omp parallel num_threads(b.threads) if (b.threads > 1)
  {
    if (d.grad_x) {
#pragma omp for schedule(static) nowait
      for (long i = 0; i < b.samples; ++i)
        for (long k = 0; k < d.dim; ++k) d.grad_x[i * d.dim + k] = d.anchor[i] * d.x[i * d.dim + k];
    }
    if (d.grad_w) {
#pragma omp for schedule(static) nowait
      for (long j = 0; j < rows; ++j)
        for (long k = 0; k < d.dim; ++k) d.grad_w[j * d.dim + k] = b.w_coefficient[j] * d.w[j * d.dim + k];
    }
  }
  if (!d.grad_theta) return;
  for (long i = 0; i < b.samples; ++i)
    if (d.grad_theta[i] != real(0) && sin(double(d.theta[i])) < TINY_SINE) add_arc(d, i);
}
