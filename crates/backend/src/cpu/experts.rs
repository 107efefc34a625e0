//! Routed experts over the tokens that chose them, and the ordered sum of a layer's parts.
//!
//! Each (token, rank) has its own row of partial results, so the order in which experts arrive
//! from disk cannot change a sum. Temporary space per expert in flight: its tokens' inputs and
//! hidden values.

use rayon::prelude::*;

use super::{CpuBuffer, SERIAL_LEN, Team, matmul, sigmoid, silu, take, take_mut};
use crate::contract::{ExpertJob, MoeShape};
use crate::{Error, Result};

const OP: &str = "experts";

pub(super) fn experts(
    team: &Team,
    jobs: &[ExpertJob<'_>],
    x: &[f32],
    partial: &mut [f32],
) -> Result<()> {
    // Hand each job its own rows of `partial`, in row order.
    let mut order: Vec<&ExpertJob<'_>> = jobs.iter().filter(|j| !j.tokens.is_empty()).collect();
    order.sort_unstable_by_key(|j| j.first_row);
    let found = partial.len();
    let mut rest = partial;
    let mut at = 0;
    let mut tasks = Vec::with_capacity(order.len());
    for job in order {
        let n_embd = job.expert.down.n_out();
        let (start, len) = (job.first_row * n_embd, job.tokens.len() * n_embd);
        let skip = start.checked_sub(at).filter(|s| s + len <= rest.len());
        let Some(skip) = skip else {
            return Err(Error::Shape { op: OP, what: "partial", expected: start + len, found });
        };
        let (rows, tail) = rest.split_at_mut(skip).1.split_at_mut(len);
        (rest, at) = (tail, start + len);
        tasks.push((job, rows));
    }
    let weights = |j: &ExpertJob<'_>| 3 * j.expert.down.n_in() * j.expert.down.n_out();
    let work: usize = jobs.iter().map(|j| weights(j) * j.tokens.len()).sum();
    match &team.pool {
        Some(pool) if tasks.len() > 1 && work > SERIAL_LEN => {
            pool.install(|| tasks.into_par_iter().try_for_each(|(j, rows)| run(team, j, x, rows)))
        }
        _ => tasks.into_iter().try_for_each(|(j, rows)| run(team, j, x, rows)),
    }
}

/// `down(silu(gate x) * (up x))` for the job's tokens.
fn run(team: &Team, job: &ExpertJob<'_>, x: &[f32], out: &mut [f32]) -> Result<()> {
    let (n, n_embd) = (job.tokens.len(), job.expert.gate.n_in());
    let n_ff = job.expert.gate.n_out();
    let (up, down) = (job.expert.up, job.expert.down);
    if up.n_in() != n_embd || up.n_out() != n_ff || down.n_in() != n_ff {
        return Err(Error::Shape { op: OP, what: "down", expected: n_ff, found: down.n_in() });
    }
    let mut input = Vec::with_capacity(n * n_embd);
    for &t in job.tokens {
        let at = t as usize * n_embd;
        let row = x.get(at..at + n_embd);
        let short = Error::Shape { op: OP, what: "x", expected: at + n_embd, found: x.len() };
        input.extend_from_slice(row.ok_or(short)?);
    }
    let mut hidden = vec![0.0; n * n_ff];
    let mut ups = vec![0.0; n * n_ff];
    matmul::matmul(team, job.expert.gate, &input, n, &mut hidden)?;
    matmul::matmul(team, up, &input, n, &mut ups)?;
    for (h, u) in hidden.iter_mut().zip(&ups) {
        *h = silu(*h) * u;
    }
    matmul::matmul(team, down, &hidden, n, out)
}

#[allow(clippy::too_many_arguments)] // The operands of the contract's operation.
pub(super) fn combine(
    team: &Team,
    shape: MoeShape,
    rows: &[u32],
    weights: &[f32],
    partial: &[f32],
    shared: &CpuBuffer,
    shared_gate: &CpuBuffer,
    out: &mut CpuBuffer,
) -> Result<()> {
    let MoeShape { n_tokens, k, n_embd } = shape;
    let op = "combine";
    let n_picks = n_tokens * k;
    for (what, found) in [("rows", rows.len()), ("weights", weights.len())] {
        if found < n_picks {
            return Err(Error::Shape { op, what, expected: n_picks, found });
        }
    }
    let limit = partial.len() / n_embd.max(1);
    if let Some(&id) = rows[..n_picks].iter().find(|r| **r as usize >= limit) {
        return Err(Error::Id { op, id: id.into(), limit: limit as u64 });
    }
    let shared = take(op, "shared", shared, n_tokens * n_embd)?;
    let shared_gate = take(op, "shared_gate", shared_gate, n_tokens)?;
    let out = take_mut(op, "out", out, n_tokens * n_embd)?;
    team.rows(out, n_embd, (k + 1) * n_embd, |t, out| {
        out.fill(0.0);
        for r in t * k..(t + 1) * k {
            let part = &partial[rows[r] as usize * n_embd..][..n_embd];
            for (o, p) in out.iter_mut().zip(part) {
                *o += weights[r] * p;
            }
        }
        let gate = sigmoid(shared_gate[t]);
        for (o, s) in out.iter_mut().zip(&shared[t * n_embd..]) {
            *o += s * gate;
        }
    });
    Ok(())
}
