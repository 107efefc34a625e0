// What every kernel is assembled with: indices, sums in one fixed order, elementary functions.
//
// Workgroups are one-dimensional with LANES invocations, a power of two. Sums of a workgroup go
// through its memory as a tree over lanes, so their order depends on LANES alone: not on the
// device's subgroups, nor on how many workgroups there are. Products are added with fma, so that no
// compiler may choose between a fused and a plain one.

const LANES: u32 = 64u;

// Index of a workgroup in a grid that is two-dimensional because one dimension would be too long.
fn group_index(group: vec3<u32>, groups: vec3<u32>) -> u32 {
    return group.y * groups.x + group.x;
}

var<workgroup> lane_sums: array<f32, LANES>;

// The sum of `value` over all lanes, for all of them.
fn sum_lanes(lane: u32, value: f32) -> f32 {
    lane_sums[lane] = value;
    workgroupBarrier();
    for (var half = LANES / 2u; half > 0u; half = half / 2u) {
        if lane < half {
            lane_sums[lane] = lane_sums[lane] + lane_sums[lane + half];
        }
        workgroupBarrier();
    }
    let sum = lane_sums[0];
    workgroupBarrier();
    return sum;
}

// e^x within two units in the last place, between the smallest normal number, below which it is
// zero, and the largest one.
// x = n ln 2 + r, and e^r by the polynomial of the Cephes library (S. Moshier).
fn exp_of(x: f32) -> f32 {
    let bounded = clamp(x, -87.3, 88.7);
    let n = round(bounded * 1.44269504);
    let r = fma(n, 2.12194440e-4, fma(n, -0.693359375, bounded));
    var series = 1.9875691500e-4;
    series = fma(series, r, 1.3981999507e-3);
    series = fma(series, r, 8.3334519073e-3);
    series = fma(series, r, 4.1665795894e-2);
    series = fma(series, r, 1.6666665459e-1);
    series = fma(series, r, 5.0000001201e-1);
    series = fma(series, r * r, r) + 1.0;
    // 2^n in two factors, of which neither leaves the range of exponents.
    let first = i32(n) / 2;
    let second = i32(n) - first;
    let power = bitcast<f32>(u32(first + 127) << 23u) * bitcast<f32>(u32(second + 127) << 23u);
    return select(series * power, 0.0, x < -87.3);
}

// 1 / (1 + e^-x), from the side on which the exponential cannot overflow.
fn sigmoid(x: f32) -> f32 {
    let z = exp_of(-abs(x));
    return select(z, 1.0, x >= 0.0) / (1.0 + z);
}

fn silu(x: f32) -> f32 {
    return x * sigmoid(x);
}

// ln(1 + e^x) = max(x, 0) + ln(1 + z) with z = e^-|x|, and ln(1 + z) = 2 artanh(z / (2 + z)).
fn softplus(x: f32) -> f32 {
    let z = exp_of(-abs(x));
    let s = z / (2.0 + z);
    let q = s * s;
    var series = 1.0 / 17.0;
    series = fma(series, q, 1.0 / 15.0);
    series = fma(series, q, 1.0 / 13.0);
    series = fma(series, q, 1.0 / 11.0);
    series = fma(series, q, 1.0 / 9.0);
    series = fma(series, q, 1.0 / 7.0);
    series = fma(series, q, 1.0 / 5.0);
    series = fma(series, q, 1.0 / 3.0);
    series = fma(series, q, 1.0);
    return fma(2.0 * s, series, max(x, 0.0));
}
