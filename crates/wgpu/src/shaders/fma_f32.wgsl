// Nothing but f32 arithmetic: how fast a device multiplies and adds. Sixteen sums a lane, so that none
// waits for itself, four uses of each a step.

struct Params {
    n_steps: u32,
    n_groups: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let g = group_index(group, groups);
    if g >= p.n_groups {
        return;
    }
    let a = 0.5 + f32(lane) * 0.001;
    let b = 0.25 + f32(p.n_steps) * 1e-9;
    var s0 = f32(lane + 0u);
    var s1 = f32(lane + 1u);
    var s2 = f32(lane + 2u);
    var s3 = f32(lane + 3u);
    var s4 = f32(lane + 4u);
    var s5 = f32(lane + 5u);
    var s6 = f32(lane + 6u);
    var s7 = f32(lane + 7u);
    var s8 = f32(lane + 8u);
    var s9 = f32(lane + 9u);
    var s10 = f32(lane + 10u);
    var s11 = f32(lane + 11u);
    var s12 = f32(lane + 12u);
    var s13 = f32(lane + 13u);
    var s14 = f32(lane + 14u);
    var s15 = f32(lane + 15u);
    for (var i = 0u; i < p.n_steps; i++) {
        s0 = fma(s0, a, b);
        s1 = fma(s1, a, b);
        s2 = fma(s2, a, b);
        s3 = fma(s3, a, b);
        s4 = fma(s4, a, b);
        s5 = fma(s5, a, b);
        s6 = fma(s6, a, b);
        s7 = fma(s7, a, b);
        s8 = fma(s8, a, b);
        s9 = fma(s9, a, b);
        s10 = fma(s10, a, b);
        s11 = fma(s11, a, b);
        s12 = fma(s12, a, b);
        s13 = fma(s13, a, b);
        s14 = fma(s14, a, b);
        s15 = fma(s15, a, b);
        s0 = fma(s0, a, b);
        s1 = fma(s1, a, b);
        s2 = fma(s2, a, b);
        s3 = fma(s3, a, b);
        s4 = fma(s4, a, b);
        s5 = fma(s5, a, b);
        s6 = fma(s6, a, b);
        s7 = fma(s7, a, b);
        s8 = fma(s8, a, b);
        s9 = fma(s9, a, b);
        s10 = fma(s10, a, b);
        s11 = fma(s11, a, b);
        s12 = fma(s12, a, b);
        s13 = fma(s13, a, b);
        s14 = fma(s14, a, b);
        s15 = fma(s15, a, b);
        s0 = fma(s0, a, b);
        s1 = fma(s1, a, b);
        s2 = fma(s2, a, b);
        s3 = fma(s3, a, b);
        s4 = fma(s4, a, b);
        s5 = fma(s5, a, b);
        s6 = fma(s6, a, b);
        s7 = fma(s7, a, b);
        s8 = fma(s8, a, b);
        s9 = fma(s9, a, b);
        s10 = fma(s10, a, b);
        s11 = fma(s11, a, b);
        s12 = fma(s12, a, b);
        s13 = fma(s13, a, b);
        s14 = fma(s14, a, b);
        s15 = fma(s15, a, b);
        s0 = fma(s0, a, b);
        s1 = fma(s1, a, b);
        s2 = fma(s2, a, b);
        s3 = fma(s3, a, b);
        s4 = fma(s4, a, b);
        s5 = fma(s5, a, b);
        s6 = fma(s6, a, b);
        s7 = fma(s7, a, b);
        s8 = fma(s8, a, b);
        s9 = fma(s9, a, b);
        s10 = fma(s10, a, b);
        s11 = fma(s11, a, b);
        s12 = fma(s12, a, b);
        s13 = fma(s13, a, b);
        s14 = fma(s14, a, b);
        s15 = fma(s15, a, b);
    }
    out[g * LANES + lane] = ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7))
        + (((s8 + s9) + (s10 + s11)) + ((s12 + s13) + (s14 + s15)));
}
