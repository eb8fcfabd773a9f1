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
    TILE = 256, /* values of one part of a block at a time: scratch memory stays in the first cache */
};

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

/* The largest integer of a code. */
INLINED float top_code_of(int bits) { return (float)((1 << (bits - 1)) - 1); }

/* float32 bits of a block's scale: max|x| / top code, rounded up to a bfloat16; -1: a value is out of range. */
INLINED int32_t scale_bits_of(const float *block, int64_t size, int bits) {
    int32_t largest = 0;
    for (int64_t i = 0; i < size; i++) {
        int32_t magnitude = bits_of(block[i]) & 0x7FFFFFFF;
        largest = magnitude > largest ? magnitude : largest;
    }
    if (largest > MAX_MAGNITUDE_BITS)
        return -1;
    int32_t scale = (bits_of(float_of(largest) / top_code_of(bits)) + 0xFFFF) & ~0xFFFF;
    return scale >= SMALLEST_SCALE_BITS ? scale : 0;
}

INLINED void encode_block(float *block, int64_t width, int bits, float scale, uint8_t *packed, int keep_residual) {
    float codes[2][TILE];
    const int parts = 8 / bits;
    const float divisor = scale > 0 ? scale : INFINITY;
    for (int64_t start = 0; start < width; start += TILE) {
        const int64_t count = width - start < TILE ? width - start : TILE;
        for (int part = 0; part < parts; part++) {
            const float *values = block + part * width + start;
            for (int64_t i = 0; i < count; i++)
                codes[part][i] = rintf(values[i] / divisor);
        }
        uint8_t *out = packed + start;
        if (bits == 8)
            for (int64_t i = 0; i < count; i++)
                out[i] = (uint8_t)((int32_t)codes[0][i] + 0x80);
        else
            for (int64_t i = 0; i < count; i++)
                out[i] = (uint8_t)((int32_t)codes[0][i] + (int32_t)codes[1][i] * 16 + 0x88);
        if (keep_residual)
            for (int part = 0; part < parts; part++) {
                float *values = block + part * width + start;
                for (int64_t i = 0; i < count; i++)
                    values[i] -= codes[part][i] * scale;
            }
    }
}

INLINED int64_t encode_all(float *values, int64_t num_blocks, int64_t block_size, int bits, uint32_t *scales,
                           uint8_t *codes, int keep_residual) {
    const int64_t width = block_size * bits / 8;
    for (int64_t index = 0; index < num_blocks; index++) {
        float *block = values + index * block_size;
        int32_t scale_bits = scale_bits_of(block, block_size, bits);
        if (scale_bits < 0)
            return index;
        scales[index] = (uint32_t)scale_bits;
        encode_block(block, width, bits, float_of(scale_bits), codes + index * width, keep_residual);
    }
    return num_blocks;
}

/* As NumpyKernels.encode; returns the number of blocks done. */
EXPORTED int64_t encode_blocks(float *values, int64_t num_blocks, int64_t block_size, int64_t bits, uint32_t *scales,
                               uint8_t *codes, int64_t keep_residual) {
    if (bits == 4)
        return encode_all(values, num_blocks, block_size, 4, scales, codes, (int)keep_residual);
    return encode_all(values, num_blocks, block_size, 8, scales, codes, (int)keep_residual);
}

INLINED void decode_part(const uint8_t *packed, int64_t width, int part, int bits, float scale, float weight,
                         int accumulate, float *out) {
    const int32_t mask = (1 << bits) - 1, zero = 1 << (bits - 1);
    const int shift = part * bits;
    for (int64_t i = 0; i < width; i++) {
        float value = (float)(((packed[i] >> shift) & mask) - zero) * scale;
        out[i] = accumulate ? out[i] + value * weight : value;
    }
}

INLINED void decode_all(const float *scales, const uint8_t *codes, int64_t num_blocks, int64_t block_size, int bits,
                        float weight, int accumulate, float *out) {
    const int64_t width = block_size * bits / 8;
    for (int64_t index = 0; index < num_blocks; index++)
        for (int part = 0; part < 8 / bits; part++)
            decode_part(codes + index * width, width, part, bits, scales[index], weight, accumulate,
                        out + index * block_size + part * width);
}

/* As NumpyKernels.decode, and with `accumulate` as NumpyKernels.decode_accumulate. */
EXPORTED void decode_blocks(const float *scales, const uint8_t *codes, int64_t num_blocks, int64_t block_size,
                            int64_t bits, float weight, int64_t accumulate, float *out) {
    if (bits == 4 && accumulate)
        decode_all(scales, codes, num_blocks, block_size, 4, weight, 1, out);
    else if (bits == 4)
        decode_all(scales, codes, num_blocks, block_size, 4, weight, 0, out);
    else if (accumulate)
        decode_all(scales, codes, num_blocks, block_size, 8, weight, 1, out);
    else
        decode_all(scales, codes, num_blocks, block_size, 8, weight, 0, out);
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
