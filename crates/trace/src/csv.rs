//! CSV: the choices of a trace as text, one pick a line.
//!
//! Columns: `token,layer,rank,expert,weight`, all counted from zero, sorted by the first three,
//! weight empty if unknown. Token ids, documents, logits and provenance are not carried. Owns no
//! state. Cost: one line at a time; import holds one record.

use std::io::{BufRead, Read, Write};

use crate::{Error, LayerChoice, Logits, RecordBuf, Shape, Trace};

/// The first line.
pub const CSV_HEADER: &str = "token,layer,rank,expert,weight";

/// Longest line that import accepts, in bytes; the longest that export writes is far shorter.
const MAX_LINE_BYTES: u64 = 256;

/// Writes all picks of a trace.
///
/// # Errors
/// [`Error::Io`].
pub fn export_csv(trace: &Trace<'_>, mut out: impl Write) -> Result<(), Error> {
    let io = |e| Error::io("writing CSV", e);
    writeln!(out, "{CSV_HEADER}").map_err(io)?;
    for (position, token) in (0u64..).zip(trace.tokens()) {
        for layer in token.layers() {
            let mut weights = layer.weights();
            for (rank, expert) in layer.experts().enumerate() {
                write!(out, "{position},{},{rank},{expert},", layer.index()).map_err(io)?;
                match weights.next() {
                    Some(weight) => writeln!(out, "{weight}").map_err(io)?,
                    None => writeln!(out).map_err(io)?,
                }
            }
        }
    }
    out.flush().map_err(io)
}

/// Reads picks and hands over a record for each token; returns the number of tokens.
///
/// `shape` says how many layers, experts and picks there are, and whether weights are wanted;
/// logits cannot come from CSV. The record's token id is 0.
///
/// # Errors
/// [`Error::BadLine`] for a line that is not the next pick, [`Error::NoLogits`] when the shape
/// wants logits, what [`RecordBuf::push_layer`] finds and what `push` returns.
pub fn import_csv(
    mut lines: impl BufRead,
    shape: &Shape,
    mut push: impl FnMut(&RecordBuf) -> Result<(), Error>,
) -> Result<u64, Error> {
    if shape.logits != Logits::None {
        return Err(Error::NoLogits);
    }
    let mut record = RecordBuf::new(shape)?;
    let k = usize::from(shape.k);
    let (mut experts, mut weights) = (Vec::with_capacity(k), Vec::with_capacity(k));
    let mut line = String::new();
    let mut number = 1;
    read_line(&mut lines, &mut line, number)?;
    if line.trim_end() != CSV_HEADER {
        return Err(bad(number, "header", CSV_HEADER.len() as u64));
    }
    let (mut token, mut layer) = (0u64, 0u32);
    loop {
        number += 1;
        let at_start = layer == 0 && experts.is_empty();
        if !read_line(&mut lines, &mut line, number)? {
            if at_start {
                return Ok(token);
            }
            return Err(bad(number, "end in the middle of a token", token));
        }
        let mut fields = line.trim_end().split(',');
        let mut next = |field| fields.next().ok_or_else(|| bad(number, field, 5));
        expect(next("token")?, token, number, "token")?;
        expect(next("layer")?, u64::from(layer), number, "layer")?;
        expect(next("rank")?, experts.len() as u64, number, "rank")?;
        let expert = next("expert")?.parse::<u16>();
        let expert = expert.map_err(|_| bad(number, "expert", u64::from(shape.n_expert)))?;
        let weight = next("weight")?;
        if fields.next().is_some() {
            return Err(bad(number, "number of columns", 5));
        }
        experts.push(expert);
        if shape.weights {
            let weight = weight
                .parse::<f32>()
                .map_err(|_| bad(number, "weight", 1))?;
            weights.push(weight);
        }
        if experts.len() < k {
            continue;
        }
        let choice = LayerChoice::new(&experts).with_weights(&weights);
        record.push_layer(&choice).map_err(|e| at_token(e, token))?;
        experts.clear();
        weights.clear();
        layer += 1;
        if layer == shape.n_layer {
            push(&record)?;
            record.start(0);
            layer = 0;
            token += 1;
        }
    }
}

/// Reads a line of bounded length; whether there was one.
fn read_line(lines: &mut impl BufRead, line: &mut String, number: u64) -> Result<bool, Error> {
    line.clear();
    let mut limited = lines.by_ref().take(MAX_LINE_BYTES);
    let n = limited
        .read_line(line)
        .map_err(|e| Error::io("reading CSV", e))?;
    if n as u64 == MAX_LINE_BYTES && !line.ends_with('\n') {
        return Err(bad(number, "line length", MAX_LINE_BYTES));
    }
    Ok(n > 0)
}

fn expect(text: &str, expected: u64, line: u64, field: &'static str) -> Result<(), Error> {
    if text.parse() == Ok(expected) {
        return Ok(());
    }
    Err(bad(line, field, expected))
}

const fn bad(line: u64, field: &'static str, expected: u64) -> Error {
    Error::BadLine {
        line,
        field,
        expected,
    }
}

/// A record does not know its position; the importer does.
fn at_token(error: Error, position: u64) -> Error {
    match error {
        Error::ExpertOutOfRange {
            layer,
            found,
            n_expert,
            ..
        } => Error::ExpertOutOfRange {
            token: position,
            layer,
            found,
            n_expert,
        },
        Error::DuplicateExpert { layer, expert, .. } => Error::DuplicateExpert {
            token: position,
            layer,
            expert,
        },
        Error::BadValue {
            layer,
            field,
            index,
            found,
            ..
        } => Error::BadValue {
            token: position,
            layer,
            field,
            index,
            found,
        },
        other => other,
    }
}
