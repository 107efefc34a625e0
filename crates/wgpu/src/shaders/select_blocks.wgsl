// The n_selected blocks of highest score of each token, equal ones by rising block, listed in rising
// order. One workgroup a token.
//
// Scores are not negative, so their bits rank as they do. The bits of the last score that is chosen
// are found from the highest on; then each lane lists what its own run of blocks contributes.

struct Params {
    n_tokens: u32,
    first_position: u32,
    block_tokens: u32,
    n_selected: u32,
    n_blocks: u32, // of the last token
}
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> scores: array<u32>;          // bits of f32
@group(0) @binding(2) var<storage, read_write> chosen: array<u32>;    // [n_tokens, n_selected]

var<workgroup> counts: array<vec2<u32>, LANES>;

// How many of the lane's blocks score more than `edge`, and how many exactly that.
fn count(first: u32, last: u32, row: u32, edge: u32) -> vec2<u32> {
    var n = vec2<u32>();
    for (var b = first; b < last; b++) {
        let score = scores[row + b];
        n += vec2<u32>(u32(score > edge), u32(score == edge));
    }
    return n;
}

fn sum_counts(lane: u32, n: vec2<u32>) -> vec2<u32> {
    counts[lane] = n;
    workgroupBarrier();
    var sum = vec2<u32>();
    for (var l = 0u; l < LANES; l++) {
        sum += counts[l];
    }
    workgroupBarrier();
    return sum;
}

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let t = group_index(group, groups);
    if t >= p.n_tokens {
        return;
    }
    let n_blocks = (p.first_position + t + 1u) / p.block_tokens;
    if n_blocks <= p.n_selected {
        return;
    }
    let share = (n_blocks + LANES - 1u) / LANES;
    let first = min(lane * share, n_blocks);
    let last = min(first + share, n_blocks);
    let row = t * p.n_blocks;

    // The largest number that n_selected scores reach.
    var edge = 0u;
    for (var bit = 0x40000000u; bit > 0u; bit = bit >> 1u) {
        let n = sum_counts(lane, count(first, last, row, edge | bit));
        if n.x + n.y >= p.n_selected {
            edge = edge | bit;
        }
    }
    let own = count(first, last, row, edge);
    let all = sum_counts(lane, own);
    counts[lane] = own;
    workgroupBarrier();
    var before = vec2<u32>();
    for (var l = 0u; l < lane; l++) {
        before += counts[l];
    }
    // So many of the blocks that score exactly the edge are chosen, the lowest.
    let n_equal = p.n_selected - all.x;
    var equal = before.y;
    var to = t * p.n_selected + before.x + min(before.y, n_equal);
    for (var b = first; b < last; b++) {
        let score = scores[row + b];
        let is_equal = score == edge;
        if score > edge || (is_equal && equal < n_equal) {
            chosen[to] = b;
            to++;
        }
        equal += u32(is_equal);
    }
}
