// out[t, h] = softmax(q k / sqrt(hd)) v * sigmoid(gate) over the visible positions, one workgroup
// for each (token, head).
//
// Positions come in rising order, LANES at a time: a lane has one score each; the running maximum
// and sum are those of an online softmax, so that no list of scores is kept. A lane then adds its
// own dimensions of the values. The order depends on the number of visible positions alone.

struct Params {
    n_tokens: u32,
    first_position: u32,
    n_head: u32,
    n_head_kv: u32,
    block_tokens: u32, // 0: dense
    n_selected: u32,
    gate_row: u32,
    gate_offset: u32,
    gate_stride: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(2) var<storage, read> gate: array<f32>;
@group(0) @binding(3) var<storage, read> k: array<f32>;
@group(0) @binding(4) var<storage, read> v: array<f32>;
@group(0) @binding(5) var<storage, read> chosen: array<u32>; // [n_tokens, n_selected]
@group(0) @binding(6) var<storage, read_write> out: array<f32>;

// HEAD_DIM is the head's dimensions.
const DIMS_OF_LANE: u32 = (HEAD_DIM + LANES - 1u) / LANES;

var<workgroup> query: array<f32, HEAD_DIM>;
var<workgroup> shares: array<f32, LANES>;
var<workgroup> seen: array<u32, LANES>;

fn max_of_lanes(lane: u32, value: f32) -> f32 {
    lane_sums[lane] = value;
    workgroupBarrier();
    for (var half = LANES / 2u; half > 0u; half = half / 2u) {
        if lane < half {
            lane_sums[lane] = max(lane_sums[lane], lane_sums[lane + half]);
        }
        workgroupBarrier();
    }
    let most = lane_sums[0];
    workgroupBarrier();
    return most;
}

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let g = group_index(group, groups);
    let t = g / p.n_head;
    if t >= p.n_tokens {
        return;
    }
    let h = g % p.n_head;
    let width = p.n_head_kv * HEAD_DIM;
    let kv = h / (p.n_head / p.n_head_kv) * HEAD_DIM;
    for (var d = lane; d < HEAD_DIM; d += LANES) {
        query[d] = q[g * HEAD_DIM + d];
    }
    workgroupBarrier();

    let n_past = p.first_position + t + 1u;
    var n_visible = n_past;
    var n_sparse = 0u; // positions in chosen blocks
    var tail = 0u;     // first position of the incomplete block
    if p.block_tokens > 0u && n_past / p.block_tokens > p.n_selected {
        tail = n_past / p.block_tokens * p.block_tokens;
        n_sparse = p.n_selected * p.block_tokens;
        n_visible = n_sparse + n_past - tail;
    }

    var most = -3.4e38;
    var total = 0.0;
    var sums: array<f32, DIMS_OF_LANE>;
    for (var first = 0u; first < n_visible; first += LANES) {
        let i = first + lane;
        var position = i;
        if i < n_sparse {
            position = chosen[t * p.n_selected + i / p.block_tokens] * p.block_tokens
                + i % p.block_tokens;
        } else if n_sparse > 0u {
            position = tail + i - n_sparse;
        }
        var score = -3.4e38;
        if i < n_visible {
            var dot = 0.0;
            for (var d = 0u; d < HEAD_DIM; d++) {
                dot = fma(query[d], k[position * width + kv + d], dot);
            }
            score = dot / sqrt(f32(HEAD_DIM));
        }
        let new_most = max(most, max_of_lanes(lane, score));
        let share = select(0.0, exp_of(score - new_most), i < n_visible);
        shares[lane] = share;
        seen[lane] = position;
        let kept = exp_of(most - new_most);
        total = fma(total, kept, sum_lanes(lane, share));
        let n = min(LANES, n_visible - first);
        for (var s = 0u; s < DIMS_OF_LANE; s++) {
            let d = s * LANES + lane;
            if d < HEAD_DIM {
                var sum = sums[s] * kept;
                for (var l = 0u; l < n; l++) {
                    sum = fma(shares[l], v[seen[l] * width + kv + d], sum);
                }
                sums[s] = sum;
            }
        }
        most = new_most;
        workgroupBarrier();
    }
    for (var s = 0u; s < DIMS_OF_LANE; s++) {
        let d = s * LANES + lane;
        if d < HEAD_DIM {
            let open = sigmoid(gate[t * p.gate_row + p.gate_offset + h * p.gate_stride + d]);
            out[g * HEAD_DIM + d] = sums[s] / total * open;
        }
    }
}
