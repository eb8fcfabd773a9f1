/* Block kernels and the outer step, compiled: the bits of numpy_kernels.py and of outer_step_, in one pass over
 * memory. build_kernels.py compiles this file while the package is installed; compiled_kernels.py
 * loads it.
 *
 * Editor's rules: no fast math and no contraction (multiply and add must not be fused, every operation rounds once), so
 * that all machines compute the same bits. Loops are plain, for the compiler to turn into vector instructions; helpers
 * are always inlined, so that each clone of a function is compiled for its machine as a whole.
 */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if FLT_EVAL_METHOD != 0
#error "this compiler keeps more than float32 between two operations; the bits would differ"
#endif

/* CLONES: a list of machines to compile for, one of which is taken when the library is loaded. */
#ifdef CLONES
#define EXPORTED __attribute__((visibility("default"), target_clones(CLONES)))
#else
#define EXPORTED __attribute__((visibility("default")))
#endif
#define INLINED static inline __attribute__((always_inline))

#ifndef SOURCE
#define SOURCE ""
#endif

enum {
    MAX_MAGNITUDE_BITS = 0x7E800000,  /* 2^126 */
    SMALLEST_SCALE_BITS = 0x0D800000, /* 2^-100 */
    NOISE_BITS = 16,
    MANTISSA_BITS = 23,
    EXPONENT_OF_LEVEL_0 = 120, /* level 1 is 2^-6, whose biased exponent is 121 */
    TILE = 256,                /* values of one part of a block at a time: scratch memory stays in the first cache */
};

#define NOISE_STEP 0x1p-16f
#define NOISE_RANGE 0x1p16f
#define HALF_SMALLEST_LEVEL 0x1p-7f
#define RANGE_PER_LEVEL 0x1p22f

__attribute__((visibility("default"))) const char *kernels_source(void) { return SOURCE; }

INLINED int32_t bits_of(float value) {
    int32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

INLINED float float_of(int32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* float32 bits of a block's scale: max|x| / top code, rounded up to what can be stored; -1: a value is out of range. */
INLINED int32_t scale_bits_of(const float *block, int64_t size, float top_code, int32_t round_up, int dropped_bits) {
    int32_t largest = 0;
    for (int64_t i = 0; i < size; i++) {
        int32_t magnitude = bits_of(block[i]) & 0x7FFFFFFF;
        largest = magnitude > largest ? magnitude : largest;
    }
    if (largest > MAX_MAGNITUDE_BITS)
        return -1;
    int32_t bits = (bits_of(float_of(largest) / top_code) + round_up) >> dropped_bits;
    bits = (int32_t)((uint32_t)bits << dropped_bits);
    return bits >= SMALLEST_SCALE_BITS ? bits : 0;
}

/* 0..65535 from position and seed: a multiply-xorshift hash. */
INLINED int32_t noise_at(int64_t position, uint32_t seed) {
    uint32_t hashed = (uint32_t)position ^ seed;
    hashed = (hashed ^ (hashed >> 16)) * 0x7FEB352Du;
    hashed = (hashed ^ (hashed >> 15)) * 0x846CA68Bu;
    return (int32_t)(hashed >> 16);
}

/* Integer codes of `count` values, as floats. noise: the seed, or -1 to round to nearest. */
INLINED void round_integers(const float *values, float *codes, int64_t count, float divisor, int64_t position,
                            int64_t noise) {
    if (noise < 0) {
        for (int64_t i = 0; i < count; i++)
            codes[i] = rintf(values[i] / divisor);
    } else {
        for (int64_t i = 0; i < count; i++) {
            float draw = (float)noise_at(position + i, (uint32_t)noise);
            codes[i] = floorf(values[i] / divisor + (draw + 0.5f) * NOISE_STEP);
        }
    }
}

INLINED void subtract_scaled(float *values, const float *codes, int64_t count, float scale) {
    for (int64_t i = 0; i < count; i++)
        values[i] -= codes[i] * scale;
}

INLINED void encode_integer_block(float *block, int64_t width, int bits, float scale, uint8_t *packed, int keep_residual,
                                  int64_t position, int64_t noise) {
    float codes[4][TILE];
    const int parts = 8 / bits;
    const float divisor = scale > 0 ? scale : INFINITY;
    for (int64_t start = 0; start < width; start += TILE) {
        const int64_t count = width - start < TILE ? width - start : TILE;
        for (int part = 0; part < parts; part++) {
            int64_t first = part * width + start;
            round_integers(block + first, codes[part], count, divisor, position + first, noise);
        }
        uint8_t *out = packed + start;
        if (bits == 8)
            for (int64_t i = 0; i < count; i++)
                out[i] = (uint8_t)((int32_t)codes[0][i] + 0x80);
        else if (bits == 4)
            for (int64_t i = 0; i < count; i++)
                out[i] = (uint8_t)((int32_t)codes[0][i] + (int32_t)codes[1][i] * 16 + 0x88);
        else
            for (int64_t i = 0; i < count; i++)
                out[i] = (uint8_t)((int32_t)codes[0][i] + (int32_t)codes[1][i] * 4 + (int32_t)codes[2][i] * 16 +
                                   (int32_t)codes[3][i] * 64 + 0xAA);
        if (keep_residual)
            for (int part = 0; part < parts; part++)
                subtract_scaled(block + part * width + start, codes[part], count, scale);
    }
}

/* What an e3m0 code means in units of the scale; code 8, minus zero, means zero. */
INLINED float level_of(int32_t code) {
    int32_t exponent = code & 7;
    int32_t bits = (int32_t)((uint32_t)(code >> 3) << 31) | (exponent + EXPONENT_OF_LEVEL_0) << MANTISSA_BITS;
    return float_of(exponent ? bits : 0);
}

INLINED void round_exponents(const float *values, int32_t *codes, int64_t count, float divisor, int64_t position,
                             int64_t noise) {
    for (int64_t i = 0; i < count; i++) {
        float ratio = fabsf(values[i] / divisor);
        int32_t bits = bits_of(ratio), is_sent;
        if (noise < 0) {
            /* Half a step of the mantissa, less one unit when the lower exponent is even: ties go to the even code. */
            bits += ((bits >> MANTISSA_BITS) & 1) + 0x3FFFFF;
            is_sent = ratio > HALF_SMALLEST_LEVEL;
        } else {
            int32_t draw = noise_at(position + i, (uint32_t)noise);
            bits += draw << (MANTISSA_BITS - NOISE_BITS);
            is_sent = ratio * RANGE_PER_LEVEL + (float)draw >= NOISE_RANGE;
        }
        int32_t level = (bits >> MANTISSA_BITS) - EXPONENT_OF_LEVEL_0;
        level = level > 1 ? level : 1;
        codes[i] = is_sent ? level + (values[i] < 0 ? 8 : 0) : 0;
    }
}

INLINED void encode_exponent_block(float *block, int64_t width, float scale, uint8_t *packed, int keep_residual,
                                   int64_t position, int64_t noise) {
    int32_t codes[2][TILE];
    const float divisor = scale > 0 ? scale : INFINITY;
    for (int64_t start = 0; start < width; start += TILE) {
        const int64_t count = width - start < TILE ? width - start : TILE;
        for (int part = 0; part < 2; part++) {
            int64_t first = part * width + start;
            if (noise < 0)
                round_exponents(block + first, codes[part], count, divisor, 0, -1);
            else
                round_exponents(block + first, codes[part], count, divisor, position + first, noise);
        }
        for (int64_t i = 0; i < count; i++)
            packed[start + i] = (uint8_t)(codes[0][i] + codes[1][i] * 16);
        if (keep_residual)
            for (int part = 0; part < 2; part++)
                for (int64_t i = 0; i < count; i++)
                    block[part * width + start + i] -= level_of(codes[part][i]) * scale;
    }
}

/* As NumpyKernels.encode; returns the number of blocks done. */
EXPORTED int64_t encode_blocks(float *values, int64_t num_blocks, int64_t block_size, int64_t bits, int64_t exponential,
                               float top_code, int64_t round_up, int64_t dropped_bits, uint32_t *scales, uint8_t *codes,
                               int64_t keep_residual, int64_t first_value, int64_t noise) {
    const int64_t width = block_size * bits / 8;
    for (int64_t index = 0; index < num_blocks; index++) {
        float *block = values + index * block_size;
        uint8_t *packed = codes + index * width;
        const int64_t position = first_value + index * block_size;
        int32_t scale_bits = scale_bits_of(block, block_size, top_code, (int32_t)round_up, (int)dropped_bits);
        if (scale_bits < 0)
            return index;
        scales[index] = (uint32_t)scale_bits;
        const float scale = float_of(scale_bits);
        if (exponential)
            encode_exponent_block(block, width, scale, packed, (int)keep_residual, position, noise);
        else if (bits == 4)
            encode_integer_block(block, width, 4, scale, packed, (int)keep_residual, position, noise);
        else if (bits == 8)
            encode_integer_block(block, width, 8, scale, packed, (int)keep_residual, position, noise);
        else
            encode_integer_block(block, width, 2, scale, packed, (int)keep_residual, position, noise);
    }
    return num_blocks;
}

INLINED void decode_part(const uint8_t *packed, int64_t width, int part, int bits, int exponential, float scale,
                         float weight, int accumulate, float *out) {
    const int32_t mask = (1 << bits) - 1, zero = 1 << (bits - 1);
    const int shift = part * bits;
    for (int64_t i = 0; i < width; i++) {
        int32_t code = (packed[i] >> shift) & mask;
        float value = (exponential ? level_of(code) : (float)(code - zero)) * scale;
        out[i] = accumulate ? out[i] + value * weight : value;
    }
}

INLINED void decode_all(const float *scales, const uint8_t *codes, int64_t num_blocks, int64_t block_size, int bits,
                        int exponential, float weight, int accumulate, float *out) {
    const int64_t width = block_size * bits / 8;
    for (int64_t index = 0; index < num_blocks; index++)
        for (int part = 0; part < 8 / bits; part++)
            decode_part(codes + index * width, width, part, bits, exponential, scales[index], weight, accumulate,
                        out + index * block_size + part * width);
}

/* As NumpyKernels.decode, and with `accumulate` as NumpyKernels.decode_accumulate. */
EXPORTED void decode_blocks(const float *scales, const uint8_t *codes, int64_t num_blocks, int64_t block_size,
                            int64_t bits, int64_t exponential, float weight, int64_t accumulate, float *out) {
    const int chosen = (exponential ? 8 : 0) + (int)bits;
    if (accumulate)
        switch (chosen) {
        case 2: decode_all(scales, codes, num_blocks, block_size, 2, 0, weight, 1, out); break;
        case 4: decode_all(scales, codes, num_blocks, block_size, 4, 0, weight, 1, out); break;
        case 8: decode_all(scales, codes, num_blocks, block_size, 8, 0, weight, 1, out); break;
        default: decode_all(scales, codes, num_blocks, block_size, 4, 1, weight, 1, out);
        }
    else
        switch (chosen) {
        case 2: decode_all(scales, codes, num_blocks, block_size, 2, 0, weight, 0, out); break;
        case 4: decode_all(scales, codes, num_blocks, block_size, 4, 0, weight, 0, out); break;
        case 8: decode_all(scales, codes, num_blocks, block_size, 8, 0, weight, 0, out); break;
        default: decode_all(scales, codes, num_blocks, block_size, 4, 1, weight, 0, out);
        }
}

/* As outer.outer_step_: m <- beta m + g; A <- A - eta (g + beta m). */
EXPORTED void outer_step(float *restrict anchor, float *restrict momentum, const float *restrict gradient,
                         int64_t num_values, float outer_lr, float outer_momentum, float *restrict change) {
    for (int64_t i = 0; i < num_values; i++) {
        float velocity = momentum[i] * outer_momentum + gradient[i];
        momentum[i] = velocity;
        float before = anchor[i];
        float after = before - (velocity * outer_momentum + gradient[i]) * outer_lr;
        anchor[i] = after;
        change[i] = after - before;
    }
}
