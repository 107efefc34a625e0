//! A model with some of its tensors in other types.
//!
//! Owns the choice of types (a [`Recipe`]), the flow of rows through decoder and encoder on all
//! threads, and the account of what it cost in precision. Does not own the encoders
//! (`thalweg_quant::encode`) nor the copy of the rest (`rewrite`).
//! Memory: a batch of rows as stored before and after (about 4 MiB), one row as f32 for each thread,
//! and, where hidden moments are needed, the importance of one expert.
//! Invariants: 1. what is written does not depend on threads or batches; 2. a weight that is not
//! finite ends the work with its tensor and index.
//! Cost: decoding and encoding every weight that changes its type; see `benches/benches/encode.rs`.

use std::cell::RefCell;
use std::ops::Range;
use std::path::Path;

use rayon::prelude::*;
use thalweg_gguf::{Gguf, TensorInfo, TensorSpec, TensorType};
use thalweg_quant::QuantType;
use thalweg_quant::encode::{self, importance};

use crate::moments::input_weights;
use crate::{
    Error, Exponents, InputMoments, Output, Part, Progress, Result, Rewrite, Rewritten, Role,
};

/// Stored bytes of a batch of rows, before or after, whichever are more.
const BATCH_BYTES: usize = 2 << 20;
/// Weights that one thread takes at a time, at least.
const JOB_WEIGHTS: usize = 16 << 10;

/// Which tensors get which type, and how rows are encoded.
#[derive(Debug, Clone, Default)]
#[expect(
    clippy::exhaustive_structs,
    reason = "callers write `Recipe { field, ..default }`"
)]
pub struct Recipe<'a> {
    /// For the matrices of routed experts.
    pub experts: Option<QuantType>,
    /// For other matrices, the shared experts' among them, but not routers and the n-gram table.
    pub dense: Option<QuantType>,
    /// For tensors by name; the last rule that fits a name wins, also over the two above.
    pub rules: Vec<Rule>,
    /// Which encoder.
    pub fit: Fit,
    /// What errors are weighed by; unweighted if there is none.
    pub moments: Option<&'a InputMoments>,
    /// How strongly.
    pub exponents: Exponents,
}

/// A type for the tensors that a pattern names.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rule {
    /// A name in which each `*` stands for any text.
    pub pattern: String,
    /// The type.
    pub ty: QuantType,
}

/// Which encoder writes a type.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fit {
    /// The blocks of least (weighted) error that `thalweg_quant::encode` finds.
    #[default]
    Exact,
    /// The bytes of llama.cpp's reference quantizer, which knows no weights.
    Reference,
}

/// What a recipe makes of each tensor of a model.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Plan {
    /// In the order of the file.
    pub tensors: Vec<Planned>,
}

/// What a recipe makes of a tensor.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Planned {
    /// Its name.
    pub name: String,
    /// Its type now.
    pub from: TensorType,
    /// Its type then; the same for a tensor that is copied.
    pub to: TensorType,
    /// Why it is copied although the recipe has a type for it.
    pub kept_because: Option<&'static str>,
}

/// What was written.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Quantized {
    /// Every tensor.
    pub written: Rewritten,
    /// Those of another type than before.
    pub changed: Vec<QuantizedTensor>,
}

/// A tensor that changed its type.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct QuantizedTensor {
    /// Its name.
    pub name: String,
    /// Its type before.
    pub from: TensorType,
    /// Its type now.
    pub to: TensorType,
    /// Whether its errors were weighed.
    pub is_weighted: bool,
    /// Sum of squares of the weights before.
    pub energy: f64,
    /// Sum of squared differences, unweighted.
    pub squared_error: f64,
}

impl Rule {
    /// A rule.
    #[must_use]
    pub fn new(pattern: impl Into<String>, ty: QuantType) -> Self {
        Self {
            pattern: pattern.into(),
            ty,
        }
    }

    /// Whether it names this tensor.
    #[must_use]
    pub fn fits(&self, name: &str) -> bool {
        let mut parts = self.pattern.split('*');
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = name.strip_prefix(first) else {
            return false;
        };
        let Some(last) = parts.next_back() else {
            return rest.is_empty();
        };
        for part in parts {
            match rest.find(part) {
                Some(at) => rest = &rest[at + part.len()..],
                None => return false,
            }
        }
        rest.ends_with(last)
    }
}

impl QuantizedTensor {
    /// Share of the energy that the error is; 0 for a tensor of zeros.
    #[must_use]
    pub fn relative_error(&self) -> f64 {
        match self.energy > 0.0 {
            true => self.squared_error / self.energy,
            false => 0.0,
        }
    }
}

impl Recipe<'_> {
    /// What becomes of each tensor of `file`.
    ///
    /// # Errors
    /// [`Error::NoTensor`] for a rule that names none; [`Error::Unfit`] for a rule without `*` whose
    /// tensor cannot have the type, and for a type that cannot be written;
    /// [`Error::OutOfRange`] for moments of another shape; [`Error::UnknownType`].
    pub fn plan(&self, file: &Gguf) -> Result<Plan> {
        for rule in &self.rules {
            if !file.tensors().iter().any(|t| rule.fits(&t.name)) {
                let name = rule.pattern.clone();
                return Err(Error::NoTensor { name });
            }
        }
        if let Some(moments) = self.moments {
            moments.validate()?;
            let (n_layer, n_embd) = expert_shape(file);
            moments.expect_shape(n_layer, n_embd)?;
        }
        let tensors = file.tensors().iter().map(|t| self.plan_tensor(t));
        Ok(Plan {
            tensors: tensors.collect::<Result<_>>()?,
        })
    }

    fn plan_tensor(&self, tensor: &TensorInfo) -> Result<Planned> {
        let rule = self.rules.iter().rfind(|rule| rule.fits(&tensor.name));
        let wanted = rule.map(|rule| rule.ty).or_else(|| match Role::of(tensor) {
            Role::Expert { .. } => self.experts,
            Role::Shared { .. } | Role::Dense => self.dense,
            _ => None,
        });
        let mut planned = Planned {
            name: tensor.name.clone(),
            from: tensor.ty,
            to: tensor.ty,
            kept_because: None,
        };
        let Some(wanted) = wanted else {
            return Ok(planned);
        };
        let unfit = |reason| Error::Unfit {
            tensor: tensor.name.clone(),
            wanted: wanted.name(),
            reason,
        };
        if !encode::can_encode(wanted) || (self.fit == Fit::Reference && !wanted.can_quantize()) {
            return Err(unfit("this type can be read here but not written"));
        }
        let to = TensorType::from_id(wanted.ggml_type())?;
        decoder(tensor)?;
        if to == tensor.ty {
            planned.kept_because = Some("it has this type already");
        } else if to.row_bytes(tensor.ne[0]).is_none() {
            const REASON: &str = "its rows are not whole blocks of this type";
            if rule.is_some_and(|rule| !rule.pattern.contains('*')) {
                return Err(unfit(REASON));
            }
            planned.kept_because = Some(REASON);
        } else {
            planned.to = to;
        }
        Ok(planned)
    }

    /// Writes `file` to `path` as the recipe says.
    ///
    /// Each tensor goes from what is stored now to its new type directly. The new file says what was
    /// done under `thalweg.quantize.*`; `general.file_type`, which would be wrong, is left out.
    ///
    /// # Errors
    /// Those of [`plan`](Self::plan) and [`Rewrite::write`]; [`Error::NotFinite`] with tensor and
    /// element; [`Error::Quant`].
    pub fn write(
        &self,
        file: &Gguf,
        path: &Path,
        progress: &mut Progress<'_>,
    ) -> Result<Quantized> {
        let plan = self.plan(file)?;
        // Before the rewrite, which borrows it.
        let changed = RefCell::new(Vec::new());
        let mut rewrite = Rewrite::new(file);
        self.describe(&mut rewrite)?;
        for planned in plan.tensors.iter().filter(|p| p.to != p.from) {
            let Some(tensor) = file.tensor(&planned.name) else {
                continue;
            };
            let spec = TensorSpec::new(&*planned.name, planned.to, tensor.shape())?;
            let job = Job {
                recipe: self,
                file,
                tensor,
                from: decoder(tensor)?,
                to: encoder(planned.to, tensor)?,
            };
            let changed = &changed;
            rewrite.replace(spec, move |out| {
                changed.borrow_mut().push(job.run(out)?);
                Ok(())
            })?;
        }
        let written = rewrite.write(path, progress)?;
        Ok(Quantized {
            written,
            changed: changed.into_inner(),
        })
    }

    fn describe(&self, rewrite: &mut Rewrite<'_>) -> Result<()> {
        let metadata = rewrite.metadata_mut();
        metadata.remove("general.file_type");
        metadata.set("general.quantization_version", 2_u32)?;
        for (key, ty) in [("experts", self.experts), ("dense", self.dense)] {
            if let Some(ty) = ty {
                metadata.set(format!("thalweg.quantize.{key}"), ty.name())?;
            }
        }
        let fit = match self.fit {
            Fit::Exact => "exact",
            Fit::Reference => "reference",
        };
        metadata.set("thalweg.quantize.fit", fit)?;
        if let Some(moments) = self.moments {
            let tokens = moments.n_tokens;
            metadata.set("thalweg.quantize.importance_tokens", tokens)?;
        }
        Ok(())
    }
}

/// Layers of experts in a file, and the width of their input.
fn expert_shape(file: &Gguf) -> (usize, usize) {
    let mut shape = (0, 0);
    for tensor in file.tensors() {
        if let Role::Expert { layer, part } = Role::of(tensor) {
            shape.0 = shape.0.max(layer + 1);
            if part != Part::Down {
                shape.1 = usize::try_from(tensor.ne[0]).unwrap_or(usize::MAX);
            }
        }
    }
    shape
}

/// What a tensor's rows are decoded by.
pub(crate) fn decoder(tensor: &TensorInfo) -> Result<QuantType> {
    QuantType::from_ggml(tensor.ty.id()).ok_or_else(|| Error::UnknownType {
        tensor: tensor.name.clone(),
        found: tensor.ty.name(),
    })
}

fn encoder(ty: TensorType, tensor: &TensorInfo) -> Result<QuantType> {
    QuantType::from_ggml(ty.id()).ok_or_else(|| Error::UnknownType {
        tensor: tensor.name.clone(),
        found: ty.name(),
    })
}

/// One tensor on its way.
#[derive(Clone, Copy)]
struct Job<'a> {
    recipe: &'a Recipe<'a>,
    file: &'a Gguf,
    tensor: &'a TensorInfo,
    from: QuantType,
    to: QuantType,
}

impl Job<'_> {
    fn run(&self, out: &mut Output<'_>) -> Result<QuantizedTensor> {
        let mut made = QuantizedTensor {
            name: self.tensor.name.clone(),
            from: self.tensor.ty,
            to: TensorType::from_id(self.to.ggml_type())?,
            is_weighted: false,
            energy: 0.0,
            squared_error: 0.0,
        };
        let n_rows = self.tensor.n_rows();
        let quant = |source| Error::in_row(&self.tensor.name, 0, source);
        let is_fitted = self.recipe.fit == Fit::Exact && encode::is_fitted(self.to);
        let moments = self.recipe.moments.filter(|_| is_fitted);
        let of_layer = |layer: usize| moments.map(|m| m.layers[layer].as_slice());
        let exponents = self.recipe.exponents;
        match Role::of(self.tensor) {
            Role::Expert { layer, part } | Role::Shared { layer, part } if moments.is_some() => {
                let moments = of_layer(layer).unwrap_or_default();
                made.is_weighted = true;
                if part != Part::Down {
                    let weights = input_weights(moments, exponents.input).map_err(quant)?;
                    self.rows(0..n_rows, Some(&weights), out, &mut made)?;
                } else {
                    // Each expert has a hidden vector of its own.
                    let n_rows_each = self.tensor.ne[1];
                    for first in (0..n_rows).step_by(n_rows_each.max(1) as usize) {
                        let expert = first / n_rows_each;
                        let hidden = self.hidden_moments(layer, expert, moments)?;
                        let weights = input_weights(&hidden, exponents.hidden).map_err(quant)?;
                        let rows = first..first + n_rows_each;
                        self.rows(rows, Some(&weights), out, &mut made)?;
                    }
                }
            }
            _ => self.rows(0..n_rows, None, out, &mut made)?,
        }
        Ok(made)
    }

    /// Moments of the hidden vector of an expert, or of the shared one, from the rows that make it.
    fn hidden_moments(&self, layer: usize, expert: u64, moments: &[f64]) -> Result<Vec<f64>> {
        let n_ff = self.tensor.ne[0];
        let name = |kind: &str| match Role::of(self.tensor) {
            Role::Shared { .. } => format!("blk.{layer}.ffn_{kind}_shexp.weight"),
            _ => format!("blk.{layer}.ffn_{kind}_exps.weight"),
        };
        let outputs = |name: String, first: u64| {
            let tensor = self.file.tensor(&name);
            let tensor = tensor.ok_or(Error::NoTensor { name })?;
            let first = expert * tensor.ne[1] + first;
            projected_moments(self.file, tensor, first..first + n_ff, moments)
        };
        let fused = name("gate_up");
        let (gate, up) = match self.file.tensor(&fused) {
            Some(_) => (outputs(fused.clone(), 0)?, outputs(fused, n_ff)?),
            None => (outputs(name("gate"), 0)?, outputs(name("up"), 0)?),
        };
        Ok(gate.iter().zip(&up).map(|(g, u)| g * u).collect())
    }

    /// Rows from one type to the other, all with the same weights.
    fn rows(
        &self,
        rows: Range<u64>,
        weights: Option<&[f32]>,
        out: &mut Output<'_>,
        made: &mut QuantizedTensor,
    ) -> Result<()> {
        let tensor = self.tensor;
        let n_in = to_usize(tensor.ne[0]);
        let in_row = |row: u64| {
            let name = &tensor.name;
            move |source| Error::in_row(name, row * tensor.ne[0], source)
        };
        let (from_bytes, to_bytes) = (
            self.from.row_bytes(n_in).map_err(in_row(0))?,
            self.to.row_bytes(n_in).map_err(in_row(0))?,
        );
        let rows_per_batch = (BATCH_BYTES / from_bytes.max(to_bytes)).max(1);
        let rows_per_job = (JOB_WEIGHTS / n_in).clamp(1, rows_per_batch);
        let (mut before, mut after) = (Vec::new(), Vec::new());
        let mut first = rows.start;
        while first < rows.end {
            let n = to_usize(rows.end - first).min(rows_per_batch);
            before.resize(n * from_bytes, 0);
            after.resize(n * to_bytes, 0);
            self.file
                .read_tensor_range(tensor, first * from_bytes as u64, &mut before)?;
            let jobs = before
                .par_chunks(rows_per_job * from_bytes)
                .zip(after.par_chunks_mut(rows_per_job * to_bytes))
                .enumerate();
            let done = jobs.map(|(job, (before, after))| {
                let mut buffers = (vec![0.0; n_in], vec![0.0; n_in]);
                let mut sums = [0.0; 2];
                let rows = before
                    .chunks_exact(from_bytes)
                    .zip(after.chunks_exact_mut(to_bytes));
                for (i, (before, after)) in rows.enumerate() {
                    let row = first + (job * rows_per_job + i) as u64;
                    let [energy, error] = self
                        .row(before, weights, after, &mut buffers)
                        .map_err(in_row(row))?;
                    sums[0] += energy;
                    sums[1] += error;
                }
                Ok(sums)
            });
            // In the order of rows, so that sums and the first error do not depend on threads.
            let done: Vec<Result<[f64; 2]>> = done.collect();
            for sums in done {
                let [energy, error] = sums?;
                made.energy += energy;
                made.squared_error += error;
            }
            out.write(&after)?;
            first += n as u64;
        }
        Ok(())
    }

    /// One row; returns its energy and its squared error.
    fn row(
        &self,
        before: &[u8],
        weights: Option<&[f32]>,
        after: &mut [u8],
        (values, decoded): &mut (Vec<f32>, Vec<f32>),
    ) -> thalweg_quant::Result<[f64; 2]> {
        self.from.decode_row(before, values)?;
        match self.recipe.fit {
            Fit::Exact => encode::encode_row(self.to, values, weights, after)?,
            Fit::Reference => {
                // Not every reference looks.
                if let Some(index) = values.iter().position(|x| !x.is_finite()) {
                    return Err(thalweg_quant::Error::NonFinite {
                        format: self.to.name(),
                        index,
                        value: values[index],
                    });
                }
                self.to.quantize_row(values, after)?;
            }
        }
        self.to.decode_row(after, decoded)?;
        let mut sums = [0.0; 2];
        for (x, y) in values.iter().zip(decoded.iter()) {
            let (x, y) = (f64::from(*x), f64::from(*y));
            sums[0] += x * x;
            sums[1] += (x - y) * (x - y);
        }
        Ok(sums)
    }
}

/// Second moments of the outputs of some rows of a matrix.
fn projected_moments(
    file: &Gguf,
    tensor: &TensorInfo,
    rows: Range<u64>,
    moments: &[f64],
) -> Result<Vec<f64>> {
    let ty = decoder(tensor)?;
    let n_in = to_usize(tensor.ne[0]);
    let quant = |source| Error::in_row(&tensor.name, rows.start * tensor.ne[0], source);
    let row_bytes = ty.row_bytes(n_in).map_err(quant)?;
    let n_rows = to_usize(rows.end - rows.start);
    let mut bytes = vec![0; n_rows * row_bytes];
    file.read_tensor_range(tensor, rows.start * row_bytes as u64, &mut bytes)?;
    let rows = bytes.par_chunks(row_bytes).with_min_len(16);
    let moments: Vec<thalweg_quant::Result<f64>> = rows
        .map_init(
            || vec![0.0; n_in],
            |values, row| {
                ty.decode_row(row, values)?;
                importance::projected_moment(values, moments)
            },
        )
        .collect();
    moments
        .into_iter()
        .collect::<thalweg_quant::Result<_>>()
        .map_err(quant)
}

/// Sizes of one piece of a tensor, which fit the memory of whoever asks for it.
pub(crate) fn to_usize(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text() {
        let fits = |pattern: &str, name: &str| Rule::new(pattern, QuantType::Q8_0).fits(name);
        assert!(fits("output.weight", "output.weight"));
        assert!(!fits("output", "output.weight"));
        assert!(fits("blk.*.attn_q.weight", "blk.12.attn_q.weight"));
        assert!(!fits("blk.*.attn_q.weight", "blk.12.attn_k.weight"));
        assert!(fits("*_exps*", "blk.0.ffn_up_exps.weight"));
        assert!(fits("*", ""));
        assert!(fits("a*b*c", "abc") && fits("a*b*c", "a-bb-c") && !fits("a*b*c", "acb"));
        // The end is not counted twice.
        assert!(!fits("ab*b", "ab"));
    }
}
