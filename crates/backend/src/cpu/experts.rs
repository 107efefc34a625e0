//! Routed experts over the tokens that chose them, and the ordered sum of a layer's parts.
//!
//! Each (token, rank) has its own row of partial results, so the order in which experts arrive
//! from disk cannot change a sum. All jobs are checked before the first one runs.
//! Jobs of one token each (a decode step) are split by rows of all experts together, so that
//! threads get equal shares; otherwise a job is one thread's.
//! Temporary space: the hidden values of jobs of one token; else, per expert in flight, its tokens'
//! inputs and hidden values.

use super::math::silu;
use super::matmul::Vectors;
use super::{CpuBuffer, Team, matmul, sigmoid, take, take_mut};
use crate::contract::{ExpertJob, MoeShape, volume};
use crate::{Error, ExpertView, Result};

const OP: &str = "experts";

pub(super) fn experts(
    team: &Team,
    jobs: &[ExpertJob<'_>],
    x: &[f32],
    partial: &mut [f32],
) -> Result<()> {
    let mut order: Vec<&ExpertJob<'_>> = jobs.iter().filter(|j| !j.tokens.is_empty()).collect();
    let Some(n_embd) = order.first().map(|j| j.expert.gate.n_in()) else {
        return Ok(());
    };
    for job in &order {
        check(job, n_embd, x.len())?;
    }

    // Hand each job its own rows of `partial`, in row order.
    order.sort_unstable_by_key(|j| j.first_row);
    let found = partial.len();
    let (mut rest, mut at) = (partial, 0);
    let mut tasks: Vec<Task<'_, '_>> = Vec::with_capacity(order.len());
    for job in order {
        let start = volume([job.first_row, n_embd]);
        let len = volume([job.tokens.len(), n_embd]);
        let skip = start
            .checked_sub(at)
            .filter(|s| s.saturating_add(len) <= rest.len());
        let Some(skip) = skip else {
            // Rows that overlap are too few in all, like rows past the end.
            let expected = start.max(at).saturating_add(len);
            return Err(Error::Shape {
                op: OP,
                what: "partial",
                expected,
                found,
            });
        };
        let (rows, tail) = rest.split_at_mut(skip).1.split_at_mut(len);
        (rest, at) = (tail, start + len);
        tasks.push((job, rows));
    }

    if tasks.iter().all(|(job, _)| job.tokens.len() == 1) {
        return run_single(team, &mut tasks, x);
    }
    if let [(job, rows)] = &mut tasks[..] {
        return run(team, job, x, rows);
    }
    let weights = |j: &ExpertJob<'_>| volume([3, j.expert.down.n_in(), n_embd, j.tokens.len()]);
    let work: usize = tasks.iter().map(|(j, _)| weights(j) / tasks.len()).sum();
    team.blocks(&mut tasks, 1, work, |_, tasks| {
        let mut tasks = tasks.iter_mut();
        tasks.try_for_each(|(j, rows)| run(team, j, x, rows))
    })
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
    let MoeShape {
        n_tokens,
        k,
        n_embd,
    } = shape;
    let op = "combine";
    let n_picks = volume([n_tokens, k]);
    for (what, found) in [("rows", rows.len()), ("weights", weights.len())] {
        if found < n_picks {
            return Err(Error::Shape {
                op,
                what,
                expected: n_picks,
                found,
            });
        }
    }
    let limit = partial.len() / n_embd.max(1);
    if let Some(&id) = rows[..n_picks].iter().find(|r| **r as usize >= limit) {
        return Err(Error::Id {
            op,
            id: id.into(),
            limit: limit as u64,
        });
    }
    let shared = take(op, "shared", shared, [n_tokens, n_embd])?;
    let shared_gate = take(op, "shared_gate", shared_gate, [n_tokens])?;
    let out = take_mut(op, "out", out, [n_tokens, n_embd])?;
    team.rows(
        out,
        n_embd,
        volume([k.saturating_add(1), n_embd]),
        |t, out| {
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
        },
    );
    Ok(())
}

/// Fails unless the job's matrices fit together and every token is a row of `x`.
fn check(job: &ExpertJob<'_>, n_embd: usize, x_len: usize) -> Result<()> {
    let ExpertView { gate, up, down } = job.expert;
    let n_ff = gate.n_out();
    for (what, found, expected) in [
        ("inputs of gate", gate.n_in(), n_embd),
        ("inputs of up", up.n_in(), n_embd),
        ("rows of up", up.n_out(), n_ff),
        ("inputs of down", down.n_in(), n_ff),
        ("rows of down", down.n_out(), n_embd),
    ] {
        if found != expected {
            return Err(Error::Shape {
                op: OP,
                what,
                expected,
                found,
            });
        }
    }
    let limit = x_len / n_embd.max(1);
    match job.tokens.iter().find(|t| **t as usize >= limit) {
        Some(&id) => Err(Error::Id {
            op: OP,
            id: id.into(),
            limit: limit as u64,
        }),
        None => Ok(()),
    }
}

/// A checked job and its rows of the partial results.
type Task<'a, 'b> = (&'a ExpertJob<'a>, &'b mut [f32]);

/// Consecutive rows of one of many experts' results: the task, the first row, the rows.
struct Piece<'a> {
    task: usize,
    first: usize,
    rows: &'a mut [f32],
}

/// Rows of a piece: a few microseconds of the smallest experts worth running.
const PIECE_ROWS: usize = 32;

/// `down(silu(gate x) * (up x))` for checked jobs of one token each.
fn run_single(team: &Team, tasks: &mut [Task<'_, '_>], x: &[f32]) -> Result<()> {
    let n_ff = |job: &ExpertJob<'_>| job.expert.gate.n_out();
    let n_embd = |job: &ExpertJob<'_>| job.expert.gate.n_in();
    let mut hidden = vec![0.0; tasks.iter().map(|(job, _)| n_ff(job)).sum()];
    let mut rest = &mut hidden[..];
    let mut pieces = Vec::with_capacity(rest.len() / PIECE_ROWS + tasks.len());
    for (task, (job, _)) in tasks.iter().enumerate() {
        let (rows, others) = rest.split_at_mut(n_ff(job));
        rest = others;
        push_pieces(&mut pieces, task, rows);
    }
    // The jobs of a decode step have one token between them, whose vectors are made once.
    let mut inputs: Vec<(u32, Vectors<'_>, Option<Vectors<'_>>)> = Vec::new();
    let mut input_of = Vec::with_capacity(tasks.len());
    for (job, _) in &*tasks {
        let ExpertView { gate, up, .. } = job.expert;
        let token = job.tokens[0];
        let known = inputs.last().is_some_and(|(of, for_gate, for_up)| {
            let for_up = for_up.as_ref().unwrap_or(for_gate);
            *of == token && for_gate.fit(team, gate.ty()) && for_up.fit(team, up.ty())
        });
        if !known {
            let x = &x[token as usize * n_embd(job)..][..n_embd(job)];
            let for_gate = Vectors::new(team, gate.ty(), x, 1)?;
            let for_up = match for_gate.fit(team, up.ty()) {
                true => None,
                false => Some(Vectors::new(team, up.ty(), x, 1)?),
            };
            inputs.push((token, for_gate, for_up));
        }
        input_of.push(inputs.len() - 1);
    }
    let widest = tasks.iter().map(|(job, _)| n_embd(job)).max();
    let work = matmul::row_work(widest.unwrap_or(0), 1);
    team.blocks(
        &mut pieces,
        1,
        volume([2 * PIECE_ROWS, work]),
        |_, pieces| {
            for Piece { task, first, rows } in pieces {
                let ExpertView { gate, up, .. } = tasks[*task].0.expert;
                let (_, for_gate, for_up) = &inputs[input_of[*task]];
                let mut ups = [0.0; PIECE_ROWS];
                let (n, ups) = (rows.len(), &mut ups[..rows.len()]);
                let kernels = team.kernels();
                for_gate.multiply(kernels, gate.ty(), gate.rows(*first, n), 0..1, rows)?;
                let for_up = for_up.as_ref().unwrap_or(for_gate);
                for_up.multiply(kernels, up.ty(), up.rows(*first, n), 0..1, ups)?;
                gate_with(team, rows, ups);
            }
            Ok(())
        },
    )?;

    let n_pieces = pieces.len();
    let mut rest = &hidden[..];
    let mut inputs = Vec::with_capacity(tasks.len());
    let mut pieces = Vec::with_capacity(n_pieces);
    for (task, (job, out)) in tasks.iter_mut().enumerate() {
        let (input, others) = rest.split_at(n_ff(job));
        rest = others;
        let down = job.expert.down;
        inputs.push((down, Vectors::new(team, down.ty(), input, 1)?));
        push_pieces(&mut pieces, task, out);
    }
    let work = inputs.iter().map(|(down, _)| down.n_in()).max();
    let work = matmul::row_work(work.unwrap_or(0), 1);
    team.blocks(&mut pieces, 1, volume([PIECE_ROWS, work]), |_, pieces| {
        for Piece { task, first, rows } in pieces {
            let (down, x) = &inputs[*task];
            let src = down.rows(*first, rows.len());
            x.multiply(team.kernels(), down.ty(), src, 0..1, rows)?;
        }
        Ok(())
    })
}

fn push_pieces<'a>(pieces: &mut Vec<Piece<'a>>, task: usize, rows: &'a mut [f32]) {
    let chunks = rows.chunks_mut(PIECE_ROWS).enumerate();
    pieces.extend(chunks.map(|(i, rows)| Piece {
        task,
        first: i * PIECE_ROWS,
        rows,
    }));
}

/// `gate = silu(gate) * up`.
fn gate_with(team: &Team, gate: &mut [f32], up: &[f32]) {
    team.kernels().vectorize(|| {
        for (g, u) in gate.iter_mut().zip(up) {
            *g = silu(*g) * u;
        }
    });
}

/// `down(silu(gate x) * (up x))` for the tokens of a checked job.
fn run(team: &Team, job: &ExpertJob<'_>, x: &[f32], out: &mut [f32]) -> Result<()> {
    let ExpertView { gate, up, down } = job.expert;
    let (n, n_embd, n_ff) = (job.tokens.len(), gate.n_in(), gate.n_out());
    let mut input = Vec::with_capacity(n * n_embd);
    for &t in job.tokens {
        input.extend_from_slice(&x[t as usize * n_embd..][..n_embd]);
    }
    let mut hidden = vec![0.0; n * n_ff];
    let mut ups = vec![0.0; n * n_ff];
    matmul::matmul(team, gate, &input, n, &mut hidden)?;
    matmul::matmul(team, up, &input, n, &mut ups)?;
    gate_with(team, &mut hidden, &ups);
    matmul::matmul(team, down, &hidden, n, out)
}
