// Products of weights and vectors, the part that all kernels of products share: the order in which
// a row's terms are added, so that every kernel gives the same bits.
//
// A row is cut into runs of RUN weights, in order. A run is PARTS-fold interleaved: part p has the
// runs p, p + PARTS, ... Within a run a weight is `scale * code + low`, and
//   dot   = the codes times the elements, added in order by fma from zero;
//   total = the elements, added in order (where the format has `low`);
//   part  = fma(low, total, fma(scale, dot, part)).
// The PARTS sums are added as a tree: part p takes part p + PARTS / 2, and so on by halves. None of
// this depends on the device, on tiles, on other rows or on other tokens.

struct Run {
//repeat q FOURS
    c{q}: vec4<f32>, // codes
//end
    scale: f32,
    low: f32,
}

// Elements of a vector that meet a run, as `scaled` leaves them.
struct Elements {
//repeat q FOURS
    c{q}: vec4<f32>,
//end
}

fn chain(sum: f32, w: vec4<f32>, x: vec4<f32>) -> f32 {
    return fma(w.w, x.w, fma(w.z, x.z, fma(w.y, x.y, fma(w.x, x.x, sum))));
}

fn add_four(total: f32, x: vec4<f32>) -> f32 {
    return (((total + x.x) + x.y) + x.z) + x.w;
}

fn add_run(sum: f32, w: Run, x: Elements, total: f32) -> f32 {
    var dot = 0.0;
//repeat q FOURS
    dot = chain(dot, w.c{q}, x.c{q});
//end
    return add_dot(sum, w.scale, dot, w.low, total);
}

fn add_dot(sum: f32, scale: f32, dot: f32, low: f32, total: f32) -> f32 {
    let next = fma(scale, dot, sum);
    if HAS_LOW {
        return fma(low, total, next);
    }
    return next;
}

var<workgroup> partials: array<f32, THREADS * COLUMNS>;

// The tree of every PARTS neighbors of `partials`; the sum is where the first of them was.
fn sum_parts(lane: u32) {
    workgroupBarrier();
    for (var half = PARTS / 2u; half > 0u; half = half / 2u) {
        if lane % PARTS < half {
//repeat k COLUMNS
            partials[{k}u * THREADS + lane] += partials[{k}u * THREADS + lane + half];
//end
        }
        workgroupBarrier();
    }
}

// Four bytes as whole numbers less `bias`: each is put into the lowest bits of 2^23, which needs no
// conversion; the subtraction is exact.
fn bytes_less(word: u32, bias: f32) -> vec4<f32> {
    let bytes = vec4<u32>(word, word >> 8u, word >> 16u, word >> 24u) & vec4<u32>(0xffu);
    return bitcast<vec4<f32>>(bytes | vec4<u32>(0x4b000000u)) - (8388608.0 + bias);
}

// A half as f32. Devices may flush subnormal halves in their conversion; those take another way.
fn scale_of(bits: u32) -> f32 {
    if (bits & 0x7c00u) == 0u {
        return half_to_float(bits);
    }
    return unpack2x16float(bits).x;
}

// Two halves each as f32.
fn halves_of(words: vec2<u32>) -> vec4<f32> {
    let four = vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y));
    let exponents = vec4<u32>(words.x, words.x >> 16u, words.y, words.y >> 16u) & vec4<u32>(0x7c00u);
    if all(exponents != vec4<u32>(0u)) {
        return four;
    }
    return vec4<f32>(
        half_to_float(words.x & 0xffffu), half_to_float(words.x >> 16u),
        half_to_float(words.y & 0xffffu), half_to_float(words.y >> 16u),
    );
}

// The four words from an even address on.
fn words_at(address: u32) -> vec4<u32> {
    let at = address >> 2u;
    let odd = (address & 2u) != 0u;
    let four = vec4<u32>(stored[at], stored[at + 1u], stored[at + 2u], stored[at + 3u]);
    // Nothing beyond the last word of the matrix is looked at.
    let last = stored[at + select(3u, 4u, odd)];
    let shifted = (four >> vec4<u32>(16u)) | (vec4<u32>(four.yzw, last) << vec4<u32>(16u));
    return select(four, shifted, odd);
}
