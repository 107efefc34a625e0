//! Routed experts over the tokens that chose them.
//!
//! Each (token, rank) has its own row of partial results, so the order in which experts arrive
//! cannot change a sum. All jobs are checked before the first one is recorded.
//! An expert runs from its slot in the arena, or in passing: uploaded beside others into one buffer
//! of the recorder, as many as it holds at a time. The jobs of a format, shape and buffer among them
//! are one dispatch for each of their matrices.

use thalweg_backend::{
    Error, ExpertJob, ExpertView, HeldExpert, MatShape, MatView, Result, Retain,
};

use crate::arena::{Arena, Place, Spans};
use crate::check::{enough, volume, word};
use crate::ops::elementwise;
use crate::ops::matmul::{Pick, Rows, picked};
use crate::{WgpuBackend, WgpuBuffer, WgpuRecorder};

const OP: &str = "experts";

/// Tokens of an expert and the rows for its results.
#[derive(Debug, Clone, Copy)]
struct Task<'a> {
    parts: [MatShape; 3],
    tokens: &'a [u32],
    first_row: usize,
}

/// A task whose matrices have a place on the device.
struct Placed<'a> {
    task: Task<'a>,
    place: Place,
}

/// Runs experts whose bytes the host has.
pub(crate) fn experts(
    backend: &WgpuBackend,
    rec: &mut WgpuRecorder,
    jobs: &[ExpertJob<'_>],
    x: &WgpuBuffer,
    partial: &WgpuBuffer,
) -> Result<()> {
    let mut jobs: Vec<&ExpertJob<'_>> = jobs.iter().filter(|j| !j.tokens.is_empty()).collect();
    jobs.sort_by_key(|j| j.first_row);
    let tasks: Vec<Task<'_>> = jobs.iter().map(|j| Task::of(j)).collect();
    check(backend, &tasks, x, partial)?;

    // The arena is the recorder's, and filling it records.
    let mut arena = std::mem::take(rec.arena());
    let result = jobs
        .chunk_by(|a, b| layer(a) == layer(b))
        .try_for_each(|jobs| match layer(jobs[0]) {
            Some(layer) => kept(backend, rec, &mut arena, layer, jobs, x, partial),
            None => passing(backend, rec, jobs, x, partial),
        });
    *rec.arena() = arena;
    result
}

/// Runs experts of which the device has copies.
pub(crate) fn held(
    backend: &WgpuBackend,
    rec: &mut WgpuRecorder,
    layer: usize,
    jobs: &[HeldExpert<'_>],
    x: &WgpuBuffer,
    partial: &WgpuBuffer,
) -> Result<()> {
    let mut jobs: Vec<&HeldExpert<'_>> = jobs.iter().filter(|j| !j.tokens.is_empty()).collect();
    jobs.sort_by_key(|j| j.first_row);
    let arena = rec.arena();
    if let Some(absent) = jobs.iter().find(|j| !arena.holds(layer, j.expert)) {
        return Err(Error::Id {
            op: "held experts",
            id: absent.expert.into(),
            limit: 0,
        });
    }
    let Some(l) = arena.layer(layer) else {
        return Ok(());
    };
    let (parts, n_slots) = (l.parts(), l.n_slots());
    let tasks: Vec<Task<'_>> = jobs
        .iter()
        .map(|j| Task {
            parts,
            tokens: j.tokens,
            first_row: j.first_row,
        })
        .collect();
    check(backend, &tasks, x, partial)?;
    let mut placed = Vec::with_capacity(jobs.len());
    for (jobs, tasks) in jobs.chunks(n_slots).zip(tasks.chunks(n_slots)) {
        let experts: Vec<u16> = jobs.iter().map(|j| j.expert).collect();
        // Only to count them as used: all of them are there.
        arena.serve(layer, &experts, |_| false, |_, _| Ok(()))?;
        let places = experts.iter().map(|e| arena.place(layer, *e));
        let tasks = tasks.iter().zip(places);
        placed.extend(tasks.filter_map(|(task, place)| {
            Some(Placed {
                task: *task,
                place: place?,
            })
        }));
    }
    run(backend, rec, &mut placed, x, partial)
}

/// The layer whose arena a job goes through.
fn layer(job: &ExpertJob<'_>) -> Option<usize> {
    match job.retain {
        Retain::No => None,
        Retain::IfFree { layer, .. } | Retain::Always { layer, .. } => Some(layer),
    }
}

/// Runs experts of a layer from its slots: those that are there, and those that find a place.
fn kept(
    backend: &WgpuBackend,
    rec: &mut WgpuRecorder,
    arena: &mut Arena,
    layer: usize,
    jobs: &[&ExpertJob<'_>],
    x: &WgpuBuffer,
    partial: &WgpuBuffer,
) -> Result<()> {
    let Some(l) = arena.layer(layer) else {
        return passing(backend, rec, jobs, x, partial);
    };
    let (parts, n_slots) = (l.parts(), l.n_slots());
    let id = |job: &ExpertJob<'_>| match job.retain {
        Retain::IfFree { expert, .. } | Retain::Always { expert, .. } => expert,
        Retain::No => u16::MAX,
    };
    for job in jobs {
        // A slot has room for the layer's own shape alone.
        let given = Task::of(job).parts;
        for (given, slot) in given.iter().zip(&parts) {
            if given != slot {
                return Err(Error::Shape {
                    op: OP,
                    what: "weights of a kept expert",
                    expected: volume([slot.n_in, slot.n_out]),
                    found: volume([given.n_in, given.n_out]),
                });
            }
        }
    }
    for jobs in jobs.chunks(n_slots) {
        let experts: Vec<u16> = jobs.iter().map(|j| id(j)).collect();
        let of = |expert| jobs.iter().find(|j| id(j) == expert).copied();
        let may_evict = |e| of(e).is_some_and(|j| matches!(j.retain, Retain::Always { .. }));
        let mut others = vec![];
        arena.serve(layer, &experts, may_evict, |expert, place| {
            let Some(job) = of(expert) else {
                return Ok(());
            };
            match place {
                Some(place) => upload(rec, &place, job.expert),
                None => {
                    others.push(job);
                    Ok(())
                }
            }
        })?;
        let placed = jobs.iter().filter_map(|job| {
            let place = arena.place(layer, id(job))?;
            let task = Task::of(job);
            Some(Placed { task, place })
        });
        let mut placed: Vec<Placed<'_>> = placed.collect();
        run(backend, rec, &mut placed, x, partial)?;
        others.sort_by_key(|j| j.first_row);
        passing(backend, rec, &others, x, partial)?;
    }
    Ok(())
}

/// Runs experts that are uploaded for this once.
fn passing(
    backend: &WgpuBackend,
    rec: &mut WgpuRecorder,
    jobs: &[&ExpertJob<'_>],
    x: &WgpuBuffer,
    partial: &WgpuBuffer,
) -> Result<()> {
    let room = backend.passing_bytes();
    let spans = |job: &ExpertJob<'_>| {
        let ExpertView { gate, up, down } = job.expert;
        Spans::new([gate, up, down].map(|m| m.bytes().len() as u64))
    };
    let mut left = jobs;
    while !left.is_empty() {
        let mut used = 0;
        let fits = |job: &&&ExpertJob<'_>| {
            used += spans(job).len();
            used <= room
        };
        let n = left.iter().take_while(fits).count();
        let (batch, rest) = left.split_at(n);
        let bytes: u64 = batch.iter().map(|j| spans(j).len()).sum();
        if batch.is_empty() {
            return Err(Error::OutOfMemory {
                bytes: usize::try_from(spans(left[0]).len()).unwrap_or(usize::MAX),
            });
        }
        let buffer = rec.passing_buffer(bytes)?;
        let mut end = 0;
        let mut placed = Vec::with_capacity(batch.len());
        for job in batch {
            let spans = spans(job);
            let place = Place {
                buffer: buffer.clone(),
                buffer_index: 0,
                at: spans.from(end),
            };
            end += spans.len();
            upload(rec, &place, job.expert)?;
            let task = Task::of(job);
            placed.push(Placed { task, place });
        }
        run(backend, rec, &mut placed, x, partial)?;
        left = rest;
    }
    Ok(())
}

/// Records the way of an expert's bytes to its place.
fn upload(rec: &mut WgpuRecorder, place: &Place, expert: ExpertView<'_>) -> Result<()> {
    let ExpertView { gate, up, down } = expert;
    let matrices = [gate, up, down].into_iter().zip(place.at);
    matrices
        .into_iter()
        .try_for_each(|(matrix, at)| rec.upload(&place.buffer, at, matrix.bytes()))
}

/// Records what runs experts that are on the device.
fn run(
    backend: &WgpuBackend,
    rec: &mut WgpuRecorder,
    placed: &mut [Placed<'_>],
    x: &WgpuBuffer,
    partial: &WgpuBuffer,
) -> Result<()> {
    // Stable, so that tasks of one kind stay in row order.
    placed.sort_by_key(|p| p.place.buffer_index);
    let kind = |p: &Placed<'_>| (p.place.buffer_index, p.task.parts);
    for group in placed.chunk_by(|a, b| kind(a) == kind(b)) {
        let Placed { task, place } = &group[0];
        let [gate, up, down] = task.parts;
        let n_ff = gate.n_out;
        let n_picks: usize = group.iter().map(|p| p.task.tokens.len()).sum();
        let hidden = rec.scratch(0, volume([n_picks, n_ff]))?;
        let ups = rec.scratch(1, volume([n_picks, n_ff]))?;
        let (hidden, ups) = (
            WgpuBuffer::new(hidden, n_picks * n_ff),
            WgpuBuffer::new(ups, n_picks * n_ff),
        );
        let rows = |like: MatShape| -> Result<Rows<'_>> {
            Ok(Rows {
                ty: like.ty,
                n_in: like.n_in,
                n_rows: like.n_out,
                row_bytes: like.ty.row_bytes(like.n_in)?,
                bytes: &place.buffer,
            })
        };
        let from_x = |which: usize| {
            let tokens = group.iter().flat_map(move |p| {
                let at = p.place.at[which];
                p.task.tokens.iter().map(move |t| (at, *t))
            });
            let pick = |(to, (at, from)): (usize, (u64, u32))| Pick {
                matrix: word(at as usize),
                from,
                to: word(to),
            };
            tokens.enumerate().map(pick).collect::<Vec<_>>()
        };
        picked(backend, rec, rows(gate)?, &from_x(0), x, &hidden)?;
        picked(backend, rec, rows(up)?, &from_x(1), x, &ups)?;
        elementwise::swiglu(rec, &hidden, &ups, n_picks * n_ff)?;
        let places = group.iter().flat_map(|p| {
            let places = p.task.first_row..p.task.first_row + p.task.tokens.len();
            places.map(|row| (p.place.at[2], row))
        });
        let picks: Vec<Pick> = places
            .enumerate()
            .map(|(from, (at, to))| Pick {
                matrix: word(at as usize),
                from: word(from),
                to: word(to),
            })
            .collect();
        picked(backend, rec, rows(down)?, &picks, &hidden, partial)?;
    }
    Ok(())
}

impl<'a> Task<'a> {
    fn of(job: &ExpertJob<'a>) -> Self {
        let ExpertView { gate, up, down } = job.expert;
        let shape = |m: MatView<'_>| MatShape {
            ty: m.ty(),
            n_in: m.n_in(),
            n_out: m.n_out(),
        };
        Self {
            parts: [gate, up, down].map(shape),
            tokens: job.tokens,
            first_row: job.first_row,
        }
    }
}

/// Fails unless the tasks, in row order, have rows of their own in `partial`, matrices that fit
/// together and that kernels can read, and tokens that are rows of `x`.
fn check(
    backend: &WgpuBackend,
    tasks: &[Task<'_>],
    x: &WgpuBuffer,
    partial: &WgpuBuffer,
) -> Result<()> {
    let Some(n_embd) = tasks.first().map(|t| t.parts[0].n_in) else {
        return Ok(());
    };
    let limit = x.len() / n_embd.max(1);
    for task in tasks {
        let [gate, up, down] = task.parts;
        let n_ff = gate.n_out;
        for (what, found, expected) in [
            ("inputs of gate", gate.n_in, n_embd),
            ("inputs of up", up.n_in, n_embd),
            ("rows of up", up.n_out, n_ff),
            ("inputs of down", down.n_in, n_ff),
            ("rows of down", down.n_out, n_embd),
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
        for matrix in task.parts {
            backend.supports(matrix.ty)?;
        }
        if let Some(&id) = task.tokens.iter().find(|t| **t as usize >= limit) {
            return Err(Error::Id {
                op: OP,
                id: id.into(),
                limit: limit as u64,
            });
        }
    }
    let mut end = 0;
    for task in tasks {
        let start = volume([task.first_row, n_embd]);
        let last = start.saturating_add(volume([task.tokens.len(), n_embd]));
        if start < end {
            // Rows that overlap are too few in all, like rows past the end.
            let expected = last.max(end).max(partial.len().saturating_add(1));
            enough(OP, "partial", partial.len(), expected)?;
        }
        enough(OP, "partial", partial.len(), last)?;
        end = last;
    }
    Ok(())
}
