//! Second moments of what a layer's experts are given, from a calibration run, and the importance
//! weights that follow from them.
//!
//! Owns the file of moments (JSON) and which moments weigh which matrix; not their collection, nor
//! the formulas (`thalweg_quant::encode::importance`). Memory: `8 * n_layer * n_embd` bytes.
//! Invariants, which [`InputMoments::validate`] checks: 1. a moment is finite and not negative;
//! 2. no layer is all zeros; 3. layers are equally wide.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::json;
use thalweg_quant::encode::importance;

use crate::file::{Kind, read_json};
use crate::{Error, Result};

const KIND: Kind = Kind {
    format: "input-moments",
    version: 1,
    what: "moments of expert inputs",
};

/// Mean squares of the vectors that the experts of each layer were given.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct InputMoments {
    format: String,
    version: u32,
    /// The model file that was run.
    pub source: String,
    /// Its fingerprint in hexadecimal digits.
    pub fingerprint: String,
    /// Tokens that the means are over.
    pub n_tokens: u64,
    /// `E[x_d^2]` by layer and element, `[n_layer, n_embd]`.
    pub layers: Vec<Vec<f64>>,
}

/// Powers to which second moments are raised before they weigh an error.
#[derive(Debug, Clone, Copy, PartialEq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "callers write `Exponents { field, ..default }`"
)]
pub struct Exponents {
    /// For gate and up, whose input's moments are known. 0.5 by default: the root mean square.
    pub input: f64,
    /// For down, whose input's moments follow from those. 0.25 by default.
    pub hidden: f64,
}

impl Default for Exponents {
    fn default() -> Self {
        Self {
            input: 0.5,
            hidden: 0.25,
        }
    }
}

impl InputMoments {
    /// Moments of a calibration run.
    ///
    /// # Errors
    /// As [`validate`](Self::validate).
    pub fn new(
        source: impl Into<String>,
        fingerprint: impl Into<String>,
        n_tokens: u64,
        layers: Vec<Vec<f64>>,
    ) -> Result<Self> {
        let moments = Self {
            format: KIND.format.to_owned(),
            version: KIND.version,
            source: source.into(),
            fingerprint: fingerprint.into(),
            n_tokens,
            layers,
        };
        moments.validate()?;
        Ok(moments)
    }

    /// Reads a file that [`to_json`](Self::to_json) made.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Json`]; [`Error::WrongFile`]; those of [`validate`](Self::validate).
    pub fn read(path: &Path) -> Result<Self> {
        let moments: Self = read_json(path, KIND)?;
        moments.validate()?;
        Ok(moments)
    }

    /// The file's text.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] as [`validate`](Self::validate): JSON has no NaN.
    pub fn to_json(&self) -> Result<String> {
        self.validate()?;
        Ok(json!(self).to_string())
    }

    /// Checks the invariants.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] with layer and element.
    pub fn validate(&self) -> Result<()> {
        let n_embd = self.layers.first().map_or(0, Vec::len);
        if n_embd == 0 {
            return Err(Error::out_of_range("number of moments", 0, "at least 1"));
        }
        for (layer, moments) in self.layers.iter().enumerate() {
            if moments.len() != n_embd {
                let what = format!("number of moments of layer {layer}");
                return Err(Error::out_of_range(what, moments.len(), n_embd));
            }
            let is_usable = |m: &f64| *m >= 0.0 && m.is_finite();
            if let Some(d) = moments.iter().position(|m| !is_usable(m)) {
                let what = format!("moment {d} of layer {layer}");
                let expected = "a finite number that is not negative";
                return Err(Error::out_of_range(what, moments[d], expected));
            }
            if moments.iter().all(|m| *m <= 0.0) {
                let what = format!("every moment of layer {layer}");
                return Err(Error::out_of_range(what, 0, "something to weigh by"));
            }
        }
        Ok(())
    }

    /// Refuses moments of another model's shape.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn expect_shape(&self, n_layer: usize, n_embd: usize) -> Result<()> {
        let found = (self.layers.len(), self.layers.first().map_or(0, Vec::len));
        if found == (n_layer, n_embd) {
            return Ok(());
        }
        let text = |(layers, wide): (usize, usize)| format!("{layers} layers of {wide}");
        Err(Error::out_of_range(
            "shape of the moments",
            text(found),
            text((n_layer, n_embd)),
        ))
    }
}

/// Weights for the rows of gate and up: mean 1, `[n_embd]`.
pub(crate) fn input_weights(moments: &[f64], exponent: f64) -> thalweg_quant::Result<Vec<f32>> {
    let mut tempered = moments.to_vec();
    importance::temper(&mut tempered, exponent)?;
    let mut weights = vec![0.0; tempered.len()];
    importance::normalize(&tempered, &mut weights)?;
    Ok(weights)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(layers: &[&[f64]]) -> Result<InputMoments> {
        let layers = layers.iter().map(|l| l.to_vec()).collect();
        InputMoments::new("m.gguf", "00", 7, layers)
    }

    #[test]
    fn a_file_comes_back_as_it_was_and_another_is_refused() {
        let folder = tempfile::tempdir().expect("writable");
        let path = folder.path().join("m.json");
        let made = moments(&[&[4.0, 1.0], &[0.0, 0.1]]).expect("usable");
        let text = made.to_json().expect("finite");
        std::fs::write(&path, &text).expect("written");
        assert_eq!(InputMoments::read(&path).expect("readable"), made);
        made.expect_shape(2, 2).expect("its own");
        assert!(made.expect_shape(2, 3).is_err());
        for (from, to) in [
            (KIND.format, "other"),
            ("\"version\":1", "\"version\":2"),
            ("[4.0", "[-4.0"),
        ] {
            std::fs::write(&path, text.replace(from, to)).expect("written");
            assert!(InputMoments::read(&path).is_err(), "{to}");
        }
    }

    #[test]
    fn moments_that_cannot_weigh_are_named_by_layer_and_element() {
        let said = |layers: &[&[f64]]| moments(layers).expect_err("refused").to_string();
        assert!(said(&[&[1.0, 2.0], &[1.0, f64::NAN]]).contains("moment 1 of layer 1 is NaN"));
        assert!(said(&[&[1.0], &[-1.0]]).contains("moment 0 of layer 1 is -1"));
        assert!(said(&[&[0.0, 0.0]]).contains("every moment of layer 0 is 0"));
        assert!(said(&[&[1.0, 1.0], &[1.0]]).contains("layer 1 is 1, expected 2"));
        assert!(said(&[]).contains("number of moments"));
    }

    #[test]
    fn the_worked_example_of_tempering_comes_out() {
        // E[x^2] = [4, 1], exponent 0.5: 2 to 1, scaled to mean 1.
        let weights = input_weights(&[4.0, 1.0], 0.5).expect("usable");
        assert!((weights[0] - 4.0 / 3.0).abs() < 1e-6 && (weights[1] - 2.0 / 3.0).abs() < 1e-6);
    }
}
