// Vectors of `real` and elementary functions of them, in the vector extension of GCC and Clang.
#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
#define INLINE static inline __attribute__((always_inline))

constexpr bool IS_DOUBLE = sizeof(real) == 8;
template <bool> struct IntegerOf { using type = int32_t; };
template <> struct IntegerOf<true> { using type = int64_t; };
using integer = IntegerOf<IS_DOUBLE>::type;
typedef real vec __attribute__((vector_size(VECTOR_BYTES)));
typedef integer mask __attribute__((vector_size(VECTOR_BYTES)));
constexpr long LANES = VECTOR_BYTES / sizeof(real);
constexpr long VECTORS = 16;  // vectors of a tile of samples
constexpr long TILE = VECTORS * LANES;

// glibc has vector versions of these, which GCC uses when it is told of them.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define HAS_VECTOR_VERSION __attribute__((simd("notinbranch"), const))
extern "C" {
HAS_VECTOR_VERSION float logf(float) noexcept;
HAS_VECTOR_VERSION float sinf(float) noexcept;
HAS_VECTOR_VERSION float cosf(float) noexcept;
HAS_VECTOR_VERSION float powf(float, float) noexcept;
HAS_VECTOR_VERSION double exp(double) noexcept;
HAS_VECTOR_VERSION double log(double) noexcept;
HAS_VECTOR_VERSION double sin(double) noexcept;
HAS_VECTOR_VERSION double cos(double) noexcept;
HAS_VECTOR_VERSION double pow(double, double) noexcept;
}
#endif
static inline float sqrt_one(float x) { return sqrtf(x); }
static inline double sqrt_one(double x) { return sqrt(x); }
static inline float log_one(float x) { return logf(x); }
static inline double log_one(double x) { return log(x); }
static inline float sin_one(float x) { return sinf(x); }
static inline double sin_one(double x) { return sin(x); }
static inline float cos_one(float x) { return cosf(x); }
static inline double cos_one(double x) { return cos(x); }
static inline float acos_one(float x) { return acosf(x); }
static inline double acos_one(double x) { return acos(x); }
static inline float pow_one(float x, float y) { return powf(x, y); }
static inline double pow_one(double x, double y) { return pow(x, y); }

INLINE vec splat(vec x) { return x; }
INLINE vec splat(real x) { return vec{} + x; }

template <class A, class B> INLINE vec choose(mask condition, A a, B b) { return condition ? splat(a) : splat(b); }

// A loop over the lanes of a vector, which the compiler turns into one instruction or one call.
#define DEFINE_FOR_VECTORS(NAME, ONE)                     \
  INLINE vec NAME(vec x) {                                \
    alignas(VECTOR_BYTES) real lanes[LANES];              \
    memcpy(lanes, &x, sizeof x);                          \
    _Pragma("omp simd") for (long k = 0; k < LANES; ++k) lanes[k] = ONE(lanes[k]); \
    memcpy(&x, lanes, sizeof x);                          \
    return x;                                             \
  }
DEFINE_FOR_VECTORS(sqrt_of, sqrt_one)
DEFINE_FOR_VECTORS(log_of, log_one)
DEFINE_FOR_VECTORS(sin_of, sin_one)
DEFINE_FOR_VECTORS(cos_of, cos_one)
DEFINE_FOR_VECTORS(acos_of, acos_one)

// 1/sqrt(x): a division and a square root take as long as twenty multiplications, so processors have an estimate with 14
// bits, which a step of Newton's method doubles.
INLINE vec rsqrt_of(vec x) {
#if defined(__AVX512F__)
  if constexpr (!IS_DOUBLE) {
    const vec estimate = (vec)_mm512_rsqrt14_ps((__m512)x);
    return estimate * (real(1.5) - (x * real(0.5)) * (estimate * estimate));
  }
#endif
  return real(1) / sqrt_of(x);
}

INLINE vec pow_of(vec x, real y) {
  alignas(VECTOR_BYTES) real lanes[LANES];
  memcpy(lanes, &x, sizeof x);
#pragma omp simd
  for (long k = 0; k < LANES; ++k) lanes[k] = pow_one(lanes[k], y);
  memcpy(&x, lanes, sizeof x);
  return x;
}

// These keep a NaN in x.
template <class B> INLINE vec larger(vec x, B bound) { return choose(x < bound, bound, x); }
template <class B> INLINE vec smaller(vec x, B bound) { return choose(x > bound, bound, x); }
INLINE vec absolute(vec x) { return choose(x < real(0), -x, x); }

// e^x in single precision: 2^n e^r with |r| <= log(2)/2 and a polynomial of e^r, with an error of about one unit in the
// last place. The result is 0 below -87, where numbers become too small for full precision (and slow), and at most e^88.
INLINE vec exp_single(vec x) {
  const float shift = 12582912.0f;  // 1.5 * 2^23: what is added to it is rounded to a whole number, in its last bits
  const vec clamped = larger(smaller(x, real(88)), real(-87));
  const vec shifted = clamped * real(1.44269504) + real(shift);
  const vec n = shifted - real(shift);
  const vec r = (clamped - n * real(0.693359375)) + n * real(2.12194440e-4);
  vec p = r * real(1.9875691500e-4) + real(1.3981999507e-3);
  p = p * r + real(8.3334519073e-3);
  p = p * r + real(4.1665795894e-2);
  p = p * r + real(1.6666665459e-1);
  p = p * r + real(5.0000001201e-1);
  p = p * (r * r) + r + real(1);
  const mask bits = ((mask)shifted + 127) << 23;
  return choose(x < real(-87), real(0), p * (vec)bits);
}

INLINE vec exp_double(vec x) {
  alignas(VECTOR_BYTES) double lanes[LANES];
  for (long k = 0; k < LANES; ++k) lanes[k] = x[k];
#pragma omp simd
  for (long k = 0; k < LANES; ++k) lanes[k] = exp(lanes[k]);
  for (long k = 0; k < LANES; ++k) x[k] = real(lanes[k]);
  return x;
}

INLINE vec exp_of(vec x) {
  if constexpr (IS_DOUBLE) return exp_double(x);
  else return exp_single(x);
}

// log(1 + y) for y in [0, 1]: the rounding of 1 + y is divided out.
INLINE vec log_one_plus(vec y) {
  const vec u = real(1) + y;
  const vec d = u - real(1);
  return choose(d == real(0), y, log_of(u) * (y / choose(d == real(0), real(1), d)));
}

INLINE vec log_sigmoid(vec x) { return smaller(x, real(0)) - log_one_plus(exp_of(-absolute(x))); }

INLINE vec sigmoid(vec x) {
  const vec e = exp_of(-absolute(x));
  return choose(x < real(0), e, real(1)) / (real(1) + e);
}
