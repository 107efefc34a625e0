//! What the experts of a model were given and gave, kept to hold another model's experts against.
//!
//! Owns the recording (an observer of the engine) in a temporary file that has no name, and its reading
//! layer by layer. Memory: six bytes a choice; a layer at a time when it is read. The file takes
//! `8 * n_layer * n_tokens * n_embd` bytes.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use thalweg_runtime::{ExpertOutputs, ModelSpec, Observer};

use crate::{Error, Result};

/// A recording of all layers. Each window of text must be announced by
/// [`begin_window`](Self::begin_window).
#[derive(Debug)]
pub struct Capture {
    folder: PathBuf,
    file: File,
    n_embd: usize,
    /// Tokens that there is room for.
    capacity: usize,
    windows: Vec<Range<usize>>,
    /// By layer, `[n_tokens, k]`.
    choices: Vec<Vec<(u16, f32)>>,
    n_expert: usize,
    k: usize,
    failed: Option<std::io::Error>,
}

/// One layer of a recording.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LayerTrace {
    /// Experts and gates, `[n_tokens, k]`.
    pub choices: Vec<(u16, f32)>,
    /// What the experts were given, `[n_tokens, n_embd]`.
    pub input: Vec<f32>,
    /// Their outputs times their gates, summed, `[n_tokens, n_embd]`.
    pub output: Vec<f32>,
}

impl Capture {
    /// A recording of up to `capacity` tokens of a model, in a file in `folder`.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::OutOfRange`] for layers that are not alike.
    pub fn new(folder: &Path, spec: &ModelSpec, capacity: usize) -> Result<Self> {
        let shape = |l: usize| spec.experts.get(l).map_or((0, 0), |e| (e.n_expert, e.k));
        let (n_expert, k) = shape(0);
        if let Some(odd) = (0..spec.n_layer).find(|l| shape(*l) != (n_expert, k)) {
            let what = format!("experts of layer {odd}");
            return Err(Error::out_of_range(what, shape(odd).0, n_expert));
        }
        let file = tempfile::tempfile_in(folder).map_err(|source| Error::Io {
            path: folder.to_owned(),
            action: "make a temporary file in",
            source,
        })?;
        Ok(Self {
            folder: folder.to_owned(),
            file,
            n_embd: spec.n_embd,
            capacity,
            windows: Vec::new(),
            choices: vec![vec![(0, 0.0); capacity * k]; spec.n_layer],
            n_expert,
            k,
            failed: None,
        })
    }

    /// The next tokens are a sequence of their own of this length.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for more tokens than there is room for.
    pub fn begin_window(&mut self, n_tokens: usize) -> Result<()> {
        let start = self.n_tokens();
        if n_tokens > self.capacity - start {
            let room = self.capacity - start;
            return Err(Error::out_of_range("tokens of a window", n_tokens, room));
        }
        self.windows.push(start..start + n_tokens);
        Ok(())
    }

    /// Tokens of all windows.
    #[must_use]
    pub fn n_tokens(&self) -> usize {
        self.windows.last().map_or(0, |w| w.end)
    }

    /// The windows, in tokens.
    #[must_use]
    pub fn windows(&self) -> &[Range<usize>] {
        &self.windows
    }

    /// Layers, experts of each, experts that a token uses, and the width of their input.
    #[must_use]
    pub fn shape(&self) -> [usize; 4] {
        [self.choices.len(), self.n_expert, self.k, self.n_embd]
    }

    /// Reads a layer.
    ///
    /// # Errors
    /// [`Error::Io`], also for what failed while recording.
    pub fn layer(&mut self, layer: usize) -> Result<LayerTrace> {
        if let Some(source) = self.failed.take() {
            return Err(self.io(source));
        }
        let n = self.n_tokens();
        let mut trace = LayerTrace {
            choices: self.choices[layer][..n * self.k].to_vec(),
            input: Vec::with_capacity(n * self.n_embd),
            output: Vec::with_capacity(n * self.n_embd),
        };
        let mut row = vec![0; 8 * self.n_embd];
        let start = self.offset(layer, 0);
        let read = self.file.seek(SeekFrom::Start(start));
        read.map_err(|e| self.io(e))?;
        for _ in 0..n {
            let read = self.file.read_exact(&mut row);
            read.map_err(|e| self.io(e))?;
            let (input, output) = row.split_at(4 * self.n_embd);
            let values = |bytes: &[u8]| bytes.as_chunks::<4>().0.to_vec();
            trace
                .input
                .extend(values(input).into_iter().map(f32::from_le_bytes));
            trace
                .output
                .extend(values(output).into_iter().map(f32::from_le_bytes));
        }
        Ok(trace)
    }

    fn offset(&self, layer: usize, token: usize) -> u64 {
        (layer * self.capacity + token) as u64 * 8 * self.n_embd as u64
    }

    fn io(&self, source: std::io::Error) -> Error {
        Error::Io {
            path: self.folder.clone(),
            action: "use a temporary file in",
            source,
        }
    }

    fn record(
        &mut self,
        layer: usize,
        first: usize,
        experts: &ExpertOutputs<'_>,
    ) -> std::io::Result<()> {
        let routing = experts.routing();
        let start = self.windows.last().map_or(0, |w| w.start) + first;
        if start + routing.n_tokens() > self.n_tokens() {
            let what = "more tokens came than a window was announced for";
            return Err(std::io::Error::other(what));
        }
        let mut bytes = Vec::with_capacity(routing.n_tokens() * 8 * self.n_embd);
        let mut sum = vec![0.0; self.n_embd];
        for token in 0..routing.n_tokens() {
            sum.fill(0.0);
            let choices = routing.ids(token).iter().zip(routing.weights(token));
            for (rank, (id, gate)) in choices.enumerate() {
                for (sum, y) in sum.iter_mut().zip(experts.output(token, rank)) {
                    *sum += f64::from(*gate) * f64::from(*y);
                }
                self.choices[layer][(start + token) * self.k + rank] = (*id, *gate);
            }
            let input = experts.input(token).iter();
            bytes.extend(input.flat_map(|x| x.to_le_bytes()));
            bytes.extend(sum.iter().flat_map(|y| (*y as f32).to_le_bytes()));
        }
        self.file.seek(SeekFrom::Start(self.offset(layer, start)))?;
        self.file.write_all(&bytes)
    }
}

impl Observer for Capture {
    fn wants_experts(&self) -> bool {
        self.failed.is_none()
    }

    fn on_experts(&mut self, layer: usize, first_position: usize, experts: &ExpertOutputs<'_>) {
        if let Err(e) = self.record(layer, first_position, experts) {
            self.failed = Some(e);
        }
    }
}
