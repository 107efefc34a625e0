//! Reads experts as tokens would and takes the time. Owns: which experts, how many, for how long.
//! Does not own: the reads (`thalweg-store`). Memory: the experts of one token's largest layer.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};
use thalweg_runtime::{ModelSpec, ReaderKind};
use thalweg_store::{
    AlignedBuf, Error, ExpertLayout, FileSet, Priority, ReadBackend, ReadMode, ReadOp, SlotBuf, io,
};

/// A row takes at most this long, and at least one token.
const LIMIT: Duration = Duration::from_secs(2);
/// A row reads at most so many tokens.
const MAX_TOKENS: u64 = 64;

/// Reads of one source with one reader.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) source: &'static str,
    pub(crate) reader: ReaderKind,
    pub(crate) direct: bool,
    pub(crate) tokens: u64,
    pub(crate) ms_per_token: f64,
    pub(crate) gb_per_s: f64,
}

impl Row {
    pub(crate) fn json(&self) -> Value {
        json!({
            "source": self.source,
            "reader": self.reader.name(),
            "direct": self.direct,
            "tokens": self.tokens,
            "ms_per_token": self.ms_per_token,
            "gb_per_s": self.gb_per_s,
        })
    }
}

/// Reads k experts of each layer, layer after layer, token after token. `None` where the reader does
/// not work.
pub(crate) fn measure(
    source: &'static str,
    files: &FileSet,
    layout: &ExpertLayout,
    spec: &ModelSpec,
    reader: ReaderKind,
    n_reads: NonZeroUsize,
) -> Result<Option<Row>> {
    let mut backend = match io::open(reader, files.clone(), n_reads) {
        Err(Error::RingUnsupported { .. }) => return Ok(None),
        other => other?,
    };
    let most = spec.experts.iter().map(|e| e.k).max().unwrap_or(0);
    let slot_bytes = layout.max_slot_bytes();
    let buf = AlignedBuf::zeroed(most * slot_bytes)?;
    let mut free = buf.carve(vec![slot_bytes; most])?;
    // The same experts for every row, others for every token.
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let start = Instant::now();
    let (mut tokens, mut bytes) = (0, 0);
    while tokens < MAX_TOKENS && (tokens == 0 || start.elapsed() < LIMIT) {
        for (layer, experts) in spec.experts.iter().enumerate() {
            let picks = picks(experts.k, experts.n_expert, &mut state);
            bytes += read(&mut *backend, layout, layer, &picks, &mut free)?;
        }
        tokens += 1;
    }
    let seconds = start.elapsed().as_secs_f64().max(1e-9);
    Ok(Some(Row {
        source,
        reader,
        direct: reader != ReaderKind::Pread
            && (0..files.len()).all(|f| files.mode(f) == Some(ReadMode::Direct)),
        tokens,
        ms_per_token: seconds * 1e3 / tokens as f64,
        gb_per_s: bytes as f64 / seconds / 1e9,
    }))
}

/// Reads experts of a layer together, in file order, and waits for all.
fn read(
    backend: &mut dyn ReadBackend,
    layout: &ExpertLayout,
    layer: usize,
    picks: &[u16],
    free: &mut Vec<SlotBuf>,
) -> Result<u64> {
    let mut done = Vec::new();
    let mut n_out = 0;
    for (id, &expert) in (0..).zip(picks) {
        let (Some(segments), Some(buf)) = (layout.segments(layer, expert), free.pop()) else {
            continue;
        };
        let priority = Priority::Demand;
        let mut next = Some(ReadOp {
            id,
            priority,
            segments,
            buf,
        });
        // A backend refuses only while something is under way.
        while let Some(op) = next.take() {
            if let Err(op) = backend.submit(op) {
                backend.wait(&mut done);
                next = Some(op);
            }
        }
        n_out += 1;
    }
    while done.len() < n_out {
        backend.wait(&mut done);
    }
    let mut bytes = 0;
    for done in done {
        bytes += done.op.len_bytes();
        free.push(done.op.buf);
        done.result?;
    }
    Ok(bytes)
}

/// `k` distinct experts of `n`, rising.
fn picks(k: usize, n: usize, state: &mut u64) -> Vec<u16> {
    let mut picks: Vec<u16> = Vec::with_capacity(k);
    while picks.len() < k.min(n) {
        // Xorshift (Marsaglia, 2003).
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        // Below n, which a u16 holds.
        let expert = u16::try_from(*state % n as u64).unwrap_or(0);
        if let Err(at) = picks.binary_search(&expert) {
            picks.insert(at, expert);
        }
    }
    picks
}
