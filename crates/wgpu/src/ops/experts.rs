//! Routed experts over the tokens that chose them.
//!
//! Each (token, rank) has its own row of partial results, so the order in which experts arrive
//! cannot change a sum. All jobs are checked before the first one is recorded.
//! Experts are uploaded side by side into one buffer of the recorder, as many as it holds at a
//! time; the jobs of a format and shape among them are one dispatch for each of their matrices.

use thalweg_backend::{Error, ExpertJob, ExpertView, MatView, Result};
use thalweg_quant::QuantType;

use crate::check::{enough, volume, word};
use crate::ops::elementwise;
use crate::ops::matmul::{Pick, Rows, picked};
use crate::{WgpuBackend, WgpuBuffer, WgpuRecorder};

const OP: &str = "experts";

/// A job whose matrices have a place in the expert buffer.
struct Placed<'a> {
    job: &'a ExpertJob<'a>,
    /// First bytes of gate, up and down.
    at: [u64; 3],
}

pub(crate) fn experts(
    backend: &WgpuBackend,
    rec: &mut WgpuRecorder,
    jobs: &[ExpertJob<'_>],
    x: &WgpuBuffer,
    partial: &WgpuBuffer,
) -> Result<()> {
    let mut order: Vec<&ExpertJob<'_>> = jobs.iter().filter(|j| !j.tokens.is_empty()).collect();
    let Some(n_embd) = order.first().map(|j| j.expert.gate.n_in()) else {
        return Ok(());
    };
    for job in &order {
        check(backend, job, n_embd, x.len())?;
    }
    order.sort_by_key(|j| j.first_row);
    let mut end = 0;
    for job in &order {
        let start = volume([job.first_row, n_embd]);
        let last = start.saturating_add(volume([job.tokens.len(), n_embd]));
        if start < end {
            // Rows that overlap are too few in all, like rows past the end.
            let expected = last.max(end).max(partial.len().saturating_add(1));
            enough(OP, "partial", partial.len(), expected)?;
        }
        enough(OP, "partial", partial.len(), last)?;
        end = last;
    }

    let room = backend.expert_bytes();
    let mut batch = vec![];
    let mut used = 0;
    for job in order {
        let ExpertView { gate, up, down } = job.expert;
        let sizes = [gate, up, down].map(|m| aligned(m.bytes().len()));
        let bytes: u64 = sizes.iter().sum();
        if bytes > room {
            return Err(Error::OutOfMemory {
                bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
            });
        }
        if used + bytes > room {
            run(backend, rec, &batch, used, x, partial)?;
            batch.clear();
            used = 0;
        }
        let at = [used, used + sizes[0], used + sizes[0] + sizes[1]];
        batch.push(Placed { job, at });
        used += bytes;
    }
    run(backend, rec, &batch, used, x, partial)
}

/// Bytes that a matrix takes: kernels read words, and uploads are in words.
fn aligned(bytes: usize) -> u64 {
    (bytes as u64).next_multiple_of(4)
}

/// Uploads the experts of a batch and records what runs them.
fn run(
    backend: &WgpuBackend,
    rec: &mut WgpuRecorder,
    batch: &[Placed<'_>],
    bytes: u64,
    x: &WgpuBuffer,
    partial: &WgpuBuffer,
) -> Result<()> {
    let weights = rec.expert_buffer(bytes)?;
    for placed in batch {
        let ExpertView { gate, up, down } = placed.job.expert;
        for (matrix, at) in [gate, up, down].into_iter().zip(placed.at) {
            rec.upload(&weights, at, matrix.bytes())?;
        }
    }
    // Jobs of one kind are next to each other mostly, since a layer's experts are.
    for group in batch.chunk_by(|a, b| kind(a.job) == kind(b.job)) {
        let ExpertView { gate, up, down } = group[0].job.expert;
        let n_ff = gate.n_out();
        let n_picks: usize = group.iter().map(|p| p.job.tokens.len()).sum();
        let hidden = rec.scratch(0, volume([n_picks, n_ff]))?;
        let ups = rec.scratch(1, volume([n_picks, n_ff]))?;
        let (hidden, ups) = (
            WgpuBuffer::new(hidden, n_picks * n_ff),
            WgpuBuffer::new(ups, n_picks * n_ff),
        );
        let rows = |like: MatView<'_>| Rows {
            ty: like.ty(),
            n_in: like.n_in(),
            n_rows: like.n_out(),
            row_bytes: like.row_bytes(),
            bytes: &weights,
        };
        let from_x = |which: usize| {
            let tokens = group
                .iter()
                .flat_map(move |p| p.job.tokens.iter().map(move |t| (p.at[which], *t)));
            let pick = |(to, (at, from)): (usize, (u64, u32))| Pick {
                matrix: word(at as usize),
                from,
                to: word(to),
            };
            tokens.enumerate().map(pick).collect::<Vec<_>>()
        };
        picked(backend, rec, rows(gate), &from_x(0), x, &hidden)?;
        picked(backend, rec, rows(up), &from_x(1), x, &ups)?;
        elementwise::swiglu(rec, &hidden, &ups, n_picks * n_ff)?;
        let places = group.iter().flat_map(|p| {
            let places = p.job.first_row..p.job.first_row + p.job.tokens.len();
            places.map(|row| (p.at[2], row))
        });
        let picks: Vec<Pick> = places
            .enumerate()
            .map(|(from, (at, to))| Pick {
                matrix: word(at as usize),
                from: word(from),
                to: word(to),
            })
            .collect();
        picked(backend, rec, rows(down), &picks, &hidden, partial)?;
    }
    Ok(())
}

/// What jobs of one dispatch have in common.
fn kind(job: &ExpertJob<'_>) -> ([QuantType; 3], usize) {
    let ExpertView { gate, up, down } = job.expert;
    ([gate.ty(), up.ty(), down.ty()], gate.n_out())
}

/// Fails unless the job's matrices fit together, kernels can read them, and every token is a row of
/// `x`.
fn check(backend: &WgpuBackend, job: &ExpertJob<'_>, n_embd: usize, x_len: usize) -> Result<()> {
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
    for matrix in [gate, up, down] {
        backend.supports(matrix.ty())?;
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
