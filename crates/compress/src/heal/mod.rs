//! Making up for what quantization of the experts took from a layer's output.
//!
//! Owns the parts of the method: one factor a layer (`alpha`), and a change of the shared expert's down
//! projection (`ridge`). Both lower the error on the data that they were made from, by construction;
//! only other data says whether they help.

pub mod alpha;
pub mod ridge;
